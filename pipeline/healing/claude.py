"""Repairs of Claude's reasoning, searches and tool references, in the shapes of Anthropic and Converse."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from reknit.pipeline.healing.body import (
    CLAUDE,
    JsonObject,
    Known,
    RefusedBody,
    Revoked,
    digest_of,
    indexes_of,
    items_in,
    members_of,
    text_in,
)
from reknit.pipeline.healing.errors import Refusal
from reknit.pipeline.providers.anthropic.writer.blocks import refuses_bare_loop
from reknit.pipeline.targets.bound import is_prefix_bound
from reknit.pipeline.targets.signatures import UNKNOWN, form_of

Words = dict[str, str]
_REASONING: Final = ("thinking", "redacted_thinking")
_OF_MODEL: Final = "additionalModelRequestFields"
# Anthropic pads its base64 (openclaw/openclaw#97019).
_BASE64_GROUP: Final = 4


def is_reasoning(block: object) -> bool:
    members = members_of(block)
    return members.get("type") in _REASONING or "reasoningContent" in members


def drop_named(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop the named block of a closed turn; all reasoning of an open tool loop.

    The provider stops at the first block that it refuses, so blocks with the same signature, or with one of the same
    foreign form, go in the same step. Where the named place holds no reasoning, the sent message has other
    places: then all reasoning of that message goes, or of the last answer.
    """
    at, place = _named(body, words["path"])
    last = body.last_answer()
    if at == last and _is_open(body, last):
        _drop(body, range(_begin_of_loop(body, last), last + 1))
        if body.changes:
            _settle_loop(body)
        return
    if place < 0:
        _drop(body, [at if _has_reasoning(body, at) else last])
        return
    named = _content(body, at)[place]
    signature, form = _signature(named), _foreign_form(named)
    _drop(
        body,
        range(len(body.turns)),
        lambda turn, block_at, block: (
            (turn, block_at) == (at, place)
            or (signature != "" and _signature(block) == signature)
            or (form is not None and _foreign_form(block) == form)
        ),
    )


def drop_named_only(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop the named block alone."""
    at, place = _named(body, words["path"])
    _drop(body, [at], lambda _turn, block_at, _block: block_at == place)


def drop_from_named(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop the named block and all later reasoning: a change before it made all of them invalid."""
    at, place = _named(body, words["path"])
    first = 0 if at == body.last_answer() else place
    _drop(body, range(len(body.turns)), lambda turn, block_at, _: turn > at or (turn == at and block_at >= first))


def drop_of_last_answer(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Drop all reasoning of the last answer: all of it, or none, is accepted."""
    _drop(body, [body.last_answer()])


def drop_every(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Drop all reasoning of the history."""
    _drop(body, range(len(body.turns)))
    _settle_loop(body)


def drop_unsigned(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Drop all reasoning without a signature."""
    _drop(body, range(len(body.turns)), lambda _turn, _at, block: not _signature(block))


def disable_in_loop(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Switch thinking off while the open tool loop has a call without reasoning."""
    loop = _open_loop(body)
    is_bare = any(any(map(_calls, _content(body, at))) and not _has_reasoning(body, at) for at in loop)
    if is_bare and body.value.get("thinking") != {"type": "disabled"}:
        body.value["thinking"] = {"type": "disabled"}
        body.note("thinking", "disabled")


def switch_off_in_loop(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Leave ``thinking`` out while the last answer of an open tool loop does not begin with it."""
    loop = _open_loop(body)
    if loop and not is_reasoning(next(iter(_content(body, loop[-1])), None)):
        switch_off(body, words, refusal)


def _open_loop(body: RefusedBody) -> range:
    """Return the messages of the tool loop that waits for the model; an empty range without such a loop."""
    last = body.last_answer()
    return range(_begin_of_loop(body, last), last + 1) if last >= 0 and _is_open(body, last) else range(0)


def switch_off_if_forced(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Leave the parameter ``thinking`` out of a request that forces a tool."""
    if members_of(body.value.get("tool_choice")).get("type") in ("tool", "any"):
        switch_off(body, words, refusal)


def drop_undeclared(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Drop references to a tool while it is not declared."""
    if all(members_of(tool).get("name") != words["name"] for tool in items_in(body.value.get("tools"))):
        drop_reference(body, words, refusal)


def drop_revoked(body: RefusedBody, known: Known) -> None:
    """Drop what was revoked: reasoning, and the encrypted results of searches."""
    _drop(
        body,
        range(len(body.turns)),
        lambda _turn, _at, block: ("reasoning", _reasoning_digest(block)) in known,
    )
    if body.changes:
        _settle_loop(body)
    for at in range(len(body.turns)):
        for block in _content(body, at):
            if _is_search(block) and ("search", _search_digest(block)) in known:
                _write_search(body, at, block)


def _settle_loop(body: RefusedBody) -> None:
    """Leave ``thinking`` out while an open tool loop has no reasoning, for models that refuse such a loop with it."""
    if not refuses_bare_loop(body.model):
        return
    loop = _open_loop(body)
    if loop and not any(_has_reasoning(body, at) for at in loop):
        _leave_thinking_out(body, "left out: this model refuses a tool loop that does not begin with it")


def _signature(block: JsonObject) -> str:
    """Return what the provider verifies of a block."""
    converse = members_of(block.get("reasoningContent"))
    inner = members_of(converse.get("reasoningText"))
    verified = block.get("signature") or block.get("data") or inner.get("signature")
    return text_in(verified or converse.get("redactedContent"))


def _reasoning_digest(block: JsonObject) -> bytes:
    return digest_of(_signature(block) or block)


def drop_unbound(body: RefusedBody) -> None:
    """Drop the reasoning after a changed message, on models whose reasoning is bound to all that came before it."""
    if body.target not in CLAUDE or not is_prefix_bound(body.model, UNKNOWN):
        return
    changed = [indexes_of(change.path) for change in body.changes if change.path.startswith("messages.")]
    if any(change.path.startswith("tools") for change in body.changes):
        changed.append([-1])
    if changed:
        _drop(body, range(min(numbers[0] for numbers in changed) + 1, len(body.turns)))


def switch_off(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Leave the parameter ``thinking`` out of this request."""
    _leave_thinking_out(body, "left out")


def _leave_thinking_out(body: RefusedBody, action: str) -> None:
    """Leave the parameter out where the shape has it; Converse has it among the fields of the model."""
    for holder, path in ((body.value, "thinking"), (members_of(body.value.get(_OF_MODEL)), f"{_OF_MODEL}.thinking")):
        if holder.pop("thinking", None) is not None:
            body.note(path, action)
    if body.value.get(_OF_MODEL) == {}:
        del body.value[_OF_MODEL]


def drop_of_named_turn(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop all reasoning of the named message."""
    _drop(body, [_named(body, words["path"])[0]])


def write_search(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Write the named search as text: its encrypted results are not accepted any more."""
    at, place = _named(body, words["path"])
    content = _content(body, at)
    if 0 <= place < len(content):
        _write_search(body, at, content[place])


def write_searches(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Write all searches as text."""
    for at in range(len(body.turns)):
        for block in _content(body, at):
            if _is_search(block):
                _write_search(body, at, block)


def _is_search(block: JsonObject) -> bool:
    return text_in(block.get("type")).endswith("_tool_result")


def _search_digest(result: JsonObject) -> bytes:
    return digest_of(result.get("content"))


def _write_search(body: RefusedBody, at: int, result: JsonObject) -> None:
    content = _content(body, at)
    call_id = text_in(result.get("tool_use_id"))
    pages = [
        f"- {text_in(page.get('title'))} {text_in(page.get('url') or page.get('source'))}".rstrip()
        for page in map(members_of, items_in(result.get("content")))
    ]
    text = {"type": "text", "text": "\n".join(["[Results of a search:]", *pages])}
    kept = [text if block is result else block for block in content if block.get("id") != call_id or not call_id]
    body.turns[at]["content"] = kept
    path = body.place_of(result, f"{body.turns_name}.{at}.content")
    body.note(path, "written as text", Revoked("search", _search_digest(result)))
    _note_calls(body, content, kept, path)


def _note_calls(body: RefusedBody, content: list[JsonObject], kept: list[JsonObject], path: str) -> None:
    """Note the calls that are left out together with their results."""
    for block in content:
        if "id" in block and all(block is not other for other in kept):
            body.note(body.place_of(block, path), "left out with its result")


def drop_reference(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop references to a tool that is not declared, from results, searches and ``tools``."""
    name = words["name"]

    def is_named(entry: object) -> bool:
        members = members_of(entry)
        return members.get("type") == "tool_reference" and members.get("tool_name") == name

    def without(entries: list[Any], path: str) -> list[Any]:
        kept = [entry for entry in entries if not is_named(entry)]
        if len(kept) < len(entries):
            body.note(path, f"reference to {name} left out")
        return kept

    tools = items_in(body.value.get("tools"))
    body.value["tools"] = without(tools, "tools")
    for at, turn in enumerate(body.turns):
        content = items_in(turn.get("content"))
        for place, block in enumerate(content):
            inner = members_of(members_of(block).get("content"))
            path = f"{body.turns_name}.{at}.content.{place}"
            if "tool_references" in inner:
                inner["tool_references"] = without(items_in(inner["tool_references"]), path)
                if not inner["tool_references"]:
                    _write_references(body, turn, block, name)
            elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                block["content"] = without(block["content"], path) or f"[Tools found: {name}]"


def _write_references(body: RefusedBody, turn: JsonObject, result: JsonObject, name: str) -> None:
    """Write a search whose only reference was dropped, and its call, as text."""
    call_id = result.get("tool_use_id")
    text = {"type": "text", "text": f"[Tools found: {name}]"}
    content = turn["content"]
    turn["content"] = [text if block is result else block for block in content if block.get("id") != call_id]
    _note_calls(body, content, turn["content"], body.place_of(result, ""))


def _content(body: RefusedBody, at: int) -> list[JsonObject]:
    turns = body.turns
    return [members_of(block) for block in items_in(turns[at].get("content"))] if 0 <= at < len(turns) else []


def _named(body: RefusedBody, path: str) -> tuple[int, int]:
    """Return the message and the block that a path names; -1 for a block that is not there or is no reasoning."""
    numbers = [*indexes_of(path), -1, -1]
    at, place = numbers[0], numbers[1]
    content = _content(body, at)
    known = is_reasoning(content[place]) if 0 <= place < len(content) else False
    is_search = 0 <= place < len(content) and _is_search(content[place])
    return at, place if known or is_search else -1


def _has_reasoning(body: RefusedBody, at: int) -> bool:
    return any(is_reasoning(block) for block in _content(body, at))


def _is_open(body: RefusedBody, last: int) -> bool:
    """Return True if only results follow the last answer."""
    after = body.turns[last + 1 :]
    return all(_only_results(turn) for turn in after) and any(_calls(block) for block in _content(body, last))


def _begin_of_loop(body: RefusedBody, last: int) -> int:
    """Return the first message after the last one in which the user says something."""
    said = [at for at, turn in enumerate(body.turns[:last]) if turn.get("role") == "user" and not _only_results(turn)]
    return said[-1] + 1 if said else 0


def _only_results(turn: JsonObject) -> bool:
    content = items_in(turn.get("content"))
    return bool(content) and all(
        members_of(block).get("type") == "tool_result" or "toolResult" in members_of(block) for block in content
    )


def _calls(block: JsonObject) -> bool:
    return block.get("type") == "tool_use" or "toolUse" in block


def _foreign_form(block: JsonObject) -> object:
    """Return the form of a signature that is known not to be Anthropic's, or that is cut; else None."""
    signature = _signature(block)
    form = form_of(signature)
    if form is not None and "anthropic" not in form.issuers:
        return form
    is_cut = form is not None and len(signature.removeprefix("claude#")) % _BASE64_GROUP != 0
    return "cut" if is_cut else None


def _drop(
    body: RefusedBody,
    messages: Collection[int],
    is_dropped: Callable[[int, int, JsonObject], bool] = lambda _turn, _at, _block: True,
) -> None:
    """Drop the reasoning of some messages for which ``is_dropped``."""
    for at in messages:
        content = _content(body, at)
        gone = [place for place, block in enumerate(content) if is_reasoning(block) and is_dropped(at, place, block)]
        if not gone:
            continue
        body.turns[at]["content"] = [block for place, block in enumerate(content) if place not in gone]
        for place in gone:
            path = body.place_of(content[place], f"{body.turns_name}.{at}.content.{place}")
            body.note(path, "reasoning left out", Revoked("reasoning", _reasoning_digest(content[place])))
