"""A Gemini call whose arguments stream in pieces, as the JSON text that they add up to.

Each piece names a leaf by its path (``$.operations[0].price``) and holds its value, or a part of it if it is a string
that goes on. Pieces come in the order in which the object is written, so the text only grows: what is open is closed
down to where the next path branches off, and opened again along it.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Path: TypeAlias = list[str | int]

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


class PartialArg(Struct, omit_defaults=True, gc=False):
    """A piece of one leaf. With none of the values it is null."""

    json_path: str = msgspec.field(name="jsonPath")
    string: str | None = msgspec.field(name="stringValue", default=None)
    number: Raw | UnsetType = msgspec.field(name="numberValue", default=UNSET)
    boolean: bool | None = msgspec.field(name="boolValue", default=None)
    goes_on: bool | None = msgspec.field(name="willContinue", default=None)


class Arguments(Struct):
    """What is open: the path of the last leaf, whether it is a string that goes on, and whether anything was written.

    ``written`` are the paths of all leaves and of all objects and lists that were closed, as text.
    """

    path: Path = []
    quoted: bool = False
    begun: bool = False
    written: set[str] = set()

    def write(self, piece: PartialArg) -> str | None:
        """The JSON text that a piece adds; None where its path leads back into what was closed, or is no path."""
        path = steps(piece.json_path)
        if path is None:
            return None
        if self.quoted and path == self.path:
            return _escaped(piece.string or "") + self._pause(piece)
        opening = self._open(path)
        if opening is None:
            return None
        if piece.string is not None:
            self.quoted = True
            return f'{opening}"{_escaped(piece.string)}{self._pause(piece)}'
        if isinstance(piece.number, Raw):
            return opening + bytes(piece.number).decode()
        return opening + ("null" if piece.boolean is None else str(piece.boolean).lower())

    def close(self) -> str:
        if not self.begun:
            return "{}"
        quote = '"' if self.quoted else ""
        ends = "".join("]" if isinstance(step, int) else "}" for step in reversed(self.path))
        self.path, self.quoted = [], False
        return quote + ends

    def _pause(self, piece: PartialArg) -> str:
        self.quoted = bool(piece.goes_on)
        return "" if self.quoted else '"'

    def _open(self, path: Path) -> str | None:
        """Close what is not on the way to a leaf, and open what is."""
        shared = next((at for at, (old, new) in enumerate(zip(self.path, path, strict=False)) if old != new), None)
        if self.begun and (shared is None or type(self.path[shared]) is not type(path[shared])):
            return None  # the same leaf again, or one inside of a leaf
        at = shared or 0
        if any(repr(path[: depth + 1]) in self.written for depth in range(at, len(path))):
            return None
        text = '"' if self.quoted else ""
        self.quoted = False
        for depth in range(len(self.path) - 1, at, -1):
            self.written.add(repr(self.path[:depth]))
            text += "]" if isinstance(self.path[depth], int) else "}"
        text += "," if self.begun else _bracket(path[0])
        for depth in range(at, len(path)):
            step = path[depth]
            text += f'"{_escaped(step)}":' if isinstance(step, str) else ""
            text += _bracket(path[depth + 1]) if depth + 1 < len(path) else ""
        self.begun, self.path = True, path
        self.written.add(repr(path))
        return text


def steps(path: str) -> Path | None:
    """A path's steps: names of members and numbers of elements; None where it is no such path."""
    if not path.startswith("$"):
        return None
    found: Path = []
    position = 1
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        name, number, single, double = step.groups()
        found.append(int(number) if number else name or (single if single is not None else double) or "")
        position = step.end()
    return found if found and isinstance(found[0], str) else None


def _bracket(step: str | int) -> str:
    return "[" if isinstance(step, int) else "{"


def _escaped(text: str) -> str:
    return msgspec.json.encode(text)[1:-1].decode()
