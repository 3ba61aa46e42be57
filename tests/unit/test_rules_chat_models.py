"""Names of chat models and of open models lead to their family; what is not known of one is not claimed."""

from __future__ import annotations

import pytest

from pipeline.rules.models import UNKNOWN_TEMPLATE, chat_family, template


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("o1-mini-2024-09-12", "o1-mini"),
        ("o1-preview", "o1-mini"),
        ("openai/o3", "o"),
        ("gpt-5-mini-2025-08-07", "gpt-5"),
        ("gpt-4o-mini-audio-preview", "gpt-audio"),
        ("gpt-audio-mini", "gpt-audio"),
        ("gpt-4.1-nano", "gpt-4.1"),
        ("gpt-4o", "unknown"),
        ("deepseek-chat", "unknown"),
        ("deepseek-v4-flash", "deepseek"),
        ("kimi-k2-thinking-turbo", "kimi-thinking"),
        ("moonshotai/kimi-k2.5", "kimi"),
        ("moonshotai/kimi-k2-instruct-0905", "unknown"),
        ("kimi-k2-0905-preview", "unknown"),
        (None, "unknown"),
    ],
)
def test_chat_families(model, name):
    assert chat_family(model).name == name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("google/gemma-3-27b-it", "gemma"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3"),
        ("meta-llama/llama-4-maverick", "unknown"),
        ("mistralai/Devstral-Small-2507", "devstral"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("open-mixtral-8x22b", "mistral-7b"),
        ("mistral-small-latest", "mistral"),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen-3.5"),
        ("qwen3-6-35b", "qwen-3.5"),
        ("Qwen/Qwen3-Coder-30B", "qwen-3-coder"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("zai-org/GLM-4.6", "glm-4"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("", "unknown"),
    ],
)
def test_templates(model, name):
    assert template(model).name == name


def test_nothing_is_known_of_an_unknown_template():
    facts = [getattr(UNKNOWN_TEMPLATE, fact) for fact in UNKNOWN_TEMPLATE.__struct_fields__ if fact != "name"]
    assert facts == [None] * 12
