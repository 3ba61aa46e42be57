"""What of a newer contract would break programs that were written for an older one.

Both are AsyncAPI documents. Whoever writes an input must go on being understood, whoever reads an output must go on
finding what was promised: an input may only ask for less and an output only promise more. New kinds of records and new
optional fields are no breach.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
Direction: TypeAlias = Literal["input", "output"]

# Keywords that only allow less, the more of them there are.
_CONSTRAINTS = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "pattern", "const", "format")


def breaches(old: Json, new: Json) -> list[str]:
    """What breaks programs of ``old`` under ``new``, a sentence each; nothing within a major version that is kept."""
    comparison = _Comparison(old, new)
    return [breach for name in old["channels"] for breach in comparison.channel(name)]


class _Comparison:
    def __init__(self, old: Json, new: Json) -> None:
        self._old = old
        self._new = new

    def channel(self, name: str) -> Iterator[str]:
        before, after = self._old["channels"][name], self._new["channels"].get(name)
        if after is None or after["address"] != before["address"]:
            yield f"{name}: the topic is gone"
            return
        received = f"receive.{name}" in self._old["operations"]
        direction: Direction = "input" if received else "output"
        for message, reference in before["messages"].items():
            if message not in after["messages"]:
                yield f"{name}: records {message} are gone"
                continue
            known = self._at(self._old, reference)
            now = self._at(self._new, after["messages"][message])
            if known["contentType"] != now["contentType"]:
                yield f"{name}: {message} has another content type, {now['contentType']}"
            for part in ("payload", "headers"):
                # Headers that nobody knew of are passed over.
                if part in known:
                    yield from self._schemas(known[part], now.get(part, {}), f"{message}.{part}", direction, ())

    @staticmethod
    def _at(document: Json, holder: Json) -> Json:
        """What stands at the end of a chain of references."""
        while "$ref" in holder:
            found: Any = document
            for step in holder["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            holder = found
        return holder

    def _schemas(
        self, before: Json, after: Json, path: str, direction: Direction, within: tuple[str, ...]
    ) -> Iterator[str]:
        reference = before.get("$ref", "")
        if reference in within:
            return  # a schema that holds itself
        within = (*within, reference) if reference else within
        before, after = self._at(self._old, before), self._at(self._new, after)
        # A reader of outputs must find no less than it knows, a writer of inputs must be asked for no more.
        wide, narrow = (after, before) if direction == "input" else (before, after)
        if not _kinds(narrow) <= _kinds(wide):
            yield f"{path}: was {_named(before)}, is {_named(after)}"
        for keyword in _CONSTRAINTS:
            if keyword in wide and wide[keyword] != narrow.get(keyword):
                yield f"{path}: {keyword} was {before.get(keyword)}, is {after.get(keyword)}"
        if "enum" in before and "enum" in after and not {*narrow["enum"]} <= {*wide["enum"]}:
            yield f"{path}: other values than before, {after['enum']}"
        missing = {*wide.get("required", ())} - {*narrow.get("required", ())}
        words = "is required now" if direction == "input" else "may be absent now"
        for name in sorted(missing):
            yield f"{path}.{name}: {words}"
        for name, known in before.get("properties", {}).items():
            now = after.get("properties", {}).get(name)
            if now is None:
                yield f"{path}.{name}: is gone"
            else:
                yield from self._schemas(known, now, f"{path}.{name}", direction, within)
        if "items" in before and "items" in after:
            yield from self._schemas(before["items"], after["items"], f"{path}[]", direction, within)
        alternatives = after.get("anyOf", ())
        for at, known in enumerate(before.get("anyOf", ())):
            found = [list(self._schemas(known, each, f"{path}|{at}", direction, within)) for each in alternatives]
            if [] not in found:
                yield from min(found, key=len, default=[f"{path}|{at}: is gone"])


def _kinds(schema: Json) -> set[str]:
    """The JSON types that a schema allows; of one that says nothing of them, all that can be told."""
    if "anyOf" in schema:
        return set()  # compared one by one
    kinds = schema.get("type")
    if kinds is None:
        return {"boolean", "object", "array", "number", "integer", "string", "null"}
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _named(schema: Json) -> str:
    return " or ".join(sorted(_kinds(schema)))
