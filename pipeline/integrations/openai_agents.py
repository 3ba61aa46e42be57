"""An input filter for runs of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from agents.run import CallModelData, ModelInputData

from reknit.pipeline.integrations.messages import MessageRepair
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import framework_writer
from reknit.pipeline.session.arguments import GivenPolicy

# The other items are the user's: messages, and outputs of calls that the program has run.
_OUTPUT: Final = "_output"


def repair_input(
    target: str = "openai-responses",
    *,
    model: str | None = None,
    policy: GivenPolicy = None,
    on_fixes: OnFixes | None = None,
) -> Callable[[CallModelData[Any]], ModelInputData]:
    """Return a filter: ``RunConfig(call_model_input_filter=repair_input())``.

    An input that needs no repair is passed on as it is, and so is one without any item of the model: the calls that it
    answers are in a conversation which the provider stores. ``target`` is the API of the agent's model, ``policy`` that
    of ``normalize``, and ``on_fixes`` is called with the fixes of each repair.
    """
    write = framework_writer("openai-agents")
    repair = MessageRepair("openai-agents", write, target, model=model, policy=policy, on_fixes=on_fixes)

    def filtered(data: CallModelData[Any]) -> ModelInputData:
        given = data.model_data
        if not any(_is_of_model(item) for item in given.input):
            return given
        found = repair.repaired(given.input, list, lambda members, _: members)
        return given if found is None else replace(given, input=found)

    return filtered


def _is_of_model(item: Any) -> bool:  # noqa: ANN401  any item of the SDK
    kind = str(item.get("type", "message"))
    return item.get("role") == "assistant" if kind == "message" else not kind.endswith(_OUTPUT)
