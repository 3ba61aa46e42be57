"""Whether the packages that Python finds under our names are ours."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def check_origin(*names: str) -> None:
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
