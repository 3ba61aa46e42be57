"""Repair of Codex's rollouts, so that the program resumes from them.

The program needs ``session_meta`` in the first line, and sends the items of the ``response_item`` lines. The Responses
API refuses a call without its output, an output without its call, and encrypted reasoning of another provider.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Final

import msgspec
from msgspec import structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.fields import Notes
from reknit.pipeline.policy import Endpoint
from reknit.pipeline.providers.codex_cli.reader import MARKS, NEEDS, read_lines
from reknit.pipeline.targets.limits import MediaLimits, limits_of
from reknit.pipeline.targets.signatures import is_foreign
from reknit.pipeline.transcripts.changes import Changes
from reknit.pipeline.transcripts.content import (
    MISSING,
    drop_unreadable,
    image_fault,
    items_in,
    late_line,
    members_of,
    restore_bytes,
    stub_of,
    text_in,
)
from reknit.pipeline.transcripts.lines import JsonObject, TranscriptLine, TranscriptLines

_NAME: Final = re.compile(r"rollout-(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d)-([0-9a-f-]{36})\.jsonl$")
# Types of calls, and those of their outputs.
_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "function_call_output",
}
_OUTPUT_TYPES: Final = frozenset(_OUTPUTS.values())
_DATA_URL: Final = re.compile(r"data:([^;,]+);base64,", re.IGNORECASE)
_ISSUER: Final = Endpoint("", "openai")


def thread_of(name: str) -> str:
    """Return the thread's id in a rollout's file name, or ""."""
    found = _NAME.search(name)
    return "" if found is None else found[5]


def repair(lines: TranscriptLines, changes: Changes, name: str, version: str) -> None:
    """Repair a rollout's lines in place, and record each change.

    Args:
        lines: of the file.
        changes: get the fixes.
        name: the file's name, which has the thread's id and its begin.
        version: of the program, for a new ``session_meta``.
    """
    restore_bytes(lines, changes)
    drop_unreadable(lines, changes, NEEDS, MARKS)
    _restore_meta(lines, changes, name, version)
    _drop_repeated(lines, changes)
    live = _live(lines)
    for line in live:
        _repair_content(lines, line, changes)
    _pair(lines, [line for line in live if line in set(lines)], changes)


def _restore_meta(lines: TranscriptLines, changes: Changes, name: str, version: str) -> None:
    found = _NAME.search(name)
    if any(line.members.get("type") == "session_meta" for line in lines) or found is None:
        return
    day, hour, minute, second, thread = found.groups()
    begun = f"{day}T{hour}:{minute}:{second}.000Z"
    contexts = [_payload(line) for line in lines if line.members.get("type") == "turn_context"]
    payload = {"id": thread, "timestamp": begun, "cwd": text_in(contexts[0].get("cwd")) if contexts else "."}
    payload |= {"originator": "reknit", "cli_version": version or "0.0.0", "source": "cli"}
    changes.add_change("line_restored", "lines.0", "session_meta, by the name of the file")
    lines.insert_first({"timestamp": begun, "type": "session_meta", "payload": payload})


def _drop_repeated(lines: TranscriptLines, changes: Changes) -> None:
    """Remove a line that is in the file twice: the program sends both (0.171.0), and the API refuses an id twice.

    Lines without an id and a number of their own may say the same thing at different times.
    """
    seen: set[bytes] = set()
    for line in lines:
        payload = _payload(line)
        if line.members.get("type") != "response_item" or not ("ordinal" in line.members or payload.get("id")):
            continue
        if line.raw in seen:
            code = "result_repeated" if payload.get("type") in _OUTPUT_TYPES else "item_repeated"
            changes.add_fix(code, f"lines.{line.number}.payload", before=msgspec.json.encode(payload))
            lines.drop(line)
        seen.add(line.raw)


def _live(lines: TranscriptLines) -> list[TranscriptLine]:
    """Return the lines of items that the program sends: not those before a compaction or a rollback."""
    slots = list(lines)
    try:
        turns, *_ = read_lines(b"\n".join(line.raw for line in slots), Notes())
    except InputError:
        return []
    numbers = {int(path.split(".")[1]) for turn in turns for path in turn.paths or ()}
    return [slots[number] for number in sorted(numbers) if slots[number].members.get("type") == "response_item"]


def _payload(line: TranscriptLine) -> JsonObject:
    return members_of(line.members.get("payload"))


def _repair_content(lines: TranscriptLines, line: TranscriptLine, changes: Changes) -> None:
    """Remove reasoning with a foreign signature, and replace images beyond the limits."""
    payload, place = _payload(line), f"lines.{line.number}.payload"
    if payload.get("type") == "reasoning" and is_foreign(text_in(payload.get("encrypted_content")), _ISSUER):
        changes.add_fix("reasoning_foreign", place, before=msgspec.json.encode(payload))
        lines.drop(line)
        return
    limits = limits_of("openai-responses", None)
    limits = structs.replace(limits, image_bytes=limits.image_bytes or limits.body_bytes)
    for name in ("content", "output"):
        parts = items_in(payload.get(name))
        kept = [_within_limits(part, limits, f"{place}.{name}.{at}", changes) for at, part in enumerate(parts)]
        if kept != parts:
            payload[name] = kept
            line.change()


def _within_limits(part: Any, limits: MediaLimits, place: str, changes: Changes) -> Any:  # noqa: ANN401  any JSON
    url = text_in(members_of(part).get("image_url"))
    head = _DATA_URL.match(url)
    fault = image_fault(url[head.end() :], head[1], limits) if head else ""
    if not fault:
        return part
    changes.add_fix("image_stubbed", place, fault)
    return {"type": "input_text", "text": stub_of(fault)}


def _pair(lines: TranscriptLines, live: list[TranscriptLine], changes: Changes) -> None:
    """Give each call before the end of the thread one output, and each output its call."""
    calls: dict[str, TranscriptLine] = {}
    outputs: dict[str, list[tuple[TranscriptLine, int]]] = defaultdict(list)
    answers = 0
    for line in live:
        payload = _payload(line)
        kind, call_id = payload.get("type"), text_in(payload.get("call_id") or payload.get("id"))
        if kind in _OUTPUTS:
            answers += 1
            calls[call_id] = line
        elif kind in _OUTPUT_TYPES and call_id in calls:
            outputs[call_id].append((line, answers))
        elif kind in _OUTPUT_TYPES:
            changes.add_fix("result_orphan", f"lines.{line.number}.payload", before=msgspec.json.encode(payload))
            lines.drop(line)
        else:
            answers += 1
    for call_id, found in outputs.items():
        _settle(lines, changes, calls[call_id], found)
    for call_id, line in calls.items():
        if call_id not in outputs and _is_passed(live, line):
            _answer(lines, changes, line, call_id)


def _settle(
    lines: TranscriptLines, changes: Changes, call: TranscriptLine, outputs: list[tuple[TranscriptLine, int]]
) -> None:
    """Keep one output of a call, by the rule for late results (DESIGN, section 4)."""
    (first, answers), *others = outputs
    shown = [_payload(first).get("output")]
    for line, count in others:
        payload, place = _payload(line), f"lines.{line.number}.payload"
        output = payload.get("output")
        if output in shown:
            changes.add_fix("result_repeated", place, before=msgspec.json.encode(payload))
            lines.drop(line)
            continue
        shown.append(output)
        if count == answers:
            kept = f"lines.{first.number}.payload"
            changes.add_fix("result_replaced", kept, before=msgspec.json.encode(_payload(first)))
            _payload(first)["output"] = output
            first.change()
            lines.drop(line)
        else:
            changes.add_fix("result_late_turn", place)
            parts = items_in(output) or [{"type": "input_text", "text": text_in(output)}]
            texts = [text_in(members_of(part).get("text")) for part in parts]
            media = [part for part in parts if "text" not in members_of(part)]
            words = late_line(text_in(_payload(call).get("name")), text_in(payload.get("call_id")))
            said = {"type": "input_text", "text": "\n".join([words, *filter(None, texts)])}
            line.members["payload"] = {"type": "message", "role": "user", "content": [said, *media]}
            line.change()


def _is_passed(live: list[TranscriptLine], call: TranscriptLine) -> bool:
    """Return True if the thread went on after a call: a message follows it, or reasoning or a call after an output."""
    has_output = False
    for line in live[live.index(call) + 1 :]:
        kind = _payload(line).get("type")
        if kind in _OUTPUT_TYPES:
            has_output = True
        elif kind == "message" or has_output:
            return True
    return False


def _answer(lines: TranscriptLines, changes: Changes, call: TranscriptLine, call_id: str) -> None:
    payload = _payload(call)
    changes.add_fix("result_synthesised", f"lines.{call.number}.payload", text_in(payload.get("name")))
    output = {"type": _OUTPUTS[payload["type"]], "call_id": call_id, "output": MISSING}
    stamp = {"timestamp": call.members["timestamp"]} if "timestamp" in call.members else {}
    lines.insert_after(call, {**stamp, "type": "response_item", "payload": output})
