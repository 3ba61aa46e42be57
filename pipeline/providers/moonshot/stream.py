"""Streams of Moonshot's API, which have the shape of OpenAI's, and ``reasoning_content`` in their deltas."""

from __future__ import annotations

from typing import ClassVar

from reknit.pipeline.providers.openai_chat.stream import OpenAiChat


class Moonshot(OpenAiChat):
    issuer: ClassVar[str] = "moonshot"
