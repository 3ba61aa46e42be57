"""OpenAI's words for what does not fit, shared by its two APIs.

The provider writes paths with brackets (``messages[1].content[0].type``), we with dots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipeline.rules import _media
from pipeline.rules._fold import Walk
from pipeline.rules._json import Misfit, Spot, fit
from pipeline.rules.base import Rule

NOT_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
    "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON. If you have trouble "
    "figuring out how to fix this, please contact us through our help center at help.openai.com.)"
)
TOO_LONG = "Invalid '{at}': string too long. Expected a string with maximum length {limit}, but got a string with length {length} instead."  # noqa: E501 - the provider's text
PATTERN = (
    "Invalid '{at}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
)
EMPTY_ARRAY = "Invalid '{at}': empty array. Expected an array with minimum length 1, but got an empty array instead."

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


class Misfits:
    """Reports what the tolerant reader finds in one value of the body, in the provider's words.

    ``supported`` gives the values that the provider lists for a place in the wire structs (``content[]`` is an item of
    the list), ``wanted`` its words for the expected type where they are not the plain ones, ``own`` a rule of the
    place's own.
    """

    def __init__(
        self,
        walk: Walk,
        *,
        missing: Rule,
        wrong_type: Rule,
        unsupported: Rule,
        extra: Rule | None,
        supported: dict[str, str],
        wanted: dict[str, str],
        own: dict[tuple[str, Misfit], Rule],
    ) -> None:
        self.walk = walk
        self.missing, self.wrong_type = missing, wrong_type
        self.rules: dict[Misfit, Rule | None] = {
            "missing": missing,
            "type": wrong_type,
            "tag": unsupported,
            "extra": extra,
        }
        self.supported = supported
        self.wanted = wanted
        self.own = own

    def fit(self, value: object, wire: object, path: str) -> object:
        """Read the ``value`` at ``path`` as the type ``wire``, reporting what does not fit."""

        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            self._report(_value(value, spot.path[len(path) :]), spot, misfit, words)

        return fit(value, wire, Spot(path, path), report)

    def kind_of(self, tool: object, path: str) -> object:
        """The type that a tool says it is of; "" where it cannot, which is reported."""
        if not isinstance(tool, dict):
            self.walk.refuse(self.wrong_type, path, at=bracketed(path), wanted="an object", got=kind(tool))
        elif "type" not in tool:
            self.walk.refuse(self.missing, f"{path}.type", at=bracketed(f"{path}.type"))
        else:
            return tool["type"]
        return ""

    def _report(self, value: object, spot: Spot, misfit: Misfit, words: str) -> None:
        place = f"{spot.place}[]" if spot.path.rpartition(".")[2].isdecimal() else spot.place
        if misfit == "type" and isinstance(value, str) and words.startswith(_ONE_OF):
            misfit = "tag"
        rule = self.own.get((place, misfit), self.rules[misfit])
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


def listing(names: Sequence[str], last: str = "and") -> str:
    """Write a list of values as the provider does: quoted, with a comma before the last word."""
    quoted = [f"'{name}'" for name in names]
    return f"{', '.join(quoted[:-1])}, {last} {quoted[-1]}" if len(quoted) > 2 else f" {last} ".join(quoted)


def media_type(url: str) -> str:
    """Read the media type of a base64 data URL; "" where there is none."""
    found = _DATA_URL.match(url)
    return found[1].lower() if found else ""


def unsupported_image(url: str) -> bool:
    """Tell a data URL that holds no png, jpeg, gif or webp, by its own word or by its first bytes."""
    found = _DATA_URL.match(url)
    if found is None:
        return False
    picture = _media.look(url[found.end() :])
    return found[1].lower() not in _IMAGES or (picture is not None and picture.media_type is None)
