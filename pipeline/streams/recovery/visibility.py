"""Whether a result's text is on the screen already."""

from __future__ import annotations

from msgspec import Struct

from pipeline.streams.recovery.attempts import Message


class Shown(Struct, array_like=True):
    """The text that a message of the main turn left on the screen, block by block."""

    message_id: str | None
    streamed: bool
    texts: list[str]

    @classmethod
    def of(cls, message: Message) -> Shown | None:
        """What a message shows; None if nothing of it is left."""
        blocks = message.surviving()
        if not blocks:
            return None
        return cls(message.id, message.attempt, [block.text() for block in blocks if block.kind == "text"])


def is_unseen(result: str | None, shown: list[Shown], begun: tuple[str, ...] | None) -> bool:
    """Whether the result has text that the newest message it can be about does not show.

    ``shown`` is the newest message first. Thinking, notices and sub-agents are not in it. Whitespace does not count,
    and a part of the text is enough, for a result can be just a part of a message. A result that names the messages
    that began in it is not about a later one.
    """
    needle = " ".join((result or "").split())
    if not needle:
        return False
    if begun is not None and len(shown) > 1 and shown[0].streamed and shown[0].message_id not in begun:
        shown = shown[1:]
    if not shown:
        return True
    # A result joins the blocks of a message with nothing, or with a blank line.
    return not any(needle in " ".join(glue.join(shown[0].texts).split()) for glue in ("\n", ""))
