"""A request's parameters in Anthropic's words.

What another provider has under another name, with the same meaning, is translated; that is constant and makes no fix.
What the API has no name for is left out, and recorded. Parameters that are all Anthropic's stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from pipeline.fixes import Fix, make
from pipeline.targets.names import legal_name
from pipeline.targets.params import read_choice, sort_params

PARAMETERS: Final = frozenset(
    {
        "anthropic_beta", "anthropic_version", "betas", "billing_policy", "cache_control", "compaction", "container",
        "context_management", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "max_tokens",
        "mcp_servers", "metadata", "output_config", "output_format", "service_tier", "speed", "stop_sequences",
        "stream", "temperature", "thinking", "thread", "tool_choice", "top_k", "top_p", "user_profile_id",
        "workspace_id",
    }
)  # fmt: skip
"""The parameters that the API's documentation names, those of betas, Bedrock and Vertex included."""

# They stand elsewhere in the request.
_ELSEWHERE: Final = frozenset({"messages", "model", "system", "tools"})

_encode = msgspec.json.Encoder().encode


def written_params(given: Mapping[str, Raw], target: str, longest_name: int, fixes: list[Fix]) -> dict[str, Raw]:
    """The parameters as the API takes them; a tool that is chosen is named in at most ``longest_name`` characters."""
    params = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    if not params.keys() <= PARAMETERS:
        found = sort_params(params)
        params = found.common | found.rest
    kept: dict[str, Raw] = {}
    for name, value in params.items():
        written = _choice(value, longest_name) if name == "tool_choice" else value
        if name in PARAMETERS and written is not None:
            kept[name] = written
        else:
            fixes.append(make("param_dropped", f"params.{name}", before=value, target=target, detail=name))
    return kept


def _choice(value: Raw, longest_name: int) -> Raw | None:
    """A choice of a tool in the API's words, naming the tool as the tools do; None where it is no choice."""
    if bytes(value) == b"null":
        return value
    choice = read_choice(value)
    if choice is None:
        return None
    given: Any = msgspec.json.decode(value)
    own = isinstance(given, dict) and given.get("type") == choice.kind
    named = {"name": legal_name(choice.name, longest_name)} if choice.kind == "tool" else {}
    if own and given == given | named:
        return value
    return Raw(_encode((given if own else {"type": choice.kind}) | named))
