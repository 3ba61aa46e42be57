"""Streams of Mistral's API, which have the shape of OpenAI's; their thinking is a part of the content."""

from __future__ import annotations

from typing import ClassVar

from reknit.pipeline.providers.openai_chat.stream import OpenAiChat


class Mistral(OpenAiChat):
    issuer: ClassVar[str] = "mistral"
