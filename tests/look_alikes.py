"""The targets and sources that have the shape of OpenAI's Chat Completions, for tests of what they share."""

from reknit.pipeline.providers.openai_chat.stream import OpenAiChat
from reknit.pipeline.registry import SOURCES, TARGETS

CHAT_TARGETS = sorted(name for name, target in TARGETS.items() if target.shape == "openai-chat")
CHAT_SOURCES = sorted(name for name, source in SOURCES.items() if issubclass(source.decoder, OpenAiChat))
