"""Repairs agent histories into valid requests, recovers what a stream dropped, records every change."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reknit.pipeline.conversion import convert
    from reknit.pipeline.healing.single import heal
    from reknit.pipeline.session import Session, normalize
    from reknit.pipeline.streams.session import recover
    from reknit.pipeline.validation import validate

# The version in requests, segments and dead letters: that of the installed build, with its commit.
try:
    __version__ = version("reknit")
except PackageNotFoundError:  # run from a folder that was not installed
    __version__ = "0+unknown"

__all__ = ["Session", "__version__", "convert", "heal", "normalize", "recover", "validate"]

# Each name is imported on first use: a program that only validates does not import the rest.
_HOMES = {
    "Session": "reknit.pipeline.session",
    "convert": "reknit.pipeline.conversion",
    "heal": "reknit.pipeline.healing.single",
    "normalize": "reknit.pipeline.session",
    "recover": "reknit.pipeline.streams.session",
    "validate": "reknit.pipeline.validation",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  one of six
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  not before it is needed

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
