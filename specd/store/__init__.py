"""The daemon's database: one SQLite file in WAL mode, one writer, every commit synced."""

from specd.store.advice import damage, way_out
from specd.store.database import Database, is_locked
from specd.store.rows import LogLine, MeasuredLevel, TrialRow
from specd.store.store import Store

__all__ = ["Database", "LogLine", "MeasuredLevel", "Store", "TrialRow", "damage", "is_locked", "way_out"]
