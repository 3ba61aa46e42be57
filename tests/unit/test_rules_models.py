"""Names of models, in every spelling, lead to their family; what is not known of one is not claimed."""

from __future__ import annotations

import pytest
from build import said, user

from pipeline.rules import RULES, validate
from pipeline.rules.anthropic.catalogue import UNKNOWN as UNKNOWN_CLAUDE
from pipeline.rules.anthropic.catalogue import family_of as claude_family
from pipeline.rules.bedrock_converse.catalogue import family_of as converse_family
from pipeline.rules.gemini.catalogue import family_of as gemini_family
from pipeline.rules.openai_chat.catalogue import family_of as chat_family
from pipeline.rules.vllm import UNKNOWN as UNKNOWN_TEMPLATE
from pipeline.rules.vllm import template_of


@pytest.mark.parametrize(
    ("family_of", "model", "name"),
    [
        (claude_family, "claude-sonnet-4-5", "claude-4-5"),
        (claude_family, "claude-sonnet-4-5-20250929", "claude-4-5"),
        (claude_family, "claude-haiku-4.5", "claude-4-5"),
        (claude_family, "anthropic/claude-haiku-4.5", "claude-4-5"),
        (claude_family, "us.anthropic.claude-opus-4-20250514-v1:0", "claude-4"),
        (claude_family, "claude-sonnet-4@20250514", "claude-4"),
        (claude_family, "claude-sonnet-4-0", "claude-4"),
        (claude_family, "claude-opus-4-1-20250805", "claude-4-1"),
        (claude_family, "claude-3-5-haiku-20241022", "claude-3-5"),
        (claude_family, "claude-3-7-sonnet-latest", "claude-3-7"),
        (claude_family, "claude-3-opus-20240229", "claude-3"),
        (claude_family, "claude-2.1", "claude-2"),
        (claude_family, "anthropic.claude-v2:1", "unknown"),
        (claude_family, "claude-opus-4-6-v1", "claude-4-6"),
        (claude_family, "claude-sonnet-4-6", "claude-sonnet-4-6"),
        (claude_family, "claude-opus-4-8", "claude-4-8"),
        (claude_family, "claude-opus-4-8[1m]", "claude-4-8"),
        (claude_family, "Claude-Sonnet-5", "claude-5"),
        (claude_family, "claude-fable-5", "claude-5"),
        (claude_family, "databricks-claude-3-7-sonnet", "claude-3-7"),
        (claude_family, "openrouter/anthropic/claude-3.5-sonnet:beta", "claude-3-5"),
        (claude_family, "claude-sonnet-4-5-acme", "unknown"),
        (claude_family, "my-claude-4-8", "unknown"),
        (claude_family, "claude-opus-9", "unknown"),
        (claude_family, "gpt-4-5", "unknown"),
        (claude_family, "claude", "unknown"),
        (claude_family, "", "unknown"),
        (claude_family, None, "unknown"),
        (chat_family, "o1-mini-2024-09-12", "o1-mini"),
        (chat_family, "o1-preview", "o1-mini"),
        (chat_family, "openai/o3", "o"),
        (chat_family, "gpt-5-mini-2025-08-07", "gpt-5"),
        (chat_family, "gpt-4o-mini-audio-preview", "gpt-audio"),
        (chat_family, "gpt-audio-mini", "gpt-audio"),
        (chat_family, "gpt-4.1-nano", "gpt-4.1"),
        (chat_family, "gpt-4o", "unknown"),
        (chat_family, "deepseek-chat", "unknown"),
        (chat_family, "deepseek-v4-flash", "deepseek"),
        (chat_family, "kimi-k2-thinking-turbo", "kimi-thinking"),
        (chat_family, "moonshotai/kimi-k2.5", "kimi"),
        (chat_family, "moonshotai/kimi-k2-instruct-0905", "unknown"),
        (chat_family, "kimi-k2-0905-preview", "unknown"),
        (chat_family, None, "unknown"),
        (template_of, "google/gemma-3-27b-it", "gemma"),
        (template_of, "meta-llama/Llama-2-7b-chat-hf", "llama-2"),
        (template_of, "meta-llama/Llama-3.1-8B-Instruct", "llama-3"),
        (template_of, "meta-llama/llama-4-maverick", "unknown"),
        (template_of, "codellama/CodeLlama-34b-Instruct-hf", "unknown"),
        (template_of, "mistralai/Devstral-Small-2507", "devstral"),
        (template_of, "mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        (template_of, "open-mixtral-8x22b", "mistral-7b"),
        (template_of, "mistral-small-latest", "mistral"),
        (template_of, "Qwen/Qwen3.5-397B-A17B-FP8", "qwen-3.5"),
        (template_of, "qwen3-6-35b", "qwen-3.5"),
        (template_of, "Qwen/Qwen3-Coder-30B", "qwen-3-coder"),
        (template_of, "Qwen/Qwen2.5-7B-Instruct", "qwen"),
        (template_of, "zai-org/GLM-4.6", "glm-4"),
        (template_of, "openai/gpt-oss-120b", "gpt-oss"),
        (template_of, "", "unknown"),
        (gemini_family, "models/gemini-2.5-flash", "gemini-2"),
        (gemini_family, "gemini-3.1-flash-lite-preview", "gemini-3"),
        (gemini_family, "gemini-live-2.5-flash", "gemini-2"),
        (gemini_family, "gemini-flash-latest", "unknown"),
        (gemini_family, None, "unknown"),
        (converse_family, "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-4-5"),
        (converse_family, "anthropic.claude-v2", "claude"),
        (converse_family, "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0", "nova"),
        (converse_family, "us.mistral.pixtral-large-2502-v1:0", "mistral"),
        (converse_family, "openai.gpt-oss-120b-1:0", "unknown"),
        (converse_family, "acme.innovation-1", "unknown"),
        (converse_family, "supernova", "unknown"),
    ],
)
def test_names(family_of, model, name):
    assert family_of(model).name == name


@pytest.mark.parametrize(("unknown", "facts"), [(UNKNOWN_CLAUDE, 5), (UNKNOWN_TEMPLATE, 12)])
def test_nothing_is_known_of_an_unknown_family(unknown, facts):
    assert [getattr(unknown, fact) for fact in unknown.__struct_fields__ if fact != "name"] == [None] * facts


def test_a_rule_names_the_families_that_its_fact_says_refuse():
    assert RULES["ANT-19"].families == (
        "claude-2", "claude-3", "claude-3-5", "claude-3-7", "claude-4", "claude-4-1", "claude-4-5", "claude-4-6",
        "claude-sonnet-4-6",
    )  # fmt: skip
    assert RULES["ANT-23"].families == ("claude-3-7", "claude-4")
    assert "claude-sonnet-4-6" not in RULES["ANT-25"].families
    assert RULES["VLM-09"].families == ("devstral", "mistral-7b", "mistral")


HI = {"text": "hi"}
CALL = {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}
DOCUMENT = {"document": {"name": "d", "format": "txt", "source": {"text": "x"}}}
IN_S3 = {"s3Location": {"uri": "s3://bucket/x"}}


def result(*parts):
    return {"toolResult": {"toolUseId": "t", "content": [*parts]}}


def reasoning(**text):
    return {"reasoningContent": {"reasoningText": {"text": "r", **text}}}


# What breaks each rule that only some models behind Converse have.
BREACHES = {
    "BED-01b": [said(HI), user(HI)],
    "BED-02": [user(HI), user(HI)],
    "BED-08": [user({"text": " "})],
    "BED-11": [user(HI), said(HI)],
    "BED-15": [user(HI), said(reasoning(signature="s"), HI), user(HI)],
    "BED-17": [user(HI), said(CALL), user(result(HI), HI)],
    "BED-18": [user(HI), said(reasoning(), HI), user(HI)],
    "BED-23": [user(HI, {"image": {"format": "png", "source": IN_S3}})],
    "BED-24": [user(HI, {"video": {"format": "mp4", "source": IN_S3}})],
    "BED-25": [user(HI), said(CALL), user(result(DOCUMENT))],
    "BED-28": [user(CALL)],
}


# h: hard, m: only some models, nobody knows of this one, -: taken, or nothing said; in the order of the rules above.
@pytest.mark.parametrize(
    ("model", "severities"),
    [
        ("anthropic.claude-3-haiku-20240307-v1:0", "hmh---hhh-h"),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", "hhh---hhh-h"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "-mh---hhh-h"),
        ("us.anthropic.claude-opus-4-6-v1", "mmhh--hhh-h"),
        ("anthropic.claude-acme", "mmh---hhh-h"),
        ("us.amazon.nova-pro-v1:0", "m--------h-"),
        ("amazon.titan-text-express-v1", "m-m--m-mmm-"),
        ("meta.llama3-1-70b-instruct-v1:0", "mmm--h-mm--"),
        ("mistral.mistral-large-2402-v1:0", "mmm--h-mm--"),
        ("us.deepseek.r1-v1:0", "mmm-hm-mmm-"),
        ("acme.innovation-1", "mmm--m-mmmm"),
    ],
)
def test_what_models_behind_converse_refuse(model, severities):
    tools = {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}
    told = ""
    for rule, messages in BREACHES.items():
        body = {"modelId": model, "messages": messages, "toolConfig": tools}
        found = {violation.rule: violation.severity[0] for violation in validate(body, "bedrock-converse")}
        told += found.get(rule, "-")
    assert told == severities
