"""Seam 3, engines: what a server's command line, log, metrics and endpoint say, and whether it would start."""

from specd.engines.registry import ENGINES, by_name, recognise

__all__ = ["ENGINES", "by_name", "recognise"]
