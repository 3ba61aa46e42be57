"""The sources of provider events, by name: each is a decoder and what holds for it. A new one is a line here.

Whatever asks for a kind of source asks its entry, never its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from reknit.pipeline.errors import UnknownTargetError, expected_one_of
from reknit.pipeline.providers.anthropic.stream import Anthropic
from reknit.pipeline.providers.bedrock_converse.stream import BedrockConverse
from reknit.pipeline.providers.cascade.stream import Cascade
from reknit.pipeline.providers.cascade.stream.speech import Speech
from reknit.pipeline.providers.claude_cli.stream import ClaudeCli
from reknit.pipeline.providers.codex_cli.stream import CodexCli
from reknit.pipeline.providers.gemini.stream import Gemini
from reknit.pipeline.providers.gemini_cli.stream import GeminiCli
from reknit.pipeline.providers.openai_chat.stream import OpenAiChat, Vllm
from reknit.pipeline.providers.openai_responses.stream import OpenAiResponses
from reknit.pipeline.streams.decoder import Decoder
from reknit.pipeline.streams.events import Event, MessageDelta, MessageStopped, RunResult

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
        final: common events that complete an answer; any of them suffices. An answer that ends without one was cut.
    """

    name: str
    decoder: Callable[[], Decoder]
    prefix: str
    issuer: str = ""
    confirmed_by: Proof = "stop"
    self_driving: bool = False
    rewrites: bool = False
    transcript: str = ""
    final: tuple[type[Event], ...] = (MessageStopped,)


# After the stop reason only token counts or `[DONE]` follow.
_BY_REASON: Final = (MessageDelta, MessageStopped)
_BY_RESULT: Final = (RunResult,)

_ALL: Final = (
    Source(
        name="claude-cli",
        decoder=ClaudeCli,
        prefix="cc",
        confirmed_by="message",
        self_driving=True,
        transcript="claude-cli-transcript",
        final=_BY_RESULT,
    ),
    Source(
        name="codex-cli", decoder=CodexCli, prefix="codex", confirmed_by="block", self_driving=True, final=_BY_RESULT
    ),
    Source(
        name="gemini-cli",
        decoder=GeminiCli,
        prefix="gemini-cli",
        self_driving=True,
        transcript="gemini-cli-transcript",
        final=_BY_RESULT,
    ),
    Source(name="anthropic", decoder=Anthropic, prefix="an", issuer="anthropic"),
    Source(name="bedrock-converse", decoder=BedrockConverse, prefix="bc", issuer="bedrock-converse", final=_BY_REASON),
    Source(name="cascade", decoder=Cascade, prefix="cascade", issuer="cascade", rewrites=True),
    Source(name="gemini", decoder=Gemini, prefix="gemini", issuer="gemini"),
    Source(name="openai-chat", decoder=OpenAiChat, prefix="chat", issuer=OpenAiChat.issuer, final=_BY_REASON),
    Source(name="openai-responses", decoder=OpenAiResponses, prefix="resp", issuer="openai-responses"),
    Source(name="vllm", decoder=Vllm, prefix="vllm", issuer=Vllm.issuer, final=_BY_REASON),
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
