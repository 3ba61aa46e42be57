"""The page of the library: each public name with its signature and its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import reknit
import reknit.client
import reknit.media
import reknit.testing
from reknit.pipeline.explain.reference.docstrings import markdown_of
from reknit.pipeline.explain.reference.markdown import WRITTEN
from reknit.pipeline.fixes import Fix
from reknit.pipeline.healing.single import Healed, NotHealed
from reknit.pipeline.policy import Policy
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import Normalized

_MODULES: tuple[ModuleType, ...] = (reknit, reknit.client, reknit.media, reknit.testing)
# Types that the functions of `reknit` return and take.
_RESULTS: tuple[type, ...] = (Normalized, Fix, Violation, Healed, NotHealed, Policy)
_LONGEST_LINE = 100


def library_page() -> str:
    """Return ``docs/reference/library.md``."""
    intro = (
        "The public names of `reknit`, from their docstrings. The examples are run by the tests. "
        "[Start with the library](../start/library.md) shows the first steps."
    )
    lines = ["# Library", "", WRITTEN, "", intro, ""]
    for module in _MODULES:
        lines += [f"## {module.__name__}", "", *markdown_of(module.__doc__)]
        for name in sorted(module.__all__, key=lambda name: _rank(getattr(module, name))):
            lines += _entry(name, getattr(module, name))
        if module is reknit:
            for result in _RESULTS:
                lines += _entry(result.__name__, result)
    return "\n".join(lines).rstrip() + "\n"


def _rank(value: object) -> int:
    """Return the order on the page: functions, classes, errors."""
    if not isinstance(value, type):
        return 0
    return 2 if issubclass(value, BaseException) else 1


def _entry(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, type | FunctionType):  # a version
        return
    yield from (f"### {name}", "", *_signature(name, value), *markdown_of(value.__doc__))
    if isinstance(value, type):
        for method, found, doc in _members(value):
            yield from (f"#### {name}.{method}", "", *_signature(method, found), *markdown_of(doc))


def _members(kind: type) -> Iterator[tuple[str, Any, str]]:
    """Yield the documented public methods and properties, of the class and of those bases that are Reknit's."""
    for name, _ in inspect.getmembers(kind):
        found = inspect.getattr_static(kind, name)
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        ours = isinstance(function, FunctionType) and function.__module__.startswith("reknit.")
        if ours and not name.startswith("_") and function.__doc__:
            yield name, found if isinstance(found, property) else function, function.__doc__


class _Shown:
    """An annotation or a default as it is written: without the quotes of a string, without an address in memory."""

    def __init__(self, text: object) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text if isinstance(self._text, str) else inspect.formatannotation(self._text)


def _signature(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401  any class, function or property
    if isinstance(value, type) and issubclass(value, BaseException):
        return
    if isinstance(value, property):
        yield from ("```python", f"{name}: {value.fget.__annotations__['return']}", "```", "")
        return
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):  # a type that has none
        return
    shown = _written(name, found)
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    yield from ("```python", prefix + shown, "```", "")


def _shown(given: inspect.Parameter) -> inspect.Parameter:
    annotation = given.annotation if given.annotation is given.empty else _Shown(given.annotation)
    default = _Shown(given.default.__name__) if isinstance(given.default, FunctionType) else given.default
    return given.replace(annotation=annotation, default=default)


def _written(name: str, found: inspect.Signature) -> str:
    """Return a signature in one line, or with one parameter in a line."""
    empty = inspect.Signature.empty
    parameters = [_shown(each) for each in found.parameters.values() if each.name != "self"]
    returns = "" if found.return_annotation in {empty, None, "None"} else f" -> {_Shown(found.return_annotation)}"
    short = f"{name}{inspect.Signature(parameters)}{returns}"
    if len(short) <= _LONGEST_LINE:
        return short
    lines, is_keyword_only = [], False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not is_keyword_only:
            lines.append("    *,")
            is_keyword_only = True
        lines.append(f"    {each},")
    return "\n".join([f"{name}(", *lines, f"){returns}"])
