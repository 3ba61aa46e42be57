"""Chat templates of open models, by family: which of the rules that differ between them each has."""

from __future__ import annotations

import re

from pipeline.rules.base import Family


class Template(Family, frozen=True):
    """What the chat template of one family of open models, or the tokenizer that stands in for it, takes.

    Attributes:
        name: the family.
        loose_order: anything but the user's and the assistant's messages strictly in turn, calls and results included.
        neighbours: two user turns or two assistant turns in a row, calls and results between them left out.
        later_system: a system message that is not the first.
        system_inside: a system message after the assistant's (mistral-small recorded to refuse).
        no_user: a request without a user message.
        parallel: several calls in one message.
        any_id: ids of calls that are not nine letters and digits.
        any_count: fewer or more results than calls.
        user_after_tool: a user message directly after a tool message (mistral-small recorded to take it).
        prefill: a final assistant message.
        control_tokens: names of tools that hold ``<|``.
        any_arguments: calls' arguments that are not a JSON object.
    """

    loose_order: bool | None = None
    neighbours: bool | None = None
    later_system: bool | None = None
    system_inside: bool | None = None
    no_user: bool | None = None
    parallel: bool | None = None
    any_id: bool | None = None
    any_count: bool | None = None
    user_after_tool: bool | None = None
    prefill: bool | None = None
    control_tokens: bool | None = None
    any_arguments: bool | None = None


def _template(name: str, **refused: bool) -> Template:
    """Describe a known template: what no report says that it refuses, it takes."""
    facts = dict.fromkeys((fact for fact in Template.__struct_fields__ if fact != "name"), True)
    return Template(name, **{**facts, **refused})


UNKNOWN = Template("unknown")
_MISTRAL = {"system_inside": False, "any_id": False, "any_count": False, "prefill": False}
_TEMPLATES: tuple[tuple[re.Pattern[str], Template], ...] = tuple(
    (re.compile(pattern), known)
    for pattern, known in (
        (r"gemma-?[123]", _template("gemma", loose_order=False)),
        (r"llama-?2", _template("llama-2", loose_order=False)),
        (r"llama-?3", _template("llama-3", parallel=False)),
        (r"devstral", _template("devstral", neighbours=False, **_MISTRAL)),
        (r"mistral-?(7b|nemo)|mixtral", _template("mistral-7b", neighbours=False, user_after_tool=False, **_MISTRAL)),
        (r"mistral|ministral|magistral|pixtral|codestral", _template("mistral", **_MISTRAL)),
        (r"qwen-?3[.-][56]", _template("qwen-3.5", later_system=False, no_user=False, any_arguments=False)),
        (r"qwen-?3-?coder", _template("qwen-3-coder", any_arguments=False)),
        (r"qwen", _template("qwen")),
        (r"glm-4", _template("glm-4", any_arguments=False)),
        (r"gpt-oss", _template("gpt-oss", control_tokens=False)),
    )
)
TEMPLATES = tuple(known for _, known in _TEMPLATES)


def template_of(model: str | None) -> Template:
    """Find the chat template's family by the name that a server gives its model (``mistralai/Devstral-Small-2507``)."""
    name = (model or "").lower()
    return next((known for pattern, known in _TEMPLATES if pattern.search(name)), UNKNOWN)
