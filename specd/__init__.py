"""specd: tries launch-time configurations of a production LLM service, and always brings the baseline back."""

__all__ = ["__version__"]

__version__ = "0.1.0"
