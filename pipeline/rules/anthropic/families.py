"""Families of Claude models: which of the rules that differ between them each has.

Known is what recorded traffic shows, or the reports named beside a fact.
"""

from __future__ import annotations

import re

from pipeline.rules.base import Family


class Claude(Family, frozen=True):
    """What one family of Claude models takes.

    Attributes:
        name: the family, with the line (opus, sonnet) where that makes a difference.
        prefill: a request may end with an assistant message. Refused from 4.6 on (anthropics/claude-code#52433,
            skyvern#4795, recorded for Sonnet 5); Sonnet 4.6 is contested: snap-stanford/Biomni#284 saw it refuse,
            aws/bedrock-agentcore-sdk-python#547 saw it accept.
        system_turns: ``role: system`` inside messages; 4.8 and later (recorded, and LiteLLM's live probes).
        empty_thinking: a signed thinking block with no text, as 4.7 and later write them (recorded).
        thoughtless_loop: with thinking enabled, the turn of the current tool loop starts with something else than
            thinking (refused in reports of 2025: anomalyco/opencode#3077, deepset-ai/haystack-core-integrations#2146).
            The documentation of 2026 says that thinking is switched off silently instead, so it is not known for later
            models.
        other_media_type: an image of another type than the one declared (refused in vybestack/llxprt-code#2130);
            Claude 3.5 took a JPEG declared as PNG (recorded).
    """

    prefill: bool | None = None
    system_turns: bool | None = None
    empty_thinking: bool | None = None
    thoughtless_loop: bool | None = None
    other_media_type: bool | None = None


YES, NO = True, False
UNKNOWN = Claude("unknown")

# Version -> family; a line's own entry wins over the version's.
#                              prefill system empty loop other type
_BY_VERSION: dict[tuple[int, int] | tuple[int, int, str], Claude] = {
    (2, 0): Claude("claude-2", YES, NO, NO, YES, None),
    (2, 1): Claude("claude-2", YES, NO, NO, YES, None),
    (3, 0): Claude("claude-3", YES, NO, NO, YES, YES),
    (3, 5): Claude("claude-3-5", YES, NO, NO, YES, YES),
    (3, 7): Claude("claude-3-7", YES, NO, NO, NO, None),
    (4, 0): Claude("claude-4", YES, NO, NO, NO, NO),
    (4, 1): Claude("claude-4-1", YES, NO, NO, None, NO),
    (4, 5): Claude("claude-4-5", YES, NO, NO, None, NO),
    (4, 6): Claude("claude-4-6", NO, NO, NO, None, NO),
    (4, 6, "sonnet"): Claude("claude-sonnet-4-6", None, NO, NO, None, NO),
    (4, 7): Claude("claude-4-7", NO, NO, YES, None, NO),
    (4, 8): Claude("claude-4-8", NO, YES, YES, None, NO),
    (5, 0): Claude("claude-5", NO, YES, YES, None, NO),
}
FAMILIES = tuple(_BY_VERSION.values())

# As claude-3-5-sonnet-20240620, us.anthropic.claude-opus-4-8-v1:0, anthropic/claude-sonnet-4.5:beta, claude-opus-4@1.
# What has more in its name (claude-sonnet-4-5-acme) is a model of its own, of which nothing is known.
_NAME = re.compile(
    r"(?:.*[./]|databricks-)?claude-(?:(?P<line>opus|sonnet|haiku|instant|fable|mythos)-)?"
    r"(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?:-(?P<old_line>opus|sonnet|haiku))?"
    r"(?:-\d{8}|-latest)?(?:-v\d+)?(?:[:@\[].*)?"
)


def family_of(model: str | None) -> Claude:
    """Find the family of a model by its name, in any provider's spelling; what is no such name whole is unknown."""
    name = _NAME.fullmatch((model or "").lower())
    if name is None:
        return UNKNOWN
    version = int(name["major"]), int(name["minor"] or 0)
    line = name["line"] or name["old_line"] or ""
    return _BY_VERSION.get((*version, line)) or _BY_VERSION.get(version, UNKNOWN)
