"""The sources of provider events, by name: each is a decoder and what holds for it. A new one is a line here.

Whatever asks for a kind of source asks its entry, never its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from pipeline.errors import UnknownTargetError, expected_one_of
from pipeline.streams.anthropic import Anthropic
from pipeline.streams.bedrock_converse import BedrockConverse
from pipeline.streams.cascade import Cascade
from pipeline.streams.cascade.speech import Speech
from pipeline.streams.claude_cli import ClaudeCli
from pipeline.streams.codex_cli import CodexCli
from pipeline.streams.decoder import Decoder
from pipeline.streams.gemini import Gemini
from pipeline.streams.gemini_cli import GeminiCli
from pipeline.streams.openai_chat import OpenAiChat, Vllm
from pipeline.streams.openai_responses import OpenAiResponses

# What proves a block: a complete message that holds it, its own stop and its message's stop reason, or that it came.
Proof: TypeAlias = Literal["message", "stop", "block"]


class RewritingDecoder(Decoder, Protocol):
    """What a source that rewrites words has beside."""

    speech: Speech


class TranscribedDecoder(Decoder, Protocol):
    """What a source whose program keeps a transcript has beside.

    ``began`` is when the run's first line was written, by the program's clock, and ``session`` what it calls itself;
    each ``""`` where that is not known.
    """

    @property
    def began(self) -> str: ...

    @property
    def session(self) -> str: ...


class Source(Struct, frozen=True, kw_only=True):
    """Whose events a stream has.

    Attributes:
        name: what the header ``source`` and ``--from`` say.
        decoder: makes a decoder for a session (see ``decoder``).
        prefix: begins the ids of the source's items. It never changes, for ids are kept.
        issuer: the provider's name on reasoning in the session's log; ``""`` where complete messages tell all there is.
        confirmed_by: what proves a block; ``message`` is for agent programs that tell which of several attempts they
            took, ``block`` for those that tell nothing but whole blocks and keep them all, ``stop`` for everything
            else.
        self_driving: an agent program that runs its tools itself and goes on by itself, so that its recorded turns
            never ask for a request.
        rewrites: the decoder changes words, and is told by ``speech`` into what. Its records are fed one by one, so
            that each fix names the record it is from.
        transcript: what the header ``source`` says of the lines of its program's own transcript, which tell more of a
            run than its stream; ``""`` where there is none, or where it tells nothing more.
    """

    name: str
    decoder: Callable[[], Decoder]
    prefix: str
    issuer: str = ""
    confirmed_by: Proof = "stop"
    self_driving: bool = False
    rewrites: bool = False
    transcript: str = ""


_ALL: Final = (
    Source(name="claude-cli", decoder=ClaudeCli, prefix="cc", confirmed_by="message", self_driving=True),
    Source(name="codex-cli", decoder=CodexCli, prefix="codex", confirmed_by="block", self_driving=True),
    Source(
        name="gemini-cli",
        decoder=GeminiCli,
        prefix="gemini-cli",
        self_driving=True,
        transcript="gemini-cli-transcript",
    ),
    Source(name="anthropic", decoder=Anthropic, prefix="an", issuer="anthropic"),
    Source(name="bedrock-converse", decoder=BedrockConverse, prefix="bc", issuer="bedrock-converse"),
    Source(name="cascade", decoder=Cascade, prefix="cascade", issuer="cascade", rewrites=True),
    Source(name="gemini", decoder=Gemini, prefix="gemini", issuer="gemini"),
    Source(name="openai-chat", decoder=OpenAiChat, prefix="chat", issuer=OpenAiChat.issuer),
    Source(name="openai-responses", decoder=OpenAiResponses, prefix="resp", issuer="openai-responses"),
    Source(name="vllm", decoder=Vllm, prefix="vllm", issuer=Vllm.issuer),
)
SOURCES: Final[dict[str, Source]] = {source.name: source for source in _ALL}


def source_of_transcript(name: str) -> Source | None:
    """The source whose program's transcript has this name; None where no transcript has."""
    return next((source for source in SOURCES.values() if source.transcript == name), None) if name else None


def find_source(name: str) -> Source:
    """The source of this name.

    Raises:
        UnknownTargetError: there is no such source.
    """
    found = SOURCES.get(name)
    if found is None:
        raise UnknownTargetError("unknown_source", expected_one_of(SOURCES, name))
    return found
