"""A small service manager for machines without systemd and without root: `python -m specd.supervisor DIR`."""
