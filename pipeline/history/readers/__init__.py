"""Readers: histories of any shape in, canonical turns out. They change the shape and never the structure.

A healthy history is read by one typed decode. A message that this refuses is read a second time, tolerantly, and
alone: whatever could be understood is taken, and each thing that had to change has a fix.
"""

from __future__ import annotations

from pipeline.history.readers.reading import SHAPES, ReadResult, read, read_message, read_setting

__all__ = ["SHAPES", "ReadResult", "read", "read_message", "read_setting"]
