"""What the fold over a request's messages knows between two of them."""

from __future__ import annotations

from msgspec import Struct

from pipeline.rules.base import Seen
from pipeline.rules.models import Converse


class State(Struct, frozen=True):
    """What the rules know between two messages. Neighbours of one role make a run.

    Attributes:
        family: the model's.
        tools: the request has a toolConfig.
        prompt: the request fills a prompt of the service's own, and may be without messages.
        role: whose run it is; "" before the first message.
        run_at: the first message of the run.
        calls: the ids called in the last assistant run.
        results: the ids answered in the user run after it, in order.
        ids: all ids called before that assistant run.
        documents: the names of all documents.
        tool_blocks: there was a call or a result.
    """

    family: Converse
    tools: bool = False
    prompt: bool = False
    role: str = ""
    run_at: int = 0
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    ids: Seen = Seen()
    documents: Seen = Seen()
    tool_blocks: bool = False
