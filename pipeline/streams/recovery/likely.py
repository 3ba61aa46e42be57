"""Guess whose events an input has: the source whose decoder recognises most of them."""

from __future__ import annotations

from typing import Final

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.registry import SOURCES
from reknit.pipeline.streams.recovery.diagnosis import END_OF_INPUT
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentError, AgentUnrecognized, TurnDiagnosis

# A guess needs no more than the beginning of an input.
LOOKED_AT_BYTES: Final = 1 << 18


def likely_source(data: bytes, named: str) -> str:
    """Find the source that recognises a larger share of the input than the named one.

    Args:
        data: the beginning of the input; at most ``LOOKED_AT_BYTES`` bytes are looked at.
        named: the source that the input was read as.

    Returns:
        Its name, or "" where no source recognises more than the named one.
    """
    begins = data[:LOOKED_AT_BYTES]
    # A line that the bound cuts would be unrecognised by every source.
    whole = begins[: begins.rfind(b"\n") + 1] or begins
    shares = {name: _recognised_share(whole, name) for name in SOURCES}
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] > shares[named] else ""


def _recognised_share(data: bytes, source: str) -> float:
    """Return the share of items that result from recognised events, 0 to 1."""
    recovery = Recovery(source)
    try:
        items = [*recovery.feed(data, framing="bytes"), *recovery.end_run(END_OF_INPUT)]
    except ReknitError:
        return 0.0
    known = sum(not isinstance(item, AgentUnrecognized | AgentError | TurnDiagnosis) for item in items)
    return known / len(items) if items else 0.0
