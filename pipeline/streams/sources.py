"""The sources of provider events, by name. A new one is a decoder (see ``decoder``) and a line here."""

from __future__ import annotations

from pipeline.errors import UnknownTargetError
from pipeline.streams.anthropic.decoder import Anthropic
from pipeline.streams.bedrock_converse import BedrockConverse
from pipeline.streams.cascade.decoder import Cascade
from pipeline.streams.claude_cli.decoder import ClaudeCli
from pipeline.streams.decoder import Decoder
from pipeline.streams.gemini import Gemini
from pipeline.streams.openai_chat import OpenAiChat, Vllm
from pipeline.streams.openai_responses import OpenAiResponses

SOURCES: dict[str, type[Decoder]] = {
    "claude-cli": ClaudeCli,
    "anthropic": Anthropic,
    "bedrock-converse": BedrockConverse,
    "cascade": Cascade,
    "gemini": Gemini,
    "openai-chat": OpenAiChat,
    "openai-responses": OpenAiResponses,
    "vllm": Vllm,
}


def source(name: str) -> type[Decoder]:
    """The decoder class of a source.

    Raises:
        UnknownTargetError: there is no such source.
    """
    found = SOURCES.get(name)
    if found is None:
        raise UnknownTargetError(
            "unknown_source", f"there is no source {name!r}; the sources are {', '.join(sorted(SOURCES))}"
        )
    return found
