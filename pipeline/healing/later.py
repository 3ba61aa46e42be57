"""How the repair of each row continues in a session: in later requests, without a place, and at its widest.

Most repairs take single values out, which later requests leave out by their digests. The others state a fact of the
model or of the connection, and run again for each later request.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from reknit.pipeline.healing import chat, claude, converse, gemini, items, json_word, media, parameters
from reknit.pipeline.healing.body import CLAUDE, GEMINI, RESPONSES, Known, RefusedBody
from reknit.pipeline.healing.table import HEALINGS, IN_SESSIONS, Repair


class Later(Struct, frozen=True, kw_only=True):
    """The use of a row in a session, besides its repair.

    Attributes:
        again: runs for each later request to the same model.
        at_first: runs in its place until the user speaks.
        is_of_target: both run for each model of the target.
        has_values: later requests leave out the single values too.
        is_relative: the later messages decide about the parts that it leaves out.
        by_kind: the repair where the sentence names a place, and the request that it is of is not known.
        widest: the last repair of a user turn, after narrower ones were refused.
    """

    again: Repair | None = None
    at_first: Repair | None = None
    is_of_target: bool = False
    has_values: bool = True
    is_relative: bool = False
    by_kind: Repair | None = None
    widest: Repair | None = None


def _again(repair: Repair, *, at_first: Repair | None = None, is_of_target: bool = False) -> Later:
    is_relative = at_first is not None
    return Later(again=repair, at_first=at_first, is_of_target=is_of_target, has_values=False, is_relative=is_relative)


_ALL_THINKING: Final = Later(by_kind=claude.drop_every, widest=claude.drop_every)
_ALL_ITEMS: Final = Later(widest=items.drop_all)
_ALL_MEDIA: Final = Later(by_kind=media.stub_since_answer, widest=media.stub_every)

LATER: Final[Mapping[str, Later]] = MappingProxyType(
    {
        "prefix_bound": _ALL_THINKING,
        "thinking_signature": _ALL_THINKING,
        "latest_turn_modified": _ALL_THINKING,
        "thinking_unsigned": Later(again=claude.drop_unsigned, by_kind=claude.drop_unsigned, widest=claude.drop_every),
        "thinking_in_final_message": _ALL_THINKING,
        "thinking_wanted_back": _again(claude.disable_in_loop, at_first=chat.disable_thinking),
        "loop_without_thinking": _again(claude.switch_off_in_loop, at_first=claude.switch_off),
        "forced_tool": _again(claude.switch_off_if_forced),
        "search_result": Later(by_kind=claude.write_searches, widest=claude.write_searches),
        "tool_reference": _again(claude.drop_undeclared, is_of_target=True),
        "encrypted_item": _ALL_ITEMS,
        "encrypted_excerpt": _ALL_ITEMS,
        "item_not_found": _again(items.drop_unstored, is_of_target=True),
        "connection_ids": _again(items.drop_connection_ids, is_of_target=True),
        "reasoning_alone": _ALL_ITEMS,
        "reasoning_missing": _ALL_ITEMS,
        "item_repeated": _again(items.drop_repeated, is_of_target=True),
        "image_at_place": _ALL_MEDIA,
        "image_unprocessable": _ALL_MEDIA,
        "image_count": Later(again=media.keep_newest, has_values=False, is_relative=True),
        "no_images": _again(media.stub_all),
        "tool_text": _again(media.join_tool_texts),
        "tool_text_param": _again(media.join_tool_texts),
        "gemini_unsigned": _again(gemini.sign_every),
        "deepseek_reasoning": _again(chat.disable_in_loop, at_first=chat.disable_thinking),
        "forced_tool_while_thinking": _again(chat.let_choose),
        "kimi_reasoning": _again(chat.add_empty_reasoning),
        "cache_points": _again(converse.drop_cache_points),
        "json_word": _again(json_word.ask_for_json, is_of_target=True),
        "deprecated": _again(parameters.leave_out),
        "one_value": _again(parameters.leave_out),
        "only_one": _again(parameters.leave_out),
        "temperature_with_thinking": _again(parameters.leave_out),
        "thinking_adaptive": _again(parameters.think_adaptively),
        "block_binding": _again(parameters.drop_binding),
        "max_tokens": _again(parameters.lower),
        "budget": _again(parameters.lower_budget),
        "effort": _again(parameters.nearest_effort),
        "effort_listed": _again(parameters.nearest_effort),
        "renamed": _again(parameters.rename),
        "unsupported": _again(parameters.leave_out),
        "below_minimum": _again(parameters.raise_to),
        "penalty": _again(parameters.leave_out_penalties),
        "chained": _again(items.drop_chain, is_of_target=True),
        "cache_gone": _again(gemini.drop_cache, is_of_target=True),
    }
)

_NONE: Final = Later()
_LOSSES: Final = {row.name: row.loss for row in (*IN_SESSIONS, *HEALINGS)}


def later_of(row: str) -> Later:
    """Return the use of a row in a session besides its repair; a row of another version's table has no use."""
    return LATER.get(row, _NONE)


def is_lossless(row: str) -> bool:
    """Return True if the model sees everything after a repair that it saw before."""
    return not _LOSSES.get(row, "unknown")


def drop_revoked(body: RefusedBody, known: Known) -> None:
    """Take out of a body what was revoked."""
    if body.target in CLAUDE:
        claude.drop_revoked(body, known)
    elif body.target in RESPONSES:
        items.drop_revoked(body, known)
    elif body.target in GEMINI:
        gemini.drop_revoked(body, known)
    media.drop_revoked(body, known)
