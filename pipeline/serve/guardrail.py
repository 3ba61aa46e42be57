"""LiteLLM's generic guardrail API: the messages of a request in; the messages to send instead out.

LiteLLM calls it before each request to a model, and shows every request as Chat Completions' messages, whichever API
its client uses. Messages that need no repair come back unchanged, so that LiteLLM keeps its own objects for them.
Source: ``litellm.types.proxy.guardrails.guardrail_hooks.generic_guardrail_api`` of LiteLLM 1.108.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.written import request_writer
from reknit.pipeline.serve.mend import refusal_of

# LiteLLM appends it to `api_base`.
PATH: Final = "/beta/litellm_basic_guardrail_api"
_SHAPE: Final = "openai-chat"
_UNREADABLE: Final = (ReknitError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class GuardrailParams(Struct, frozen=True):
    """The member ``additional_provider_specific_params``; ``policy`` as in ``[session.policy]``."""

    policy: dict[str, Any] | None = None


class GuardrailRequest(Struct, frozen=True):
    """The members of a request that are read.

    Attributes:
        input_type: answers of models are shown too; they are not changed.
        structured_messages: of the request; null for requests that have none, such as embeddings.
        model: of the request.
        additional_provider_specific_params: of LiteLLM's configuration.
    """

    input_type: Literal["request", "response"] = "request"
    structured_messages: Raw = Raw(b"null")
    model: str | None = None
    additional_provider_specific_params: GuardrailParams | None = None


class GuardrailAnswer(Struct, frozen=True):
    """The JSON of an answer.

    Attributes:
        action: ``NONE``: the request stays as it is; ``GUARDRAIL_INTERVENED``: it gets other messages.
        structured_messages: these messages.
        fixes: the number of fixes by code. LiteLLM does not read it.
    """

    action: Literal["NONE", "GUARDRAIL_INTERVENED"] = "NONE"
    structured_messages: list[Any] | UnsetType = UNSET
    fixes: Mapping[str, int] | UnsetType = UNSET


_decode = msgspec.json.Decoder(GuardrailRequest).decode
_messages = msgspec.json.Decoder(list[Any] | None).decode


def guard(data: bytes) -> tuple[bool, bytes]:
    """Return True and the JSON of an answer; False and the JSON of an error if the request cannot be used."""
    try:
        request = _decode(data)
        params = request.additional_provider_specific_params
        repair = MessageRepair(
            _SHAPE,
            request_writer(_SHAPE, request.model),
            _SHAPE,
            model=request.model,
            policy=None if params is None else params.policy,
        )
    except _UNREADABLE as error:
        return False, refusal_of(error)
    return True, msgspec.json.encode(_answer(repair, request))


def _answer(repair: MessageRepair, request: GuardrailRequest) -> GuardrailAnswer:
    if request.input_type == "response":
        return GuardrailAnswer()
    try:
        messages = _messages(request.structured_messages)
        done = repair.attempt(messages, list, lambda members, _: members) if messages else None
    except _UNREADABLE:  # it is forwarded as it is, so that the provider answers
        return GuardrailAnswer()
    if done is None:
        return GuardrailAnswer()
    found, fixes = done
    return GuardrailAnswer("GUARDRAIL_INTERVENED", found, Counter(fix.code for fix in fixes))
