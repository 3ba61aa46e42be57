"""When a request is sent and what stands beside it: ids, digests, what it supersedes, what was mended for it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import msgspec

from pipeline._version import __version__
from pipeline.errors import ReknitError
from pipeline.fixes import Fix
from pipeline.rules import Violation
from pipeline.session import Normalized
from pipeline.stages.base import Output, Record, Result
from pipeline.stages.dead_letters import dead_letter
from pipeline.stages.turn_state import Entry, Sent
from topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_REQUESTS
from topics import headers as names
from topics.records import FixRecord

Tally = Counter[tuple[str, ...]]


class RejectedError(ReknitError):
    """The history cannot be mended into what the target accepts. The message is the provider's own."""

    fault = "caller"

    def __init__(self, target: str, violation: Violation) -> None:
        super().__init__("rejected", f"{target}: {violation.message}", path=violation.path, rule=violation.rule)
