"""Mend agent histories into requests that providers accept, and recover what a stream dropped.

This is the name to import; ``pipeline`` and ``topics`` are its parts. Each name is loaded when it is first asked for,
so a program that only validates does not wait for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reknit._origin import check_origin

# `pipeline` and `topics` are names that a user's own files may have. Without this check the import below would fail
# with a puzzle (no module named pipeline.session), or work with somebody else's code.
check_origin("pipeline", "topics")

from pipeline import __version__  # noqa: E402  only once it is known to be ours
from pipeline.errors import ReknitError  # noqa: E402  as above

if TYPE_CHECKING:
    from pipeline import Session, normalize, recover, validate

__all__ = ["ReknitError", "Session", "__version__", "normalize", "recover", "validate"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  one of the four functions and classes
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pipeline  # noqa: PLC0415  loaded already; the name is not for users of this module

    value = getattr(pipeline, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
