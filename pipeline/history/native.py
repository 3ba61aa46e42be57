"""What only one provider has: its types of items and parts without a canonical place, and what is known of each.

Such a thing is carried as it came and written again for its own provider. A call that the client runs is a call here
like a function's, and what answers it a result, so that both are paired; what the provider ran stands in the model's
turn as an unknown block with an issuer. A type that is not listed is taken for one of the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Raw, Struct

RESPONSES = "openai-responses"
CHAT = "openai-chat"
# The item that names another one, which stands with the provider.
REFERENCE = "item_reference"
GEMINI = "gemini"
ANTHROPIC = "anthropic"
CONVERSE = "bedrock-converse"


class NativeType(Struct, frozen=True, kw_only=True):
    """One type of item or part.

    Attributes:
        provider: who has it.
        kind: what the provider calls it.
        turn: whose turn it belongs to.
        opens: the member with the id of the call that it makes, where the client answers that.
        answers: the member with the id of the call that it answers.
        beside: what it must stand next to, ``""`` where it stands by itself.
        bound: only the model that made it can read it.
        elsewhere: what becomes of it for another provider.
    """

    provider: str
    kind: str
    turn: Literal["user", "assistant", "either"] = "assistant"
    opens: str = ""
    answers: str = ""
    beside: str = ""
    bound: bool = False
    elsewhere: str = "left out"


_FUNCTION = "a function's call"
_RESULT = "a function's result"
_LED_TO = "the reasoning that led to it, where both have ids"


def _run(kind: str, beside: str = _LED_TO) -> NativeType:
    """What the provider ran itself."""
    return NativeType(provider=RESPONSES, kind=kind, beside=beside)


def _asked(kind: str, opens: str = "call_id") -> NativeType:
    """A call that the client runs."""
    return NativeType(provider=RESPONSES, kind=kind, opens=opens, beside=_LED_TO, elsewhere=_FUNCTION)


def _answered(kind: str, answers: str = "call_id") -> NativeType:
    """What the client found."""
    return NativeType(
        provider=RESPONSES,
        kind=kind,
        turn="user",
        answers=answers,
        beside="its call, somewhere before",
        elsewhere=_RESULT,
    )


def _ran(kind: str) -> NativeType:
    """A call that Anthropic runs itself."""
    return NativeType(provider=ANTHROPIC, kind=kind, beside="its result, or the end of a turn that goes on")


def _found(kind: str) -> NativeType:
    """What such a call gave."""
    return NativeType(provider=ANTHROPIC, kind=kind, answers="tool_use_id", beside="its call, somewhere before")


NATIVE_TYPES: tuple[NativeType, ...] = (
    NativeType(
        provider=RESPONSES,
        kind="reasoning",
        beside="what it led to, directly behind it",
        bound=True,
    ),
    _asked("custom_tool_call"),
    _answered("custom_tool_call_output"),
    _asked("shell_call"),
    _answered("shell_call_output"),
    _asked("local_shell_call"),
    _answered("local_shell_call_output", "id"),
    _asked("apply_patch_call"),
    _answered("apply_patch_call_output"),
    _asked("computer_call"),
    _answered("computer_call_output"),
    _asked("tool_search_call"),
    _answered("tool_search_output"),
    _asked("mcp_approval_request", "id"),
    _answered("mcp_approval_response", "approval_request_id"),
    _run("web_search_call"),
    _run("file_search_call"),
    _run("code_interpreter_call"),
    _run("image_generation_call"),
    _run("mcp_call"),
    _run("mcp_list_tools", ""),
    _run("program"),
    _run("program_output", "its program"),
    _run(REFERENCE, "what it names stands with the provider, as the call of a later result may"),
    NativeType(
        provider=RESPONSES, kind="compaction", turn="user", beside="what it sums up stands before it", bound=True
    ),
    NativeType(provider=RESPONSES, kind="compaction_trigger", turn="user"),
    NativeType(provider=RESPONSES, kind="additional_tools", turn="user"),
    NativeType(provider=RESPONSES, kind="configuration_update", turn="user"),
    NativeType(
        provider=CHAT, kind="custom", opens="id", beside="its results, directly behind the message", elsewhere=_FUNCTION
    ),
    NativeType(provider=CHAT, kind="input_audio", turn="user"),
    NativeType(provider=CHAT, kind="audio"),
    NativeType(provider=GEMINI, kind="thoughtSignature", beside="the part that it seals", bound=True),
    NativeType(provider=GEMINI, kind="inlineData", turn="either", elsewhere="an image or a document, or left out"),
    NativeType(provider=GEMINI, kind="fileData", turn="either"),
    NativeType(provider=GEMINI, kind="videoMetadata", turn="either", beside="the video, in its part or behind it"),
    NativeType(provider=GEMINI, kind="mediaResolution", turn="either", beside="the medium, in its part"),
    NativeType(provider=GEMINI, kind="executableCode", beside="its codeExecutionResult"),
    NativeType(provider=GEMINI, kind="codeExecutionResult", beside="its executableCode"),
    NativeType(provider=GEMINI, kind="toolCall", beside="its toolResponse"),
    NativeType(provider=GEMINI, kind="toolResponse", beside="its toolCall"),
    *(_ran(kind) for kind in ("server_tool_use", "mcp_tool_use")),
    *(
        _found(f"{kind}_tool_result")
        for kind in (
            "advisor", "bash_code_execution", "code_execution", "mcp", "text_editor_code_execution", "tool_search",
            "web_fetch", "web_search",
        )
    ),
    NativeType(provider=ANTHROPIC, kind="compaction", beside="what it sums up stands before it"),
    NativeType(provider=ANTHROPIC, kind="container_upload", turn="user"),
    NativeType(provider=ANTHROPIC, kind="search_result", turn="user"),
    NativeType(
        provider=CONVERSE, kind="cachePoint", turn="either", beside="what it ends", elsewhere="a cache breakpoint"
    ),
    NativeType(provider=CONVERSE, kind="citationsContent", elsewhere="text, without its citations"),
    NativeType(provider=CONVERSE, kind="guardContent", turn="user"),
    NativeType(provider=CONVERSE, kind="searchResult", turn="user"),
    NativeType(provider=CONVERSE, kind="video", turn="user"),
)  # fmt: skip

_BY_KIND: Mapping[tuple[str, str], NativeType] = MappingProxyType(
    {(each.provider, each.kind): each for each in NATIVE_TYPES}
)


def native_type(provider: str, kind: str) -> NativeType:
    """What is known of a provider's type; one that is not listed is the model's, and bound to its neighbours."""
    return _BY_KIND.get((provider, kind)) or NativeType(provider=provider, kind=kind, beside="its neighbours")


def is_listed(provider: str, kind: str) -> bool:
    return (provider, kind) in _BY_KIND


def answer_to(kind: str, text: str) -> dict[str, object] | None:
    """The members of an answer in words to a client-run call of Responses; None where no words answer it."""
    answers: dict[str, dict[str, object]] = {
        "custom_tool_call": {"type": "custom_tool_call_output", "output": text},
        "local_shell_call": {"type": "local_shell_call_output", "output": text},
        "apply_patch_call": {"type": "apply_patch_call_output", "status": "failed", "output": text},
        "shell_call": {
            "type": "shell_call_output",
            "output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}],
        },
        "tool_search_call": {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []},
        "mcp_approval_request": {"type": "mcp_approval_response", "approve": False, "reason": text},
    }
    return answers.get(kind)


def as_json(members: Mapping[str, object]) -> Raw:
    """Members as the JSON of an object."""
    return Raw(msgspec.json.encode(members))
