"""Families of models behind Converse: which of the rules that differ between them each has."""

from __future__ import annotations

import re

from pipeline.rules.anthropic.families import FAMILIES as CLAUDE
from pipeline.rules.anthropic.families import UNKNOWN, Claude
from pipeline.rules.anthropic.families import family_of as claude_of
from pipeline.rules.base import Family


class Converse(Family, frozen=True):
    """What one family of models takes through Bedrock's Converse API.

    Attributes:
        name: the family; for Claude, that of ``family``.
        assistant_first: a conversation may start with the assistant (refused for Claude 3.5: langgenius/dify#12340;
            recorded for Sonnet 4.5).
        neighbours: two messages of one role in a row (refused for Claude 3.5: langgenius/dify#9294; recorded for Nova
            and Titan).
        blank_text: text blocks of whitespace (refused for Claude: aws/aws-sdk-net#4015; recorded for Nova).
        mixed_results: tool results beside other blocks (refused for Llama and Mistral: strands-agents/harness-sdk#1223,
            langchain-ai/langchain-aws#141; recorded for Claude and Nova).
        reasoning: reasoning may be sent back (refused for DeepSeek: langchain-ai/langchain-aws#401).
        unsigned_reasoning: reasoning without a signature.
        unlike_anthropic: ids used again and blocks of the other role, which Anthropic's own API refuses.
        prefill: a conversation may end with the assistant.
        prefill_with_tools: also when it has tools (Claude 3 recorded to refuse).
        video, s3_images: video blocks; images by S3 location (Claude recorded to refuse, Nova to take).
        files_in_results: documents and videos inside a tool result (Nova 2 recorded to refuse).
    """

    assistant_first: bool | None = None
    neighbours: bool | None = None
    blank_text: bool | None = None
    mixed_results: bool | None = None
    reasoning: bool | None = None
    unsigned_reasoning: bool | None = None
    unlike_anthropic: bool | None = None
    prefill: bool | None = None
    prefill_with_tools: bool | None = None
    video: bool | None = None
    s3_images: bool | None = None
    files_in_results: bool | None = None


def _behind_converse(known: Claude) -> Converse:
    old = known.name in ("claude-3", "claude-3-5")
    return Converse(
        name=known.name if known is not UNKNOWN else "claude",
        assistant_first=False if old else True if known.name == "claude-4-5" else None,
        neighbours=False if known.name == "claude-3-5" else None,
        blank_text=False,
        mixed_results=True,
        reasoning=True,
        unsigned_reasoning=False,
        unlike_anthropic=False,
        prefill=known.prefill,
        prefill_with_tools=False if known.name == "claude-3" else None,
        video=False,
        s3_images=False,
        files_in_results=True,
    )


_CLAUDE = {known.name: _behind_converse(known) for known in (*CLAUDE, UNKNOWN)}
_OTHERS: dict[str, Converse] = {
    "nova": Converse(
        "nova",
        unlike_anthropic=True,
        neighbours=True,
        blank_text=True,
        mixed_results=True,
        video=True,
        s3_images=True,
        files_in_results=False,
    ),
    "titan": Converse("titan", unlike_anthropic=True, neighbours=True),
    "llama": Converse("llama", unlike_anthropic=True, mixed_results=False, files_in_results=True),
    "mistral": Converse("mistral", unlike_anthropic=True, mixed_results=False, files_in_results=True),
    "deepseek": Converse("deepseek", unlike_anthropic=True, reasoning=False),
}
FAMILIES = (*_CLAUDE.values(), *_OTHERS.values())
_UNKNOWN = Converse("unknown")
# A family's name is a word of the id (us.amazon.nova-pro-v1:0, meta.llama3-1-70b), not some letters of another.
_WORDS = re.compile(r"(?<![a-z])(?:claude|nova|titan|llama|mistral|deepseek)(?![a-z])")


def family_of(model: str | None) -> Converse:
    """Find the family of a Bedrock model id or inference profile (``us.amazon.nova-pro-v1:0``)."""
    name = (model or "").lower()
    word = _WORDS.search(name)
    if word is None:
        return _UNKNOWN
    return _CLAUDE[claude_of(name).name] if word[0] == "claude" else _OTHERS[word[0]]
