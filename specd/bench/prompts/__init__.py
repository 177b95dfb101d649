"""Prompt sets: the shipped ones (diverse, quick) and a user's own JSONL."""

from specd.bench.prompts.loader import SHIPPED, Prompt, load_prompts

__all__ = ["SHIPPED", "Prompt", "load_prompts"]
