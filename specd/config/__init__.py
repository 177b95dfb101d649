"""Config and trial files: the only place that reads and judges them."""

from specd.config.load import load_config, parse_config, peek_daemon, read_text
from specd.config.paths import Paths, default_config_path, runtime_paths
from specd.config.trials import parse_trials

__all__ = [
    "Paths",
    "default_config_path",
    "load_config",
    "parse_config",
    "parse_trials",
    "peek_daemon",
    "read_text",
    "runtime_paths",
]
