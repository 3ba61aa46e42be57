"""Checks of the parameters that a model takes."""

from __future__ import annotations

from mock_provider.claude_messages import thinking_of
from mock_provider.received import Received, members
from mock_provider.sentences import RefusedError


def check_parameters(request: Received) -> None:
    """Refuse the first parameter that the model does not take."""
    facts, shape = request.facts, request.party.shape
    held = {**request.body, **members(request.body.get("inferenceConfig"))}
    for name in sorted(facts.refused_params):
        if name in held:
            raise RefusedError("deprecated" if shape in ("messages", "converse") else "unsupported", name=name)
    if shape not in ("messages", "converse"):
        return
    if facts.adaptive_only and thinking_of(request).get("type") == "enabled":
        raise RefusedError("adaptive")
    now = held.get("max_tokens") or held.get("maxTokens") or 0
    if now > facts.output_max:
        raise RefusedError("max_tokens", now=now, most=facts.output_max, model=request.party.model)
