"""What can be known of a restart before it is done: one module a subject, all asked side by side."""

from specd.checking.surroundings import surroundings
from specd.checking.trial import Plan

__all__ = ["Plan", "surroundings"]
