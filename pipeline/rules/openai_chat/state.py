"""What the fold over a chat's messages knows between two messages. Every part is a value."""

from __future__ import annotations

from msgspec import Struct

from pipeline.rules.models import UNKNOWN_CHAT, ChatFamily


class Head(Struct, frozen=True):
    """What the rules on messages need to know of the rest of the request.

    ``thinking`` is the ``type`` of the parameter that DeepSeek and Kimi have, "" where it is absent.
    """

    family: ChatFamily = UNKNOWN_CHAT
    thinking: str = ""


class State(Struct, frozen=True):
    """Where calls and their tool messages stand.

    Attributes:
        calls: the ids that the last assistant message called, and that no other message closed since; empty where
            there are none.
        asked_at: that message's index.
        answered: those of ``calls`` that a tool message answered.
    """

    head: Head = Head()
    calls: tuple[str, ...] = ()
    asked_at: int = 0
    answered: frozenset[str] = frozenset()
