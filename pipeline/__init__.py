"""Repairs agent histories into valid requests, recovers what a stream dropped, records every change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reknit.pipeline.conversion import convert
    from reknit.pipeline.healing.single import heal
    from reknit.pipeline.session import Session, normalize
    from reknit.pipeline.streams.session import recover
    from reknit.pipeline.validation import validate

    __version__: str

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


def __getattr__(name: str) -> Any:  # noqa: ANN401  one of six, or the version
    home = _HOMES.get(name)
    if home is None and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  not before it is needed

    value = getattr(importlib.import_module(home), name) if home else _installed_version()
    globals()[name] = value
    return value


def _installed_version() -> str:
    """Return the version in requests, segments and dead letters: that of the installed build, with its commit."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  a normalize needs no version, and this takes 10 ms

    try:
        return version("reknit")
    except PackageNotFoundError:  # run from a folder that was not installed
        return "0+unknown"
