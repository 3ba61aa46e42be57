"""A callback of LiteLLM that repairs the messages of requests: in its proxy, and in its SDK's coroutines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litellm.integrations.custom_logger import CustomLogger

from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import request_writer
from reknit.pipeline.session.arguments import GivenPolicy

_MESSAGES: Final = "messages"
_CHATS: Final = frozenset({"completion", "acompletion"})


class RepairCallback(CustomLogger):  # type: ignore[misc]  # LiteLLM is the user's
    """Repairs requests: ``litellm.callbacks = [RepairCallback()]``, or ``callbacks`` in the configuration of a proxy.

    Requests of Chat Completions and of Messages are repaired, whichever provider LiteLLM translates them for. One that
    needs no repair is passed on as it is. In the SDK, ``messages`` must be given by name. ``policy`` is that of
    ``normalize``, and ``on_fixes`` is called with the fixes of each repair.
    """

    def __init__(self, *, policy: GivenPolicy = None, on_fixes: OnFixes | None = None) -> None:
        super().__init__()
        chat, claude = (
            MessageRepair(name, request_writer(name), name, joins=joins, policy=policy, on_fixes=on_fixes)
            for name, joins in (("openai-chat", False), ("anthropic", True))
        )
        self._repairs = dict.fromkeys(_CHATS, chat) | {"anthropic_messages": claude}

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ANN401, ARG002  LiteLLM's type
        cache: Any,  # noqa: ANN401, ARG002  LiteLLM's type
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        return self._repaired(data, call_type)

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:  # noqa: ANN401  LiteLLM's type
        return self._repaired(kwargs, getattr(call_type, "value", call_type))

    def _repaired(self, data: dict[str, Any], call_type: str) -> dict[str, Any]:
        given, repair = data.get(_MESSAGES), self._repairs.get(call_type)
        if repair is None or not isinstance(given, list):
            return data
        found = repair.repaired(given, _dumped, lambda members, _: members)
        return data if found is None else {**data, _MESSAGES: found}


def _dumped(messages: Sequence[Any]) -> list[Any]:
    """Return messages as JSON values; programs append answers as LiteLLM's own objects."""
    return [each.model_dump(exclude_none=True) if hasattr(each, "model_dump") else each for each in messages]
