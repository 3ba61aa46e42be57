"""Repairs of parameters: left out, renamed, or set to what the sentence names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from reknit.pipeline.healing.body import JsonObject, RefusedBody, members_of, steps_of, text_in
from reknit.pipeline.healing.errors import Refusal

Words = dict[str, str]
# Levels of effort, in order. A wish gets the nearest level that is not above it, else the lowest.
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_LEAST_BUDGET: Final = 1024
# Parameters that decide the shape of the answer are never left out.
_KEPT: Final = frozenset({"response_format", "text", "tools", "tool_choice", "stop", "stop_sequences", "messages"})
_LISTED: Final = re.compile(r"[a-z]+")
# Where Converse and Gemini keep parameters that sentences name by Anthropic's or Gemini's own words.
_HOLDERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "bedrock-converse": ("inferenceConfig", "additionalModelRequestFields"),
        "gemini": ("generationConfig",),
    }
)
_CONVERSE: Final[Mapping[str, str]] = MappingProxyType({"top_p": "topP", "max_tokens": "maxTokens"})


def leave_out(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Leave out the named parameter, unless the answer's shape depends on it."""
    name = words.get("name") or refusal.param
    if not name or steps_of(name)[0] in _KEPT:
        return
    for holder, path in _holders(body):
        if _remove(holder, steps_of(_CONVERSE.get(name, name) if path == "inferenceConfig" else name)):
            body.note(f"{path}.{name}".lstrip("."), "left out")
            if path and not holder:
                del body.value[path]
            return


def leave_out_penalties(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    for name in ("presencePenalty", "frequencyPenalty"):
        leave_out(body, {**words, "name": name}, refusal)


def think_adaptively(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Let the model decide how long it thinks."""
    for holder, path in _holders(body):
        if members_of(holder.get("thinking")).get("type") == "enabled":
            holder["thinking"] = {"type": "adaptive"}
            body.note(f"{path}.thinking".lstrip("."), "adaptive")


def drop_binding(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Leave out a member of ``thinking`` whose beta header did not arrive."""
    for holder, path in _holders(body):
        if members_of(holder.get("thinking")).pop("block_binding", None) is not None:
            body.note(f"{path}.thinking.block_binding".lstrip("."), "left out")


def lower(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Set the longest answer to the number that the sentence names."""
    _set_number(body, words["name"], int(words["most"]), lambda now, most: now > most)


def raise_to(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Set a number to the least that the sentence names."""
    _set_number(body, words["name"], int(words["least"]), lambda now, least: now < least)


def lower_budget(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Lower the thinking budget below the longest answer."""
    held = _holders(body)
    mosts = [holder[name] for holder, _ in held for name in ("max_tokens", "maxTokens") if name in holder]
    for holder, path in held:
        thinking = members_of(holder.get("thinking"))
        budget, most = thinking.get("budget_tokens"), mosts[0] if mosts else None
        if isinstance(budget, int) and isinstance(most, int) and budget >= most > _LEAST_BUDGET:
            thinking["budget_tokens"] = max(_LEAST_BUDGET, most // 2)
            body.note(f"{path}.thinking.budget_tokens".lstrip("."), "lowered")


def rename(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Give a parameter the name that the sentence states."""
    if words["name"] in body.value and words["other"] not in body.value:
        body.value[words["other"]] = body.value.pop(words["name"])
        body.note(words["name"], f"renamed to {words['other']}")


def nearest_effort(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Set the nearest of the listed levels that is not above the wish, else the lowest."""
    allowed = [level for level in _EFFORTS if level in _LISTED.findall(words["list"])]
    if words["value"] not in _EFFORTS or not allowed:
        return
    wish = _EFFORTS.index(words["value"])
    nearest = next((level for level in reversed(allowed) if _EFFORTS.index(level) <= wish), allowed[0])
    path = refusal.param or "output_config.effort"
    for holder, _ in _holders(body):
        inner: JsonObject = holder
        *outer, name = steps_of(path)
        for step in outer:
            inner = members_of(inner.get(step))
        if text_in(inner.get(name)) == words["value"]:
            inner[name] = nearest
            body.note(path, nearest)
            return


def _holders(body: RefusedBody) -> list[tuple[JsonObject, str]]:
    """Return the objects that may hold a parameter, with their names."""
    held = [(members_of(body.value.get(name)), name) for name in _HOLDERS.get(body.target, ())]
    return [*((holder, name) for holder, name in held if holder), (body.value, "")]


def _remove(holder: JsonObject, steps: list[str]) -> bool:
    *outer, name = steps
    for step in outer:
        holder = members_of(holder.get(step))
    return holder.pop(name, None) is not None


def _set_number(body: RefusedBody, name: str, number: int, is_wrong: Any) -> None:  # noqa: ANN401  a comparison
    for holder, path in _holders(body):
        own = _CONVERSE.get(name, name) if path == "inferenceConfig" else name
        now = holder.get(own)
        if isinstance(now, int) and is_wrong(now, number):
            holder[own] = number
            body.note(f"{path}.{own}".lstrip("."), str(number))
            return
