"""The tolerant reader: reads objects of unknown origin by the structs that are declared for them.

It is compiled once for each struct, and takes members by their declarations. The parts of a content that need no repair
are decoded together, each other one is read separately; a part that no reader can use is kept whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from types import GenericAlias, MappingProxyType, UnionType
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.readers.fields import Fields, Notes, as_list, as_object, as_string
from reknit.pipeline.history.readers.rawjson import starts_with, wrong_type
from reknit.pipeline.model import Block, Document, Image, Own, Role, Text, Turn, Unknown

Placed: TypeAlias = tuple[Block, str]
"""A block and its place in the input."""

Taker: TypeAlias = Callable[[Fields, str], object]
"""Takes the member of a name; None where it is not there."""

PartReader: TypeAlias = Callable[[Fields], list[Placed]]
"""Reads one part of a content, whatever it is."""

Inner: TypeAlias = Text | Image | Document | Unknown
"""The blocks that a tool result may hold."""
INNER: Final = (Text, Image, Document, Unknown)

Declared: TypeAlias = dict[bytes, dict[str, Any]]
"""The members of the structs of a union, by their tags as JSON: None, or what is declared of the structs within."""

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Struct)

MISFITS: Final = 2
"""How much may not fit for the rest to be read strictly without it."""
# Where msgspec says that a list does not fit.
_INDEX: Final = re.compile(r"`\$\[(\d+)\]")
# The types by which a result that is a single object is known for a block.
RESULT_BLOCKS: Final = frozenset({"text", "image", "document", "search_result", "tool_reference"})


def reader_of(
    kind: type[_S], special: Mapping[str, Taker] = MappingProxyType({}), without: Collection[str] = ()
) -> Callable[[Fields], _S | None]:
    """Return a function that makes a struct from fields by its declaration, or None if a required member is missing.

    A member is found by its name in JSON and by its name in the struct. The taker of a missing required member is
    called as well: a text is then empty.

    Args:
        kind: the struct.
        special: takers of members of these names, in nested structs too.
        without: the members that are not read.
    """
    members = [
        (field.name, field.encode_name, special.get(field.name) or _taker(field.type, special), field.required)
        for field in structs.fields(kind)
        if field.name not in without
    ]

    def read_one(fields: Fields) -> _S | None:
        found: dict[str, Any] = {}
        there = fields.keys()
        for name, written, taken, required in members:
            spelt = written if written in there else name
            value = taken(fields, spelt) if required or spelt in there else None
            if value is not None:
                found[name] = value
            elif required:
                return None
        return kind(**found)

    return read_one


def _taker(declared: Any, special: Mapping[str, Taker]) -> Taker:  # noqa: ANN401  a type, or a union of types
    """Return the taker for a declared type; a value that could be an object and is not stays in place."""
    kinds = get_args(declared) or (declared,)
    nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)), None)
    if nested is None:
        if declared is str:
            return Fields.take_text
        return Fields.take_string if str in kinds else Fields.take_flag if bool in kinds else Fields.take
    read_nested = reader_of(nested, special)

    def taken(fields: Fields, name: str) -> object:
        value = fields.peek(name)
        if value is None or not starts_with(value, b"{"):
            return fields.take_string(name) if value is not None and str in kinds and starts_with(value, b'"') else None
        fields.ignore(name)
        inner = Fields(value, fields.at(name), fields.notes)
        found = read_nested(inner)
        inner.drop_rest()
        return found

    return taken


def block_reader(
    kind: type[Struct], block_of: Callable[[Any], Block | None], special: Mapping[str, Taker] = MappingProxyType({})
) -> Callable[[Fields], Block | None]:
    """Return a function that makes a block from fields: first the struct that is declared for it, then the block."""
    read_one = reader_of(kind, special)
    return lambda fields: None if (made := read_one(fields)) is None else block_of(made)


def typed_reader(readers: Mapping[str, Callable[[Fields], Block | None]]) -> PartReader:
    """Return a reader of parts by their type; a part without one is a text, or its JSON."""

    def read_one(fields: Fields) -> list[Placed]:
        kind = kind_named(fields)
        if not kind and "type" not in fields:
            text = fields.peek("text")
            if text is None or not starts_with(text, b'"'):
                return [text_of(fields.whole, fields.path, fields.notes)]
            fields.notes.add_fix("field_missing", fields.at("type"), "text")
            kind = "text"
        fields.ignore("type")
        block = block_or_none(fields, readers[kind]) if kind in readers else None
        return [(block or Unknown(kind=kind, raw=Raw(fields.whole)), fields.path)]

    return read_one


def block_or_none(fields: Fields, read_one: Callable[[Fields], Block | None]) -> Block | None:
    """The block that a reader makes of fields, with its fixes; where it makes none there are no fixes either."""
    notes = fields.notes
    fields.notes = attempt = notes.attempt()
    block = read_one(fields)
    if block is not None:
        fields.drop_rest()
        notes.fixes += attempt.fixes
    fields.notes = notes
    return block


def text_of(value: Raw | bytes, path: str, notes: Notes) -> Placed:
    """Return a text: a string, or any other JSON as the text of its JSON."""
    if starts_with(value, b'"'):
        return Text(text=as_string(value, path)), path
    notes.add_fix("content_as_text", path, before=bytes(value))
    return Text(text=bytes(value).decode()), path


def inner_only(placed: Iterable[Placed], notes: Notes) -> list[Inner]:
    """Return the blocks that a result can have; each other one, such as reasoning or a call, is recorded as a fix."""
    blocks: list[Inner] = []
    for block, path in placed:
        if isinstance(block, INNER):
            blocks.append(block)
        else:
            notes.add_fix("field_dropped", path, f"{block.__struct_config__.tag} in a result")
    return blocks


class ContentReader(Generic[_T]):
    """Reads a content whose parts are declared.

    Args:
        kind: the type of a valid part, or a union of such types.
        valid_blocks: returns the blocks of a valid part at a path, or None if it needs repair.
        mend_part: reads any other object.
        plain: returns the block for a string, a number or a boolean.
    """

    def __init__(
        self,
        kind: Any,  # noqa: ANN401  a type, or a union of types
        valid_blocks: Callable[[_T, str], list[Placed] | None],
        repair_part: PartReader,
        plain: Callable[[Raw, str, Notes], Placed] = text_of,
    ) -> None:
        self._list: msgspec.json.Decoder[tuple[_T, ...]]
        self._list, self._declared = _compiled(kind)
        self._valid_blocks = valid_blocks
        self._repair_part = repair_part
        self._plain = plain

    def read(self, fields: Fields, key: str) -> list[Placed]:
        """Return a content's blocks: a string is one text block, and so are strings in a list; null is none.

        A number or a boolean becomes its text, in a list too; a list or null in a list is refused.
        """
        return self._read(fields, key)

    def read_result(self, fields: Fields, key: str) -> str | list[Inner] | UnsetType:
        """A tool result's content: a string as it is, blocks as blocks, other JSON as its text.

        A block that a result cannot hold (a call, thinking) is kept whole, as an unknown one.
        """
        value = fields.peek(key)
        if value is None:
            return UNSET
        if starts_with(value, b'"'):
            fields.ignore(key)
            return as_string(value, fields.at(key))
        if not _holds_blocks(value, fields, key):
            fields.ignore(key)
            fields.notes.add_fix("result_as_text", fields.at(key), before=bytes(value))
            return bytes(value).decode()
        return [block for block, _ in self._read(fields, key, is_result=True) if isinstance(block, INNER)]

    def _repair_inner(self, fields: Fields) -> list[Placed]:
        kind, notes = kind_named(fields), fields.notes
        fields.notes = attempt = notes.attempt()
        placed = self._repair_part(fields)
        if not all(isinstance(block, INNER) for block, _ in placed):
            return [(Unknown(kind=kind, raw=Raw(fields.whole)), fields.path)]
        notes.fixes += attempt.fixes
        return placed

    def _read(self, fields: Fields, key: str, *, is_result: bool = False) -> list[Placed]:
        repairer = self._repair_inner if is_result else self._repair_part
        path, notes, value = fields.at(key), fields.notes, fields.peek(key)
        objects = fields.objects(key)
        fields.ignore(key)
        if value is None:
            return []
        if starts_with(value, b"{"):
            notes.add_fix("content_wrapped", path)
            return repairer(Fields(value, path, notes))
        if not starts_with(value, b"["):
            return [self._plain(value, path, notes)]
        items = as_list(value, path)
        valid = {} if is_result else self._read_valid_parts(items, objects, path)
        placed: list[Placed] = []
        for i, item in enumerate(items):
            place = f"{path}.{i}"
            if i in valid:
                placed += valid[i]
            elif objects[i] is not None:
                placed += repairer(Fields(item, place, notes, members=objects[i]))
            elif starts_with(item, b"[") or starts_with(item, b"n"):
                raise wrong_type(place, "a block or a string", item)
            else:
                placed.append(self._plain(item, place, notes))
        return placed

    def _read_valid_parts(
        self, items: Sequence[Raw], objects: Sequence[Mapping[str, Raw] | None], path: str
    ) -> dict[int, list[Placed]]:
        """The blocks of each part that is valid, in few decodes, by its index in the content at a path.

        A part that does not fit is left out and the others are decoded again; where many do not, none is read here.
        """
        left = [at for at, members in enumerate(objects) if members is not None and self._is_declared(members)]
        # A single part is repaired as quickly.
        for _ in range(MISFITS + 1 if len(items) > 1 and left else 0):
            try:
                parts = self._list.decode(b"[%b]" % b",".join([items[at] for at in left]))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                misfit = _INDEX.search(str(error))
                if misfit is None:
                    return {}
                del left[int(misfit[1])]
                continue
            read = ((at, self._valid_blocks(part, f"{path}.{at}")) for at, part in zip(left, parts, strict=True))
            return {at: placed for at, placed in read if placed is not None}
        return {}

    def _is_declared(self, members: Mapping[str, Raw]) -> bool:
        declared = members_of(members.get("type"), self._declared)
        return declared is not None and members.keys() <= declared.keys()


def _holds_blocks(value: Raw, fields: Fields, key: str) -> bool:
    """Return True if a result is made of blocks, and not some tool's own JSON."""
    if starts_with(value, b"{"):
        return as_kind(as_object(value, "").get("type")) in RESULT_BLOCKS
    if not starts_with(value, b"["):
        return False
    objects = fields.objects(key)
    if not all(members is None or as_kind(members.get("type")) for members in objects):
        return False
    return None not in objects or all(starts_with(item, b'"') or starts_with(item, b"{") for item in as_list(value, ""))


def placed_turn(
    role: Role,
    placed: Sequence[Placed],
    index: int,
    root: Literal["messages", "input", "contents"] = "messages",
    *,
    turn_id: str | None = None,
    own: Own | UnsetType = UNSET,
    ids_made: bool = False,
) -> Turn:
    blocks, paths = zip(*placed, strict=True) if placed else ((), ())
    return Turn(role=role, blocks=blocks, index=index, id=turn_id, paths=paths, root=root, own=own, ids_made=ids_made)


def kind_named(fields: Fields) -> str:
    """The type that a block names, ``""`` where it names none."""
    return as_kind(fields.peek("type"))


def as_kind(value: Raw | None) -> str:
    return "" if value is None or not starts_with(value, b'"') else as_string(value, "")


def tag_of(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)


@cache
def declared_in(kind: Any) -> Declared:  # noqa: ANN401  a type, or a union of types
    found: Declared = {}
    for each in _kinds_of(kind):
        if isinstance(each, type) and issubclass(each, Struct):
            tag = each.__struct_config__.tag
            members = {field.encode_name: _declared_within(field.type) for field in structs.fields(each)}
            if tag is not None:
                members["type"] = None
            found[b"" if tag is None else msgspec.json.encode(tag)] = members
    return found


def members_of(kind: Raw | None, declared: Declared) -> dict[str, Any] | None:
    """Return the declared members of the objects of a type, or of any object if types do not distinguish them."""
    return declared.get(b"" if kind is None else bytes(kind)) or declared.get(b"")


def _declared_within(kind: Any) -> Declared | None:  # noqa: ANN401  a type, or a union of types
    items = (get_args(each)[0] for each in _kinds_of(kind) if get_origin(each) in (tuple, list))
    return declared_in(next(items, kind)) or None


def _kinds_of(kind: Any) -> Sequence[Any]:  # noqa: ANN401  a type, or a union of types
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


@cache
def _compiled(kind: Any) -> tuple[msgspec.json.Decoder[Any], Declared]:  # noqa: ANN401  a type, or a union of types
    return msgspec.json.Decoder(GenericAlias(tuple, (kind, ...))), declared_in(kind)
