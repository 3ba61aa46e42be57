"""One pass over decoded messages, a step of the fold: messages here, their blocks in ``blocks``, order in ``turns``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET

from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.blocks import JUDGES, Place
from pipeline.rules.anthropic.state import State
from pipeline.rules.anthropic.wire import Block, Message, Text
from pipeline.rules.base import Violation


def walk(
    state: State, messages: Iterable[Message | None], chars: int = 0, size: int = 0
) -> tuple[State, list[Violation]]:
    """Judge decoded messages, whose text has so many characters and bytes.

    None stands for a message that could not be read and was reported already.
    """
    found: list[Violation] = []
    place = Place(state, found)
    index, last, last_at = state.index, state.last, state.last_at
    hollow = last is not None and _is_hollow(last)
    for message in messages:
        if message is not None:
            content = message.content
            if hollow:
                found.append(rules.EMPTY_MESSAGE.broken(f"messages.{last_at}"))
                hollow = False
            if message.role != place.role:
                place.enter(message, index, last, last_at)
            elif message.role != "system":
                found.append(rules.ALTERNATE.broken(f"messages.{index}", role=message.role))
            if type(content) is list and content:
                _judge_blocks(place, index, content)
            else:
                place.sealed = True
                if not content or (type(content) is str and content.isspace()):
                    found += _judge_empty(message, index)
                    hollow = _is_hollow(message)
            last, last_at = message, index
        index += 1
    run, ids = place.settle()
    after = msgspec.structs.replace(
        state,
        index=index,
        chars=state.chars + chars,
        bytes=state.bytes + size,
        markers=place.markers,
        images=place.images,
        wide=place.wide,
        tool_blocks=place.tool_blocks,
        ids=ids,
        run=run,
        last=last,
        last_at=last_at,
    )
    return after, found


def _judge_blocks(place: Place, index: int, blocks: Sequence[Block]) -> None:
    at = 0
    for block in blocks:
        # Most blocks are text that breaks nothing; the rest goes to its judge.
        if type(block) is Text and block.text and not block.text.isspace() and block.cache_control is None:
            place.sealed = True
        else:
            place.index, place.blocks = index, blocks
            JUDGES[type(block)](place, block, at)
        at += 1  # noqa: SIM113 - enumerate would make a tuple a block
    if place.calls_here:
        place.end_calls()


def _is_hollow(message: Message) -> bool:
    """Tell an assistant message with empty content, which only the last message of a request may have."""
    return message.role == "assistant" and not message.content and message.content is not UNSET


def _judge_empty(message: Message, index: int) -> list[Violation]:
    """Judge a message whose content is missing, empty, or a string of whitespace."""
    path = f"messages.{index}"
    if message.content is UNSET:
        return [] if message.role == "system" else [rules.SHAPE.broken(f"{path}.content", words="Field required")]
    if message.content:
        return [rules.BLANK_TEXT.broken(f"{path}.content", where="messages")]
    return [] if message.role == "assistant" else [rules.EMPTY_MESSAGE.broken(path)]
