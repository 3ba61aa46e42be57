"""A callback for agents of Google's ADK that repairs the contents of each request to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.genai.types import Content

from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import request_writer
from reknit.pipeline.session.arguments import GivenPolicy


def repair_contents(
    target: str = "gemini",
    *,
    model: str | None = None,
    policy: GivenPolicy = None,
    on_fixes: OnFixes | None = None,
) -> Callable[[CallbackContext, LlmRequest], None]:
    """Return a callback: ``LlmAgent(model=…, before_model_callback=repair_contents())``.

    ``target`` is the API of the model: another one than Gemini's for models of ``LiteLlm``. The contents of a request
    that needs no repair stay the same list. ``policy`` is that of ``normalize``, and
    ``on_fixes`` is called with the fixes of each repair.
    """
    write = request_writer("gemini", model if target == "gemini" else None)
    repair = MessageRepair("gemini", write, target, joins=True, model=model, policy=policy, on_fixes=on_fixes)

    # ADK passes both arguments by these names.
    def before_model(callback_context: CallbackContext, llm_request: LlmRequest) -> None:  # noqa: ARG001  see above
        found = repair.repaired(llm_request.contents, _dumped, _loaded)
        if found is not None:
            llm_request.contents = found

    return before_model


def _dumped(contents: Sequence[Content]) -> list[Any]:
    # In mode "json", bytes are in the URL-safe alphabet of base64, which no provider takes.
    return [content.model_dump(by_alias=True, exclude_none=True) for content in contents]


def _loaded(members: dict[str, Any], origin: Content | None) -> Content:
    del origin  # a content has no members besides its role and its parts
    return Content.model_validate_json(msgspec.json.encode(members))
