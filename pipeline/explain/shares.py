"""What became of requests that their provider had accepted, as last measured over recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct


class Shares(Struct, frozen=True, kw_only=True):
    """The requests of one provider, sent back to it.

    Attributes:
        provider: whose traffic it is.
        accepted: how many requests were recorded accepted.
        mended: in how many of them something was mended without a loss.
        codes: in how many each fix was made.
        harmed: the ids of those in which something was lost, refused, or changed without a fix, each with the reason.
    """

    provider: str
    accepted: int
    mended: int
    codes: dict[str, int]
    harmed: dict[str, str]


SHARES_FILE: Final = Path(__file__).with_name("shares.jsonl")
SHARES: Final = tuple(msgspec.json.decode(line, type=Shares) for line in SHARES_FILE.read_bytes().splitlines())
