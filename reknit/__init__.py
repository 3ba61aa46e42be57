"""Repair agent histories into requests that providers accept, and recover what a stream dropped.

Each name is loaded on first use, so a program that only validates does not wait for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reknit.pipeline.errors import ReknitError

if TYPE_CHECKING:
    from reknit.pipeline import Session, __version__, convert, heal, normalize, recover, validate

__all__ = ["ReknitError", "Session", "__version__", "convert", "heal", "normalize", "recover", "validate"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  one of the functions and classes
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reknit import pipeline  # noqa: PLC0415  loaded already; the name is not for users of this module

    value = getattr(pipeline, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
