"""Mend agent histories into requests that providers accept, and recover what a stream dropped.

This is the name to import; ``pipeline`` and ``topics`` are its parts. Each name is loaded when it is first asked for,
so a program that only validates does not wait for the rest.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any


def _check_origin(*names: str) -> None:
    """See that each package stands beside this one.

    Raises:
        ImportError: another file has the name; the message says which, and what to do.
    """
    beside = Path(__file__).resolve().parents[1]
    for name in names:
        found = _place_of(name)
        if found is None:
            raise ImportError(f"reknit is not installed whole: there is no package {name!r}", name=name)
        if found != beside / name / "__init__.py":
            raise ImportError(
                f"reknit cannot load its package {name!r}: {found} has the same name and comes first on the path; "
                f"rename it, or start the program from another folder",
                name=name,
                path=str(found),
            )


def _place_of(name: str) -> Path | None:
    """The file that ``import name`` gives, without importing it; a folder where there is no file."""
    loaded = sys.modules.get(name)
    spec = find_spec(name) if loaded is None else loaded.__spec__
    place = getattr(loaded, "__file__", None) if spec is None else spec.origin
    if place is None and spec is not None and spec.submodule_search_locations:
        place = next(iter(spec.submodule_search_locations))
    return None if place is None else Path(place).resolve()


# `pipeline` and `topics` are names that a user's own files may have. Without this check the import below would fail
# with a puzzle (no module named pipeline.session), or work with somebody else's code.
_check_origin("pipeline", "topics")

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
