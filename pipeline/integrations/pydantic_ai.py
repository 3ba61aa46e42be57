"""A history processor for agents of pydantic-ai."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest

from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import framework_writer
from reknit.pipeline.session.arguments import GivenPolicy


def repair_history(
    target: str,
    *,
    model: str | None = None,
    policy: GivenPolicy = None,
    on_fixes: OnFixes | None = None,
) -> Callable[[list[ModelMessage]], list[ModelMessage]]:
    """Return a history processor: ``Agent(model, capabilities=[ProcessHistory(repair_history("anthropic"))])``.

    ``target`` is the API of the agent's model, as in ``normalize``. A history that needs no repair is passed on as it
    is. ``policy`` is that of ``normalize``, and ``on_fixes`` is called with the fixes of each repair.
    """
    write = framework_writer("pydantic-ai")
    repair = MessageRepair(
        "pydantic-ai", write, target, keeps_empty=True, model=model, policy=policy, on_fixes=on_fixes
    )

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        found = repair.repaired(messages, _dumped, _loaded)
        return messages if found is None else _instructed(found, messages[-1])

    return process


def _dumped(messages: Sequence[ModelMessage]) -> list[Any]:
    found: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return found


def _loaded(members: dict[str, Any], origin: ModelMessage | None) -> ModelMessage:
    (message,) = ModelMessagesTypeAdapter.validate_python([members])
    return replace(origin, parts=message.parts) if isinstance(origin, type(message)) else message


def _instructed(messages: list[ModelMessage], last: ModelMessage) -> list[ModelMessage]:
    """Return messages that end with a request, which has the instructions of the last one before: those in force."""
    now = messages[-1]
    if isinstance(last, ModelRequest) and not isinstance(now, ModelRequest):
        # A model that continues its own words; pydantic-ai requires a request all the same.
        messages.append(replace(last, parts=[]))
    elif isinstance(last, ModelRequest) and now.instructions is None:
        messages[-1] = replace(now, instructions=last.instructions)
    return messages
