"""The version that requests, segments and dead letters carry."""

__version__ = "0.1.0"
