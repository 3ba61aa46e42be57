"""Middleware of LangChain's agents that repairs the messages of the state before each call of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage, RemoveMessage, messages_from_dict, messages_to_dict
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import framework_writer
from reknit.pipeline.session.arguments import GivenPolicy

# Members of a message that no repair changes, and that a shape for other programs need not have.
_KEPT = ("id", "name", "response_metadata", "usage_metadata", "artifact")


class RepairMiddleware(AgentMiddleware):  # type: ignore[misc]  # LangChain is the user's
    """Repairs the messages of an agent's state: ``create_agent(model, middleware=[RepairMiddleware("anthropic")])``.

    ``target`` is the API of the agent's model, as in ``normalize``. A state that needs no repair is not changed; a
    repaired one is stored, so its checkpoint is valid too. ``policy`` is that of ``normalize``, and ``on_fixes`` is
    called with the fixes of each repair.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str | None = None,
        policy: GivenPolicy = None,
        on_fixes: OnFixes | None = None,
    ) -> None:
        super().__init__()
        write = framework_writer("langchain")
        self._repair = MessageRepair("langchain", write, target, model=model, policy=policy, on_fixes=on_fixes)

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401, ARG002  LangChain's types
        found = self._repair.repaired(state["messages"], _dumped, _loaded)
        return None if found is None else {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *found]}

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401  LangChain's types
        return self.before_model(state, runtime)


def _dumped(messages: Sequence[BaseMessage]) -> list[Any]:
    found: list[Any] = messages_to_dict(list(messages))
    return found


def _loaded(members: dict[str, Any], origin: BaseMessage | None) -> BaseMessage:
    (message,) = messages_from_dict([members])
    if not isinstance(origin, type(message)):
        return message
    return message.model_copy(update={name: getattr(origin, name) for name in _KEPT if hasattr(origin, name)})
