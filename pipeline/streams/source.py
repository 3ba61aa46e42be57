"""The description of a source: everything that holds for its events.

Code that depends on the kind of a source reads its description, never its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.streams.decoder import Decoder
from reknit.pipeline.streams.events import Event, MessageDelta, MessageStopped, RunResult

# The proof of a block: a complete message that holds it, its own stop and its message's stop reason, or its arrival.
Proof: TypeAlias = Literal["message", "stop", "block"]


class RewritingDecoder(Decoder, Protocol):
    """The additional member of a source that rewrites words."""

    speech: OutputFilters


class TranscribedDecoder(Decoder, Protocol):
    """The additional members of a source whose program keeps a transcript.

    ``began`` is when the run's first line was written, by the program's clock, and ``session`` the program's name for
    it; each is ``""`` if unknown.
    """

    @property
    def began(self) -> str: ...

    @property
    def session(self) -> str: ...


class Source(Struct, frozen=True, kw_only=True):
    """The properties of a source.

    Attributes:
        name: the value of the header ``source`` and of ``--from``.
        decoder: creates a decoder for a session (see ``decoder``).
        prefix: begins the ids of the source's items. It never changes, because ids are stored.
        issuer: the provider's name on reasoning in the session's log; ``""`` if complete messages have everything.
        confirmed_by: what proves a block: ``message`` for agent programs that report which of several attempts they
            took, ``block`` for those that send whole blocks only and keep them all, ``stop`` for everything else.
        self_driving: an agent program that runs its tools itself and continues by itself, so its recorded turns never
            make a request due.
        rewrites: the decoder changes words, by the filters in ``speech``. Its records are fed one by one, so that each
            fix names its record.
        transcript: the value of the header ``source`` for lines of the program's own transcript, if that has more than
            its stream; otherwise ``""``.
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
