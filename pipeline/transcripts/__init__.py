"""Repair of the files in which agent programs keep their sessions, each in its own shape (``reknit repair``).

``lines`` is a file whose unchanged lines keep their bytes. ``claude_code``, ``codex`` and ``gemini_chat`` repair one
program's lines each, and change only damage from which a program cannot resume. Every change is a fix with the number
of its line. A call at the end of a file has no result because the program was ended; each program knows that, so such a
call stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.providers.claude_cli.reader import is_transcript
from reknit.pipeline.providers.codex_cli.reader import is_rollout
from reknit.pipeline.providers.gemini_cli.reader import is_chat
from reknit.pipeline.transcripts import claude_code, codex, gemini_chat
from reknit.pipeline.transcripts.changes import Changes
from reknit.pipeline.transcripts.lines import TranscriptLines

_REPAIRS: Final[Mapping[str, Callable[[TranscriptLines, Changes, str, str], None]]] = MappingProxyType(
    {"Claude Code": claude_code.repair, "Codex": codex.repair, "Gemini CLI": gemini_chat.repair}
)


class RepairedTranscript(Struct, frozen=True):
    """The result for a file.

    Attributes:
        program: that keeps the file.
        data: the repaired file; the same bytes if there is no fix.
        fixes: every change; a path is ``lines.N`` and what is within, with N counted from 0 in the given file.
    """

    program: str
    data: bytes
    fixes: tuple[Fix, ...]


def repair_transcript(data: bytes, name: str = "", version: str = "") -> RepairedTranscript:
    """Repair a program's session file.

    Args:
        data: the file.
        name: the file's name. Codex has the thread's id in it.
        version: of the program, where versions differ.

    Raises:
        InputError: ``unknown_shape``: it is no session file of a known program.
    """
    program = program_of(data, name)
    lines, changes = TranscriptLines(data), Changes()
    _REPAIRS[program](lines, changes, name, version)
    return RepairedTranscript(program, lines.encode(), tuple(changes.fixes))


def program_of(data: bytes, name: str = "") -> str:
    """Return the program that keeps a file.

    Raises:
        InputError: ``unknown_shape``: none that is known.
    """
    # The first line of a rollout may be the damaged one; its name has a form of its own.
    if is_rollout(data) or codex.thread_of(name):
        return "Codex"
    if is_chat(data):
        return "Gemini CLI"
    if is_transcript(data):
        return "Claude Code"
    raise InputError(
        "unknown_shape",
        "expected a session file of Claude Code (projects/…/*.jsonl), Codex (rollout-*.jsonl) or "
        "Gemini CLI (chats/session-*)",
    )
