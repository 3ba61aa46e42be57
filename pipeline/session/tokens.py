"""Estimates of tokens, by one documented rule for each model family.

No provider publishes its tokenizer for every model, so that policy ``fit`` counts by the rules that the providers state
for English text. A rule counts bytes of JSON in UTF-8, and not characters: other scripts need more tokens for a
character, and more bytes. Media count by their sides, not by their bytes. Callers of the library may give their own
function of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Block, Document, Image, Text, ToolResult
from reknit.pipeline.targets import Setting
from reknit.pipeline.targets.media import inspect

CountTokens: TypeAlias = Callable[[str], int]
"""Counts the tokens of a text."""


class TokenRule(Struct, frozen=True, kw_only=True):
    """How the tokens of a model family are estimated.

    Attributes:
        family: its name.
        models: the pattern that the names of its models contain.
        bytes: bytes of text for one token.
        pixels: pixels of an image for one token.
        least: the tokens of an image at least.
        most: the tokens of an image at most, and of one whose sides are unknown.
        page: the tokens of a page of a PDF.
        source: where the provider states this.
    """

    family: str
    models: str
    bytes: float
    pixels: int
    least: int
    most: int
    page: int
    source: str


RULES: Final = (
    TokenRule(
        family="Claude, from Opus 4.7 and Claude 5 on",
        models=r"claude-(?:[a-z]+-)?(?:4[-.](?:[7-9]|[1-9]\d)(?!\d)|(?:[5-9]|[1-9]\d)(?!\d))",
        bytes=2.7,
        pixels=750,
        least=1,
        most=4784,
        page=3900,
        source="platform.claude.com, Token counting: about 30 percent more tokens than earlier models; Vision",
    ),
    TokenRule(
        family="Claude, earlier models",
        models="claude",
        bytes=3.5,
        pixels=750,
        least=1,
        most=1568,
        page=3000,
        source="platform.claude.com, Glossary: a token is about 3.5 English characters; Vision; PDF support",
    ),
    TokenRule(
        family="Gemini",
        models="gemini|gemma",
        bytes=4.0,
        pixels=2286,
        least=258,
        most=1120,
        page=560,
        source="ai.google.dev, Understand and count tokens: a token is about 4 characters; Media resolution",
    ),
    TokenRule(
        family="OpenAI",
        models=r"gpt|(?:^|/)o\d|codex|chatgpt",
        bytes=4.0,
        pixels=1542,
        least=85,
        most=1445,
        page=1445,
        source="help.openai.com, What are tokens: a token is about 4 characters in English; Images and vision",
    ),
    TokenRule(
        family="other models, and none",
        models="",
        bytes=3.3,
        pixels=750,
        least=85,
        most=1568,
        page=3000,
        source="api-docs.deepseek.com, Token usage: an English character is about 0.3 token",
    ),
)
"""The rules in the order in which a model's name is compared."""

_PATTERNS: Final = [(re.compile(rule.models), rule) for rule in RULES]
# Base64 text of a PDF's page, where its size is all that is known: ours, from scanned and typeset pages.
PAGE_BYTES: Final = 50_000
_encode = msgspec.json.Encoder().encode


class _Source(Struct, frozen=True):
    type: str = ""


class _Base64(Struct, frozen=True):
    data: str = ""


_SOURCE: Final = msgspec.json.Decoder(_Source)
_BASE64: Final = msgspec.json.Decoder(_Base64)


def rule_for(model: str | None) -> TokenRule:
    """Return the rule for a model."""
    name = (model or "").lower()
    return next(rule for pattern, rule in _PATTERNS if pattern.search(name))


class TokenEstimate:
    """Estimates the tokens of turns and of a request's head, for one model."""

    def __init__(self, model: str | None, count: CountTokens | None = None) -> None:
        self._rule = rule_for(model)
        self.count = count

    def of_head(self, setting: Setting) -> int:
        """The tokens of the system prompt and the tools."""
        system = setting.system or ""
        tokens = self._of_text(system.encode() if isinstance(system, str) else bytes(system))
        return tokens + sum(self._of_text(_encode(tool)) for tool in setting.tools)

    def of_blocks(self, blocks: Iterable[Block]) -> int:
        """The tokens of some blocks."""
        tokens, texts = 0, list[bytes]()
        for block in blocks:
            if isinstance(block, ToolResult) and isinstance(block.content, list):
                texts.append(_encode([block.tool_use_id, *(part for part in block.content if type(part) is Text)]))
                tokens += self.of_blocks(part for part in block.content if type(part) is not Text)
            elif isinstance(block, Image):
                tokens += self._of_image(block.source)
            elif isinstance(block, Document):
                tokens += self._of_document(block.source)
            else:
                texts.append(_encode(block))
        return tokens + (self._of_text(b"".join(texts)) if texts else 0)

    def _of_text(self, data: bytes) -> int:
        if self.count is not None:
            return max(0, int(self.count(data.decode("utf-8", "replace"))))
        return -(-len(data) * 10 // round(self._rule.bytes * 10))

    def _of_image(self, source: Raw) -> int:
        rule, facts = self._rule, inspect(source)
        if facts is None or not facts.longest_side:
            return rule.most
        return min(max(-(-facts.width * facts.height // rule.pixels), rule.least), rule.most)

    def _of_document(self, source: Raw) -> int:
        found = decoded(_SOURCE, source)
        if found is not None and found.type in {"text", "content"}:
            return self._of_text(bytes(source))
        data = decoded(_BASE64, source)
        pages = -(-len(data.data) // PAGE_BYTES) if data is not None else 0
        return max(pages, 1) * self._rule.page
