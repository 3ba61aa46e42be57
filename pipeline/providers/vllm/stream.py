"""Streams of servers of open models, which have the shape of OpenAI's Chat Completions API."""

from __future__ import annotations

from typing import ClassVar

from reknit.pipeline.providers.openai_chat.stream import OpenAiChat


class Vllm(OpenAiChat):
    issuer: ClassVar[str] = "vllm"
