"""Streams: raw provider events in, items out, with what the stream dropped recovered from what came later."""

from pipeline.streams.recovery import Recovery, recover
from pipeline.streams.recovery.render import FinishedTurn
from pipeline.streams.sources import SOURCES

__all__ = ["SOURCES", "FinishedTurn", "Recovery", "recover"]
