"""Looking into what stands between a unit and its server: shells, scripts, containers; and the way back.

`open_line` gives a command line as the server's own process gets it, and what the unit has to say for another one.
"""

from specd.engines.opening.line import Opened, open_line

__all__ = ["Opened", "open_line"]
