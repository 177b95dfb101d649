"""The rehearsal engine: an OpenAI-compatible server that starts, speaks and fails like vLLM, without a model.

It needs the standard library only and runs on Python 3.9 and newer, so that `archive.build()` can be copied to any
host and stand in for the real executable. Nothing in here imports the rest of specd.
"""
