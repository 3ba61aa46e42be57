"""Model families: which of the rules that differ between models each of them has.

True and False are known, from recorded traffic or from the reports named beside the column; None is not known, and
the rule is then reported with severity ``model``.
"""

from __future__ import annotations

import re

from msgspec import Struct


class Family(Struct, frozen=True):
    """What one family of Claude models takes.

    Attributes:
        name: the family, with the line (opus, sonnet) where that makes a difference.
        prefill: a request may end with an assistant message. Refused from 4.6 on (anthropics/claude-code#52433,
            skyvern#4795, recorded for Sonnet 5); Sonnet 4.6 is contested: snap-stanford/Biomni#284 saw it refuse,
            aws/bedrock-agentcore-sdk-python#547 saw it accept.
        system_turns: ``role: system`` inside messages; 4.8 and later (recorded, and LiteLLM's live probes).
        empty_thinking: a signed thinking block with no text, as 4.7 and later write them (recorded).
        thinking_first: with thinking enabled, the turn of the current tool loop starts with a thinking block
            (reports of 2025: anomalyco/opencode#3077, deepset-ai/haystack-core-integrations#2146). The documentation
            of 2026 says that thinking is switched off silently instead, so it is not known for later models.
        media_sniffed: the declared media type of an image is compared with its bytes (vybestack/llxprt-code#2130);
            Claude 3.5 took a JPEG declared as PNG (recorded).
    """

    name: str
    prefill: bool | None = None
    system_turns: bool | None = None
    empty_thinking: bool | None = None
    thinking_first: bool | None = None
    media_sniffed: bool | None = None


YES, NO = True, False
UNKNOWN = Family("unknown")

# Version -> family; a line's own entry wins over the version's.
#                                      prefill system empty  first  sniffed
_FAMILIES: dict[tuple[int, int] | tuple[int, int, str], Family] = {
    (2, 0): Family("claude-2", YES, NO, NO, NO, None),
    (2, 1): Family("claude-2", YES, NO, NO, NO, None),
    (3, 0): Family("claude-3", YES, NO, NO, NO, NO),
    (3, 5): Family("claude-3-5", YES, NO, NO, NO, NO),
    (3, 7): Family("claude-3-7", YES, NO, NO, YES, None),
    (4, 0): Family("claude-4", YES, NO, NO, YES, YES),
    (4, 1): Family("claude-4-1", YES, NO, NO, None, YES),
    (4, 5): Family("claude-4-5", YES, NO, NO, None, YES),
    (4, 6): Family("claude-4-6", NO, NO, NO, None, YES),
    (4, 6, "sonnet"): Family("claude-sonnet-4-6", None, NO, NO, None, YES),
    (4, 7): Family("claude-4-7", NO, NO, YES, None, YES),
    (4, 8): Family("claude-4-8", NO, YES, YES, None, YES),
    (5, 0): Family("claude-5", NO, YES, YES, None, YES),
}

_LINE = re.compile(r"opus|sonnet|haiku|instant|fable|mythos")
_NUMBERS = re.compile(r"(?<![a-z0-9])(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def family(model: str | None) -> Family:
    """Find the family of a model name, in any provider's spelling (``us.anthropic.claude-opus-4-8-v1:0``)."""
    name = (model or "").lower().partition("claude")[2].split("@")[0].split(":")[0]
    numbers = _NUMBERS.search(name)
    if numbers is None:
        return UNKNOWN
    major, minor = int(numbers[1]), int(numbers[2] or 0)
    line = _LINE.search(name)
    known = _FAMILIES.get((major, minor, line[0])) if line else None
    return known or _FAMILIES.get((major, minor), UNKNOWN)


def having(fact: str, *, value: bool) -> tuple[str, ...]:
    """Name the families for which ``fact`` is known to be ``value``."""
    return tuple(dict.fromkeys(known.name for known in _FAMILIES.values() if getattr(known, fact) is value))
