"""A candidate of Gemini's as it grows: its parts as blocks, and with them what is said beside its words.

Words of one kind go on from chunk to chunk; a call comes whole, or in pieces. A signature is a thinking
block without words in front of the part that it seals, as in ``history.readers.gemini``.

Sources of an answer (grounding, pages that it read, citations) stand on the candidate, with the words, behind them in a
chunk that has none, or before them. Most chunks say nothing (``{}``). Recorded streams tell it once; where several
chunks do, one that goes on from what was told takes its place, and anything else is added to it. Gemini does not take
any of it back, so it is noted aside.

The arguments of a call that streams come in pieces, each of which names a leaf by its path (``$.operations[0].price``)
and holds its value, or a part of it if it is a string that goes on. They come in the order in which the object is
written, so its text only grows: what is open is closed down to where the next path branches off, and opened again along
it.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.history.calls import made_id
from pipeline.streams.events import Answer, BlockWriter
from pipeline.streams.fields import Fields, read_object
from pipeline.streams.gemini.wire import Candidate, FunctionCall, Part, PartialArg, beside, finish_reason, is_annotated

Path: TypeAlias = list[str | int]

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


class Arguments(Struct):
    """What is open: the path of the last leaf, whether it is a string that goes on, and whether anything was written.

    ``written`` are the paths of all leaves and of all objects and lists that were closed, as text.
    """

    path: Path = []
    quoted: bool = False
    begun: bool = False
    written: set[str] = set()

    def write_piece(self, piece: PartialArg) -> str | None:
        """The JSON text that a piece adds; None where its path leads back into what was closed, or is no path."""
        path = steps(piece.json_path)
        if path is None:
            return None
        if self.quoted and path == self.path:
            return _escaped(piece.string or "") + self._pause(piece)
        opening = self._open_path(path)
        if opening is None:
            return None
        if piece.string is not None:
            self.quoted = True
            return f'{opening}"{_escaped(piece.string)}{self._pause(piece)}'
        if isinstance(piece.number, Raw):
            return opening + bytes(piece.number).decode()
        return opening + ("null" if piece.boolean is None else str(piece.boolean).lower())

    def close_object(self) -> str:
        if not self.begun:
            return "{}"
        quote = '"' if self.quoted else ""
        ends = "".join("]" if isinstance(step, int) else "}" for step in reversed(self.path))
        self.path, self.quoted = [], False
        return quote + ends

    def _pause(self, piece: PartialArg) -> str:
        self.quoted = bool(piece.goes_on)
        return "" if self.quoted else '"'

    def _open_path(self, path: Path) -> str | None:
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


# Members of a part that do not say what it is.
_ABOUT_PARTS: Final = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})
# Members that a block has in the canonical form: what a part has by the same name is noted under another.
_TAKEN: Final = frozenset({"type", "text", "thinking", "signature", "id", "name", "input", "incomplete", "issuer"})
_EMPTY: Final = frozenset({b"{}", b"[]", b"null"})
_list = msgspec.json.Decoder(list[Raw])


class Growing(Answer):
    """A candidate as it grows: an answer, and the arguments of the call that goes on.

    ``text`` is the block of its last text, ``noted`` what was said beside that, or beside none yet. ``reason`` and
    ``words`` are why it finished.
    """

    call: Arguments | None = None
    finished: bool = False
    reason: str = ""
    words: str = ""
    text: int = -1
    noted: dict[str, bytes] = msgspec.field(default_factory=dict)


class CandidateWriter(BlockWriter[Growing]):
    __slots__ = ()

    def take_candidate(self, candidate: Candidate[Part], *, of_vertex: bool, over: bool) -> None:
        """The next piece of the candidate; ``over`` says that the message had ended before this chunk."""
        growing = self.answer
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._take_part(part, over=over)
        if is_annotated(candidate):
            for name, value in beside(candidate).items():
                self._note_text(name, value, over=over)
        if candidate.finish_reason:
            self._end_words_and_call()
            growing.finished = True
            growing.reason = finish_reason(candidate.finish_reason, of_vertex=of_vertex)
            growing.words = candidate.finish_message or ""

    def _take_part(self, part: Part, *, over: bool) -> None:
        growing, call = self.answer, part.function_call
        about = part.about if isinstance(part.about, dict) else {}
        if call is not None and growing.call is not None and not call.name:
            self._continue_call(growing.call, call)
            self._note_part(growing.block, about, told_before=True)
            return
        if part.thought_signature:
            self._end_words_and_call()
            block = self.begin_block("thinking")
            self.add_delta(block, "signature_delta", part.thought_signature)
            self.end_block(block)
        if part.own is not UNSET:
            # What only Gemini understands, such as code that it ran; its type is the name of its member.
            self._end_words_and_call()
            self.end_block(
                self.begin_own_block(next((name for name in part.own if name not in _ABOUT_PARTS), ""), part.own)
            )
        elif call is not None:
            self._begin_call(call)
            self._note_part(growing.block, about)
        elif part.text:
            self._add_words("thinking" if part.thought else "text", part.text)
            self._note_part(growing.block, about, told_before=True)
        else:
            for name, value in about.items():
                self._note_text(name, value, over=over)

    def _end_words_and_call(self) -> None:
        """End what goes on; a call that should have gone on stays without its end."""
        self.end_words()
        self.answer.call = None

    def _add_words(self, kind: str, words: str) -> None:
        growing = self.answer
        if growing.kind != kind:
            growing.call = None
            self.open_words(kind, kind)
            if kind == "text":
                waiting = growing.noted if growing.text < 0 else {}
                growing.text, growing.noted = growing.block, waiting
                for name, value in waiting.items():
                    self.note_member(growing.block, name, Raw(value), aside=True)
        self.add_delta(growing.block, f"{kind}_delta", words)

    # -- calls --------------------------------------------------------------------------------------------------

    def _begin_call(self, call: FunctionCall) -> None:
        self._end_words_and_call()
        name = call.name or ""
        block = self.answer.block = self.begin_block("tool_use", tool_id=call.id or made_id(name), name=name)
        if call.will_continue or call.partial_args:
            self.answer.call = Arguments()
            self._continue_call(self.answer.call, call)
            return
        if isinstance(call.args, Raw) and bytes(call.args) != b"null":
            self.add_delta(block, "input_json_delta", bytes(call.args).decode())
        self.end_block(block)

    def _continue_call(self, arguments: Arguments, call: FunctionCall) -> None:
        """More of a call's arguments. One that writes where was written before is passed on, and the call not whole."""
        block = self.answer.block
        for piece in call.partial_args or ():
            text = arguments.write_piece(piece)
            if text is None:
                self.add_raw_delta(block, "partial_args", Raw(msgspec.json.encode(piece)))
                self.answer.call = None
                return
            self.add_delta(block, "input_json_delta", text)
        if not call.will_continue:
            self.add_delta(block, "input_json_delta", arguments.close_object())
            self.end_block(block)
            self.answer.call = None

    # -- beside the words ---------------------------------------------------------------------------------------

    def _note_part(self, block: int, about: Fields, *, told_before: bool = False) -> None:
        """Note what stands in a part beside what is known of it.

        ``told_before``: chunks before may have said something else of this block. The note holds the last one, so each
        of them is a delta, too.
        """
        if told_before:
            for name, value in about.items():
                self.add_raw_delta(block, name, Raw(msgspec.json.encode({name: value})))
        for name, value in about.items():
            self.note_member(block, f"part.{name}" if name in _TAKEN else name, value, aside=True)

    def _note_text(self, name: str, value: Raw, *, over: bool) -> None:
        """Note what was said beside a text with it; where there is none yet, with the first one that comes.

        Where the message is ``over``, its items are complete: the decoder passes it on.
        """
        growing = self.answer
        noted = growing.noted[name] = added(growing.noted.get(name), bytes(value))
        if growing.text >= 0 and not over:
            self.note_member(growing.text, name, Raw(noted), aside=True)


def added(before: bytes | None, told: bytes) -> bytes:
    """What was told before and what is told now, as one: objects by their members, lists by their elements."""
    if before is None or before == told:
        return told
    try:
        old, new = read_object(before), read_object(told)
    except msgspec.DecodeError:
        return _added_to_list(before, told)
    joined = {name: Raw(added(bytes(old[name]), bytes(new[name]))) for name in old.keys() & new.keys()}
    return msgspec.json.encode(old | new | joined)


def _added_to_list(before: bytes, told: bytes) -> bytes:
    try:
        old, new = list(map(bytes, _list.decode(before))), list(map(bytes, _list.decode(told)))
    except msgspec.DecodeError:
        return before if told in _EMPTY else told
    known = set(old)
    more = new[len(old) :] if new[: len(old)] == old else [value for value in new if value not in known]
    return b"[%b]" % b",".join([*old, *more])
