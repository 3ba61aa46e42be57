"""A request's parameters in OpenAI's words.

A parameter that another provider has under another name, with the same meaning, is translated; that is constant and
makes no fix. What the API has no name for is left out, and recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw

from pipeline.fixes import Fix, make

# Where other providers keep their sampling parameters together.
_GROUPS: Final = ("inferenceConfig", "generationConfig")
# The same under other names: Anthropic's, Converse's and Gemini's, each with what it is called here.
_SAME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "stop_sequences": "stop",
        "stopSequences": "stop",
        "topP": "top_p",
        "topK": "top_k",
        "frequencyPenalty": "frequency_penalty",
        "presencePenalty": "presence_penalty",
        "maxTokens": "max_tokens",
        "maxOutputTokens": "max_tokens",
        "max_output_tokens": "max_tokens",
    }
)
# They stand elsewhere in the request, or say something of breakpoints, which these APIs set themselves.
_BESIDE: Final = frozenset({"model", "messages", "input", "system", "tools", "cache_control"})

_encode = msgspec.json.Encoder().encode


def flattened(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The parameters one by one, those of other providers under the names that they have here."""
    found: dict[str, Raw] = {}
    for key, value in params.items():
        if key in _BESIDE:
            continue
        inner = _object(value) if key in _GROUPS else None
        for name, given in ({key: value} if inner is None else inner).items():
            found.setdefault(_SAME.get(name, name), given)
    user = _object(found.get("metadata", Raw(b"null")))
    if user is not None and user.keys() == {"user_id"}:
        # Anthropic's only metadata is what OpenAI calls the user.
        found.setdefault("user", user["user_id"])
        del found["metadata"]
    return found


def limited(params: dict[str, Raw], name: str) -> None:
    """Put the limit on tokens under the one ``name`` that the model takes it under; the newer one counts."""
    limits = [params.pop(key) for key in ("max_completion_tokens", "max_tokens") if key in params]
    if limits:
        params[name] = limits[0]


def kept(params: Mapping[str, Raw], known: frozenset[str], target: str, fixes: list[Fix]) -> dict[str, Raw]:
    """The parameters that the API knows; each of the others has its fix."""
    for key, value in params.items():
        if key not in known:
            fixes.append(make("param_dropped", f"params.{key}", before=value, target=target, detail=key))
    return {key: value for key, value in params.items() if key in known}


def with_choice(
    params: dict[str, Raw], write: Callable[[Raw], tuple[Any, bool | None]], *, tools: bool
) -> dict[str, Raw]:
    """The parameters with the tool choice in the API's words; without tools there is nothing to choose (OAI-11c)."""
    if not tools:
        return {key: value for key, value in params.items() if key not in {"tool_choice", "parallel_tool_calls"}}
    if "tool_choice" in params:
        choice, parallel = write(params["tool_choice"])
        params["tool_choice"] = Raw(_encode(choice))
        if parallel is not None:
            params.setdefault("parallel_tool_calls", Raw(_encode(parallel)))
    return params


def _object(value: Raw) -> dict[str, Raw] | None:
    try:
        return msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None


def system_text(given: str | Raw | None, rows: list[str]) -> str:
    """The system prompt and the history's leading system messages as one text, ``""`` where there is none."""
    if given is None:
        texts = []
    elif isinstance(given, str):
        texts = [given]
    else:
        texts = [block.get("text", "") for block in msgspec.json.decode(given, type=list[dict[str, Any]])]
    return "\n\n".join(text for text in [*texts, *rows] if text.strip())
