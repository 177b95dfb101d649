"""Text from outside (a server's error, a child's stderr) made fit to show."""

__all__ = ["plain"]


def plain(text: str, limit: int) -> str:
    """Return text on one line, without control and other unprintable characters, at most `limit` characters long."""
    words = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
