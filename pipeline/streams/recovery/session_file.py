"""The Claude CLI's session file, which proves or disproves the doubtful blocks of a killed run.

A run that is killed before a message's stop leaves the message's complete blocks ``doubtful: kept``, and none of them
in the log. The program's session file (``~/.claude/projects/<folder>/<session>.jsonl``) has the blocks that it kept.
Its lines arrive as events of the same run, before or after the run's end. At the end of the file, or of the run if that
is later, blocks in the file are proven and recorded, with the results of their calls; the others are withdrawn. Nothing
else depends on the file, so recording never waits for it.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.providers.anthropic.stream.wire import whole_block
from reknit.pipeline.providers.claude_cli.lines import Line
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.framing import Tail, whole_lines
from reknit.pipeline.streams.recovery.attempts import withdraw_block
from reknit.pipeline.streams.recovery.memory import Memory
from reknit.pipeline.streams.recovery.message import Block, Message, likeness
from reknit.pipeline.streams.recovery.render import FinishedTurn, finished_turns, proven
from reknit.topics.items import Item

_LINE = msgspec.json.Decoder(Line)


class SessionFile(Struct):
    """The part of a session file that concerns one message.

    ``run`` is the run that ended last. ``held`` are digests of a message's id and a block, ``was_read`` whether a line
    was read.
    """

    run: str | None = None
    was_read: bool = False
    held: set[bytes] = set()
    tail: Tail = msgspec.field(default_factory=Tail)

    def feed(self, data: bytes, message: Message, *, framed: bool) -> None:
        """Take lines, or with ``framed`` bytes that may end inside one; ``message`` is the doubtful one."""
        if framed:
            data, _ = self.tail.push(data, whole_lines)
        elif self.tail.size:
            data = self.tail.flush() + b"\n" + data
        self._read(data, message)

    def _read(self, data: bytes, message: Message) -> None:
        for line in data.split(b"\n"):
            if not line or line.isspace():
                continue
            self.was_read = True
            try:
                found = _LINE.decode(line)
                blocks = msgspec.json.decode(found.message.content, type=list[Raw]) if found.message else []
            except (ValueError, RecursionError):
                continue  # a line of the program's own, or the last one of a program that was killed
            if found.type != "assistant" or found.is_sidechain or found.is_notice:
                continue
            if message.id is None or found.message_id == message.id:
                self.held |= {_mark(message.id, likeness(whole_block(read.own(raw)))) for raw in blocks}

    def settle(self, memory: Memory, issuer: str) -> tuple[list[Item], list[FinishedTurn]]:
        """Prove the blocks of the doubtful message that the file holds, and withdraw the others.

        Returns:
            The items of both, and the turns for the log; nothing if no line was read, or if no message is doubtful.
        """
        message = memory.doubted
        if message is None or not self.was_read:
            return [], []
        self._read(self.tail.flush(), message)
        items: list[Item] = []
        for block in message.surviving():
            if self._holds(message, block):
                block.doubtful = ""
                items += [] if block.unseen else [proven(block)]
            else:
                items += withdraw_block(block, "transcript")
        memory.doubted, message.unkept = None, False
        self.forget()
        return items, finished_turns(message, memory.ids.turns, memory.ids.prefix, issuer)

    def _holds(self, message: Message, block: Block) -> bool:
        return block.confirmed and _mark(message.id, block.likeness) in self.held

    def forget(self) -> None:
        self.was_read, self.held, self.tail = False, set(), Tail()


def _mark(message_id: str | None, likeness_of_block: bytes) -> bytes:
    name = (message_id or "").encode("utf-8", "replace")
    return hashlib.blake2b(name + b"\0" + likeness_of_block, digest_size=8).digest()
