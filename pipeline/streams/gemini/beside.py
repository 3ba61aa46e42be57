"""What Gemini says beside an answer's words: its sources (grounding, pages that it read, citations).

It stands on the candidate, with the words, behind them in a chunk that has none, or before them. Most chunks say
nothing (``{}``). Recorded streams tell it once; where several chunks do, one that goes on from what was told takes its
place, and anything else is added to it.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw

from pipeline.streams.gemini.wire import Candidate, P

_EMPTY = frozenset({b"{}", b"[]", b"null"})
_fields = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])


def beside(candidate: Candidate[P]) -> dict[str, Raw]:
    """What a chunk says beside the words of a candidate, by the names that Gemini has for it."""
    if not is_annotated(candidate):
        return {}
    told = {
        "groundingMetadata": candidate.grounding_metadata,
        "urlContextMetadata": candidate.url_context_metadata,
        "citationMetadata": candidate.citation_metadata,
        "groundingAttributions": candidate.grounding_attributions,
    }
    return {name: value for name, value in told.items() if isinstance(value, Raw) and bytes(value) not in _EMPTY}


def is_annotated(candidate: Candidate[P]) -> bool:
    """Whether a chunk says more beside the words than the empty object that nearly every chunk of a search has."""
    others = candidate.url_context_metadata is candidate.citation_metadata is candidate.grounding_attributions is UNSET
    grounding = candidate.grounding_metadata
    return not others or (isinstance(grounding, Raw) and bytes(grounding) != b"{}")


def added(before: bytes | None, told: bytes) -> bytes:
    """What was told before and what is told now, as one: objects by their members, lists by their elements."""
    if before is None or before == told:
        return told
    try:
        old, new = _fields.decode(before), _fields.decode(told)
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
