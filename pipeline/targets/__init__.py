"""How requests are written, one module or package a provider; ``pipeline.registry`` joins each with its rules."""

from pipeline.targets.base import Dialect, Encoded, Ending, Setting, Writer

__all__ = ["Dialect", "Encoded", "Ending", "Setting", "Writer"]
