"""Prompt sets: shipped ones by task, synthetic lengths, a user's own files, and mixes of them."""

from specd.bench.prompts.prompt import Prompt
from specd.bench.prompts.sets import SHIPPED, load_prompts

__all__ = ["SHIPPED", "Prompt", "load_prompts"]
