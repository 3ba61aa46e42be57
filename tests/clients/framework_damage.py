"""Damage to the messages that an agent framework stored, in the framework's own form.

A function changes the messages of the conversation of ``framework_runs`` in place. It returns False where this form
cannot have the damage.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))
from session_files import FOREIGN

Messages = list[dict[str, Any]]
Damage = Callable[[Messages, str], bool]

# A result in the forms of LangChain, pydantic-ai and the AI SDK.
_RESULTS: Final = ("tool", "tool-return", "tool-result")
# An id that Kimi K2 writes. The rules of Anthropic do not allow the dot and the colon.
_KIMI_ID: Final = "functions.read_file:0"


def _find_result(messages: Messages, call_id: str) -> tuple[Messages, int]:
    """Return the list that has a call's result, and its place there: a message, or a part of one."""
    for place, message in enumerate(messages):
        if message.get("type") in _RESULTS and message["data"]["tool_call_id"] == call_id:
            return messages, place
        parts = message.get("parts") or message.get("content")
        for at, part in enumerate(parts if isinstance(parts, list) else ()):
            is_result = (part.get("part_kind") or part.get("type")) in _RESULTS
            if is_result and call_id in (part.get("tool_call_id"), part.get("toolCallId")):
                return parts, at
    raise LookupError(call_id)


def lost_result(messages: Messages, _target: str) -> bool:
    """The process ended while the tool ran."""
    found, at = _find_result(messages, "toolu_1")
    del found[at]
    # A framework stores no message without parts.
    messages[:] = [each for each in messages if each.get("parts") != [] and each.get("content") != []]
    return True


def doubled_result(messages: Messages, _target: str) -> bool:
    found, at = _find_result(messages, "toolu_1")
    found.insert(at, copy.deepcopy(found[at]))
    return True


def orphan_result(messages: Messages, _target: str) -> bool:
    found, at = _find_result(messages, "toolu_1")
    found.insert(at + 1, json.loads(json.dumps(found[at]).replace("toolu_1", "toolu_9")))
    return True


def late_result(messages: Messages, _target: str) -> bool:
    """Another process stored the result after the conversation had continued."""
    found, at = _find_result(messages, "toolu_1")
    if found is messages:
        messages.append(messages.pop(at))
        return True
    holder = next(each for each in messages if found is (each.get("parts") or each.get("content")))
    messages.remove(holder)
    messages.append(holder)
    return True


def trimmed(messages: Messages, _target: str) -> bool:
    """The window over the messages begins with a result."""
    del messages[:2]
    return True


def foreign_ids(messages: Messages, _target: str) -> bool:
    """Another provider wrote the ids of the calls."""
    messages[:] = json.loads(json.dumps(messages).replace("toolu_1", _KIMI_ID))
    return True


def foreign_reasoning(messages: Messages, target: str) -> bool:
    """An answer came from another provider, through a gateway."""
    block = _foreign_block(target, messages[1])
    if block is None:
        return False
    message = messages[1]
    content = (message.get("data") or message).get("content") or message["parts"]
    content.insert(0, block)
    return True


def _foreign_block(target: str, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return reasoning with a signature of another provider; None if requests to the target have none."""
    names = {"anthropic": "Claude Code", "openai-responses": "Codex", "gemini": "Gemini CLI"}
    if target not in names:
        return None
    signature = FOREIGN[names[target]]
    if "parts" in message:
        provider = {"anthropic": "anthropic", "openai-responses": "openai"}[target]
        own = {"id": "rs_0" if provider == "openai" else None, "provider_name": provider, "signature": signature}
        return {"part_kind": "thinking", "content": "FOREIGN", **own}
    if "data" in message:
        if target == "anthropic":
            return {"type": "thinking", "thinking": "FOREIGN", "signature": signature}
        return {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": signature}
    options = {
        "anthropic": {"anthropic": {"signature": signature}},
        "openai-responses": {"openai": {"itemId": "rs_0", "reasoningEncryptedContent": signature}},
        "gemini": {"google": {"thoughtSignature": signature}},
    }
    return {"type": "reasoning", "text": "FOREIGN", "providerOptions": options[target]}


DAMAGE: Final[tuple[Damage, ...]] = (
    lost_result,
    doubled_result,
    orphan_result,
    late_result,
    trimmed,
    foreign_ids,
    foreign_reasoning,
)
# The texts that no request can have after the damage: the result of a call that the history does not have.
LOST: Final[dict[Damage, str]] = {orphan_result: "RESULT-ONE", trimmed: "RESULT-ONE"}
