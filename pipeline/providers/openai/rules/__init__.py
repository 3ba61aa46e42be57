"""The parts that the rules of both OpenAI APIs share: misfits in their words, names, and images in data URLs.

Both write paths with brackets (``messages[1].content[0].type``), Reknit with dots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules._misfits import Misfit, Spot, fit
from reknit.pipeline.rules._pictures import look
from reknit.pipeline.rules.base import Rule

legal_name = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,", re.IGNORECASE)
_IMAGES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_ONE_OF = "Input should be '"
_WANTED = {
    "Input should be a valid string": "a string",
    "Input should be a valid boolean": "a boolean",
    "Input should be a valid list": "an array",
    "Input should be a valid dictionary": "an object",
}


def bracketed(path: str) -> str:
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)


def kind(value: object) -> str:
    return _KINDS.get(type(value), "a value")


class Misfits(Struct, frozen=True, kw_only=True):
    """Reports the findings of the tolerant reader in one value of the body, in OpenAI's words.

    Attributes:
        walk: receives the violations.
        rules: the rule of each kind of misfit; kinds without one are not reported.
        supported: the values that the provider lists for a place in the structs (``content[]`` is an item of the list).
        wanted: the provider's words for the expected type of a place, if they are not the plain ones.
        own: rules of single places.
    """

    walk: Walk
    rules: dict[Misfit, Rule]
    supported: dict[str, str]
    wanted: dict[str, str]
    own: dict[tuple[str, Misfit], Rule]

    def fit(self, value: object, wire: object, path: str) -> object:
        """Read the ``value`` at ``path`` as the type ``wire``, reporting what does not fit."""

        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            self._report(_value(value, spot.path[len(path) :]), spot, misfit, words)

        return fit(value, wire, Spot(path, path), report)

    def kind_of(self, tool: object, path: str) -> object:
        """The type that a tool says it is of; "" where it cannot, which is reported."""
        if not isinstance(tool, dict):
            self.walk.refuse(self.rules["type"], path, at=bracketed(path), wanted="an object", got=kind(tool))
        elif "type" not in tool:
            self.walk.refuse(self.rules["missing"], f"{path}.type", at=bracketed(f"{path}.type"))
        else:
            return tool["type"]
        return ""

    def _report(self, value: object, spot: Spot, misfit: Misfit, words: str) -> None:
        place = f"{spot.place}[]" if spot.path.rpartition(".")[2].isdecimal() else spot.place
        if misfit == "type" and isinstance(value, str) and words.startswith(_ONE_OF):
            misfit = "tag"
        rule = self.own.get((place, misfit)) or self.rules.get(misfit)
        if rule is None:
            return
        tagged = misfit == "tag" and isinstance(value, dict)
        where = f"{spot.path}.type" if tagged else spot.path
        fields: dict[str, Any] = {
            "value": value["type"] if tagged and isinstance(value, dict) else value,
            "supported": self.supported.get(place, ""),
            "wanted": self.wanted.get(place) or _WANTED.get(words, words),
            "got": kind(value),
        }
        self.walk.refuse(rule, where, at=bracketed(where), **fields)


def _value(root: object, path: str) -> object:
    node = root
    for name in path.split(".")[1:]:
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def listing(names: Sequence[str], word: str = "and") -> str:
    """Write a list of values as the provider does: quoted, with a comma before the last word."""
    quoted = [f"'{name}'" for name in names]
    return f"{', '.join(quoted[:-1])}, {word} {quoted[-1]}" if len(quoted) > 2 else f" {word} ".join(quoted)


def media_type(url: str) -> str:
    """Return the media type of a base64 data URL; "" if there is none."""
    found = _DATA_URL.match(url)
    return found[1].lower() if found else ""


def unsupported_image(url: str) -> bool:
    """Return the type of a data URL that is not png, jpeg, gif or webp, by its declared type or by its first bytes."""
    found = _DATA_URL.match(url)
    if found is None:
        return False
    picture = look(url[found.end() :])
    return found[1].lower() not in _IMAGES or (picture is not None and picture.media_type is None)
