"""Generates the checks that a block has nothing unusual on it.

Each fast path looks at the content of a block and leaves the block to the careful path if any other member is set. Such
a check is generated from the struct and names only the members that the fast path looks at by itself. A member that is
added to a struct makes its blocks unusual for every fast path, until that one names the member.

The generated code is a chain of comparisons, as one would write it by hand. It costs 70 ns for a text; a comparison of
the members by ``operator.attrgetter``, which needs no generated code, costs 160 ns, which is 9 % of a plain history.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import UNSET, Struct, structs

_B = TypeVar("_B", bound=Struct)


def unusual(kind: type[_B], *exempt: str) -> Callable[[_B], bool]:
    """Return a function that returns True if a block of a class has an optional member.

    Members without a default are content, and not compared. ``inspect.getsource`` shows the generated function.

    Args:
        kind: the class; the function does not check it.
        exempt: the optional members that the caller looks at itself.

    Raises:
        TypeError: an exempt name is not that of an optional member, or a default is neither ``UNSET`` nor False.
    """
    optional = {field.name: field.default for field in structs.fields(kind) if not field.required}
    for name in exempt:
        if name not in optional:
            raise TypeError(f"{kind.__name__} has no optional member {name}")
        del optional[name]
    source = f"def unusual(block):  # {kind.__name__}\n    return {_condition(kind, optional)}\n"
    file = f"<unusual {kind.__name__} without {', '.join(exempt) or 'exceptions'}>"
    # Tracebacks and debuggers find the source there, as they do for the classes that attrs generates.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"UNSET": UNSET}
    exec(compile(source, file, "exec"), names)  # noqa: S102  the source has only names of members
    made: Callable[[_B], bool] = names["unusual"]
    return made


def _condition(kind: type[Struct], optional: dict[str, Any]) -> str:
    """Return an expression that is true if one of the members of ``block`` is not its default."""
    absent = [f"block.{name}" for name, default in optional.items() if default is UNSET]
    false = [f"block.{name}" for name, default in optional.items() if default is False]
    if len(absent) + len(false) < len(optional):
        raise TypeError(f"{kind.__name__}: the default of an optional member is neither UNSET nor False")
    # One chain is cheaper than a comparison for each member.
    tests = [f"not ({' is '.join([*absent, 'UNSET'])})"] if absent else []
    return " or ".join([*tests, *false]) or "False"
