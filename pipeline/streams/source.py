"""The description of a source: whose provider events a stream has, and what holds for them.

Code that depends on the kind of a source reads its description, never its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from reknit.pipeline.providers.cascade.stream.speech import Speech
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


BY_REASON: Final = (MessageDelta, MessageStopped)
"""``final`` of a source that may send only token counts or ``[DONE]`` after the stop reason."""
BY_RESULT: Final = (RunResult,)
"""``final`` of an agent program: its run has a result."""
