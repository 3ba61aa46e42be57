"""Parameters that a model refuses although its API has them: how the writers leave them out, or take the nearest value.

Each provider's writer has a table of such facts. A fact is certain: its refusal was recorded or reported in the API's
words, and no recording of that model, value and effort was accepted. Where recordings disagree or are few, the request
goes out unchanged, and a refusal heals it. The judges have tables of their own, written from refusals, so that each
cross-checks the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.targets.head import HeadWriter, Params, members_of

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The levels of effort of all providers, in order."""

_LONGEST: Final = 80


class Fact(Struct, frozen=True, kw_only=True):
    """One row of a table.

    Attributes:
        models: a pattern that the model's whole name matches, without its date.
        parameter: the place of the parameter in the API's words (``reasoning.effort``).
        takes: the values that are taken; none if the parameter as such is refused.
        efforts: the effective efforts with which the parameter is taken.
        with_other: the parameter is refused only together with this one.
        source: where this was seen.
    """

    models: str
    parameter: str
    takes: tuple[Any, ...] = ()
    efforts: tuple[str, ...] = ()
    with_other: str = ""
    source: str

    def holds(self, name: str) -> bool:
        return re.fullmatch(self.models, name) is not None


class Fitting(Struct, frozen=True, kw_only=True):
    """A request's parameters at their places, and where their fixes are noted.

    Attributes:
        writer: notes the fixes.
        params: the parameters of the input.
        place: returns the place in the body of a parameter of the table.
        effort: the effective effort.
    """

    writer: HeadWriter
    params: Params
    place: Callable[[str], str] = str
    effort: str = ""

    def fit(self, body: dict[str, Any], facts: Iterable[Fact]) -> dict[str, Any]:
        """Return a body without what the model refuses."""
        for fact in facts:
            if fact.efforts and self.effort in fact.efforts:
                continue
            if fact.with_other and member(body, self.place(fact.with_other)) is None:
                continue
            value = member(body, self.place(fact.parameter))
            if value is not None and value not in fact.takes:
                body = self.change(body, fact.parameter, value, nearest(value, fact.takes))
        return body

    def fit_types(self, body: dict[str, Any], types: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
        """Return a body without values of a wrong type, which has no nearest one; a boolean is no number."""
        for name, accepted in types.items():
            value = member(body, name)
            fits = isinstance(value, accepted) and isinstance(value, bool) is (bool in accepted)
            if value is not None and not fits:
                body = self.change(body, name, value, None)
        return body

    def change(self, body: dict[str, Any], parameter: str, value: object, better: object) -> dict[str, Any]:
        """Return a body with a better value of a parameter, or without it for None."""
        code = "parameter_unsupported" if better is None else "parameter_nearest"
        if not self.writer.makes(code):
            return body
        place = self.place(parameter)
        detail = f"{place}: {_said(value)}" + ("" if better is None else f" -> {_said(better)}")
        self.writer.note_fix(code, self._given_at(place), before=value, after=better, detail=detail)
        return with_member(body, place, better)

    def _given_at(self, place: str) -> str:
        """Return the place in the input of a parameter at ``place`` in the body."""
        outer, _, inner = place.partition(".")
        known = self.params.values
        name = inner if inner in known else outer if outer in known else place
        path = self.params.place(name)
        return f"{path}.{inner}" if name == outer and inner and path == f"params.{outer}" else path


def _said(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def nearest(value: object, takes: tuple[Any, ...]) -> Any:  # noqa: ANN401  one of the values
    """Return the greatest level of effort that is taken and not above the wish, else the least; None without levels."""
    levels = sorted((level for level in takes if level in EFFORTS), key=EFFORTS.index)
    if value not in EFFORTS or not levels:
        return None
    wish = EFFORTS.index(str(value))
    return next((level for level in reversed(levels) if EFFORTS.index(level) <= wish), levels[0])


def member(body: Mapping[str, Any], place: str) -> Any:  # noqa: ANN401  any JSON
    """Return the decoded value at a place of a body; None if it is absent."""
    outer, *inner = place.split(".")
    value: Any = body.get(outer)
    if value is None:
        return None
    for name in inner:
        held = members_of(value) if isinstance(value, Raw) else value
        value = held.get(name) if isinstance(held, Mapping) else None
    return msgspec.json.decode(value) if isinstance(value, Raw) else value


def with_member(body: Mapping[str, Any], place: str, value: object) -> dict[str, Any]:
    """Return a body with another value at a place, or without it for None.

    An object that would be left without members is left out with its last one.
    """
    name, _, rest = place.partition(".")
    changed = dict(body)
    if rest:
        held = changed.get(name)
        members = members_of(held) if isinstance(held, Raw) else held
        inner = with_member(members or {}, rest, value)
        value = inner or None
    if value is None:
        changed.pop(name, None)
    else:
        changed[name] = value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))
    return changed
