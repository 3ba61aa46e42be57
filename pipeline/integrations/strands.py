"""A hook for agents of Strands that repairs the agent's messages before each call of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strands.hooks import BeforeModelCallEvent, HookProvider, HookRegistry
from strands.types.content import Message
from strands.types.session import decode_bytes_values

from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import framework_writer
from reknit.pipeline.session.arguments import GivenPolicy


class RepairHook(HookProvider):  # type: ignore[misc]  # Strands is the user's
    """Repairs the messages of an agent: ``Agent(hooks=[RepairHook()])``.

    Messages that need no repair are not touched. The agent's list stays the same list. ``policy`` is that of
    ``normalize``, and ``on_fixes`` is called with the fixes of each repair.
    """

    def __init__(
        self,
        target: str = "bedrock-converse",
        *,
        model: str | None = None,
        policy: GivenPolicy = None,
        on_fixes: OnFixes | None = None,
    ) -> None:
        write = framework_writer("strands")
        self._repair = MessageRepair(
            "bedrock-converse", write, target, joins=True, model=model, policy=policy, on_fixes=on_fixes
        )

    def register_hooks(self, registry: HookRegistry, **_: Any) -> None:  # noqa: ANN401  reserved by Strands
        registry.add_callback(BeforeModelCallEvent, self._before_model)

    def _before_model(self, event: BeforeModelCallEvent) -> None:
        messages = event.agent.messages
        found = self._repair.repaired(messages, _dumped, _loaded)
        if found is not None:
            messages[:] = found


def _dumped(messages: Sequence[Message]) -> list[Any]:
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _loaded(members: dict[str, Any], origin: Message | None) -> Message:
    return {**(origin or {}), **decode_bytes_values(members["message"])}
