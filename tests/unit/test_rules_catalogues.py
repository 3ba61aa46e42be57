"""The catalogues: model names in every spelling lead to their family, and every rule can be explained.

Unknown facts of a model are not claimed.
"""

from __future__ import annotations

import string

import pytest
from build import said, user

from reknit.pipeline.providers.anthropic.rules.catalogue import UNKNOWN as UNKNOWN_CLAUDE
from reknit.pipeline.providers.anthropic.rules.catalogue import family_of as claude_family
from reknit.pipeline.providers.bedrock_converse.rules.catalogue import family_of as converse_family
from reknit.pipeline.providers.gemini.rules.catalogue import family_of as gemini_family
from reknit.pipeline.providers.openai_chat.rules.catalogue import family_of as chat_family
from reknit.pipeline.providers.vllm.rules import UNKNOWN as UNKNOWN_TEMPLATE
from reknit.pipeline.providers.vllm.rules import template_of
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.validation import validate

NAMES = {
    claude_family: {
        "claude-4-5": [
            "claude-sonnet-4-5",
            "claude-sonnet-4-5-20250929",
            "claude-haiku-4.5",
            "anthropic/claude-haiku-4.5",
        ],
        "claude-4": ["us.anthropic.claude-opus-4-20250514-v1:0", "claude-sonnet-4@20250514", "claude-sonnet-4-0"],
        "claude-4-1": ["claude-opus-4-1-20250805"],
        "claude-3-5": ["claude-3-5-haiku-20241022", "openrouter/anthropic/claude-3.5-sonnet:beta"],
        "claude-3-7": ["claude-3-7-sonnet-latest", "databricks-claude-3-7-sonnet"],
        "claude-3": ["claude-3-opus-20240229"],
        "claude-2": ["claude-2.1"],
        "unknown": [
            "anthropic.claude-v2:1",
            "claude-sonnet-4-5-acme",
            "my-claude-4-8",
            "claude-opus-9",
            "gpt-4-5",
            "claude",
            "",
            None,
        ],
        "claude-4-6": ["claude-opus-4-6-v1"],
        "claude-sonnet-4-6": ["claude-sonnet-4-6"],
        "claude-4-8": ["claude-opus-4-8", "claude-opus-4-8[1m]"],
        "claude-5": ["Claude-Sonnet-5", "claude-fable-5"],
    },
    chat_family: {
        "o1-mini": ["o1-mini-2024-09-12", "o1-preview"],
        "o": ["openai/o3"],
        "gpt-5": ["gpt-5-mini-2025-08-07"],
        "gpt-audio": ["gpt-4o-mini-audio-preview", "gpt-audio-mini"],
        "gpt-4.1": ["gpt-4.1-nano"],
        "unknown": ["gpt-4o", "deepseek-chat", "moonshotai/kimi-k2-instruct-0905", "kimi-k2-0905-preview", None],
        "deepseek": ["deepseek-v4-flash"],
        "kimi-thinking": ["kimi-k2-thinking-turbo"],
        "kimi": ["moonshotai/kimi-k2.5"],
    },
    template_of: {
        "gemma": ["google/gemma-3-27b-it"],
        "llama-2": ["meta-llama/Llama-2-7b-chat-hf"],
        "llama-3": ["meta-llama/Llama-3.1-8B-Instruct"],
        "unknown": ["meta-llama/llama-4-maverick", "codellama/CodeLlama-34b-Instruct-hf", ""],
        "devstral": ["mistralai/Devstral-Small-2507"],
        "mistral-7b": ["mistralai/Mistral-7B-Instruct-v0.3", "open-mixtral-8x22b"],
        "mistral": ["mistral-small-latest"],
        "qwen-3.5": ["Qwen/Qwen3.5-397B-A17B-FP8", "qwen3-6-35b"],
        "qwen-3-coder": ["Qwen/Qwen3-Coder-30B"],
        "qwen": ["Qwen/Qwen2.5-7B-Instruct"],
        "glm-4": ["zai-org/GLM-4.6"],
        "gpt-oss": ["openai/gpt-oss-120b"],
    },
    gemini_family: {
        "gemini-2": ["models/gemini-2.5-flash", "gemini-live-2.5-flash"],
        "gemini-3": ["gemini-3.1-flash-lite-preview"],
        "unknown": ["gemini-flash-latest", None],
    },
    converse_family: {
        "claude-4-5": ["us.anthropic.claude-sonnet-4-5-20250929-v1:0"],
        "claude": ["anthropic.claude-v2"],
        "nova": ["arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0", "amazon.nova-20-lite-v1:0"],
        "nova-2": ["us.amazon.nova-2-lite-v1:0", "global.amazon.nova-2-pro-v1:0"],
        "mistral": ["us.mistral.pixtral-large-2502-v1:0"],
        "unknown": ["openai.gpt-oss-120b-1:0", "acme.innovation-1", "supernova"],
    },
}


@pytest.mark.parametrize(
    ("family_of", "model", "name"),
    [(find, model, name) for find, named in NAMES.items() for name, models in named.items() for model in models],
)
def test_names(family_of, model, name):
    assert family_of(model).name == name


@pytest.mark.parametrize(("unknown", "facts"), [(UNKNOWN_CLAUDE, 6), (UNKNOWN_TEMPLATE, 12)])
def test_an_unknown_family_has_no_facts(unknown, facts):
    assert [getattr(unknown, fact) for fact in unknown.__struct_fields__ if fact != "name"] == [None] * facts


def test_a_rule_names_the_families_that_enforce_it():
    assert RULES["ANT-19"].families == (
        "claude-2", "claude-3", "claude-3-5", "claude-3-7", "claude-4", "claude-4-1", "claude-4-5", "claude-4-6",
        "claude-sonnet-4-6",
    )  # fmt: skip
    assert RULES["ANT-23"].families == ("claude-3-7", "claude-4")
    assert "claude-sonnet-4-6" not in RULES["ANT-25"].families
    assert RULES["VLM-09"].families == ("devstral", "mistral-7b", "mistral")


def test_every_rule_can_be_explained():
    for key, rule in RULES.items():
        assert key == rule.id
        assert rule.summary.endswith(".")
        assert rule.repair
        assert rule.source
        assert [name for _, name, _, _ in string.Formatter().parse(rule.message) if name == ""] == []
        assert (rule.severity == "model") == bool(rule.families)
        # A rule that no body shows may be about a family that the catalogue does not have otherwise.
        known = {family.name for family in TARGETS[rule.target].catalogue.families}
        assert rule.unchecked or {*rule.families} <= known


def test_unchecked_rules_give_a_reason():
    assert sorted(rule.id for rule in RULES.values() if rule.unchecked) == [
        "ANT-06b", "ANT-07a", "ANT-22", "ANT-33", "CDX-04", "COP-05", "GCL-05", "GEM-04b", "GEM-04c", "GEM-11",
        "MMX-01", "OAI-01c", "OAI-22", "RSP-04", "RSP-07", "RSP-23",
    ]  # fmt: skip


HI = {"text": "hi"}
CALL = {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}
DOCUMENT = {"document": {"name": "d", "format": "txt", "source": {"text": "x"}}}
IN_S3 = {"s3Location": {"uri": "s3://bucket/x"}}


def result(*parts):
    return {"toolResult": {"toolUseId": "t", "content": [*parts]}}


def reasoning(**text):
    return {"reasoningContent": {"reasoningText": {"text": "r", **text}}}


# Bodies that break each rule that only some models of Converse have.
BREACHES = {
    "BED-01b": [said(HI), user(HI)],
    "BED-02": [user(HI), user(HI)],
    "BED-08": [user({"text": " "})],
    "BED-11": [user(HI), said(HI)],
    "BED-15": [user(HI), said(reasoning(signature="s"), HI), user(HI)],
    "BED-17": [user(HI), said(CALL), user(result(HI), HI)],
    "BED-18": [user(HI), said(reasoning(), HI), user(HI)],
    "BED-18b": [user(HI), said(reasoning(signature="9f3c1a77b2e04d55aa10c3de"), HI), user(HI)],
    "BED-23": [user(HI, {"image": {"format": "png", "source": IN_S3}})],
    "BED-24": [user(HI, {"video": {"format": "mp4", "source": IN_S3}})],
    "BED-25": [user(HI), said(CALL), user(result(DOCUMENT))],
    "BED-28": [user(CALL)],
}


# h: hard, m: only some models, and unknown for this one, -: accepted or not stated; in the order of the rules above.
@pytest.mark.parametrize(
    ("model", "severities"),
    [
        ("anthropic.claude-3-haiku-20240307-v1:0", "hmh---hhhh-h"),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", "hhh---hhhh-h"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "-mh---hhhh-h"),
        ("us.anthropic.claude-opus-4-6-v1", "mmhh--hhhh-h"),
        ("anthropic.claude-acme", "mmh---hhhh-h"),
        ("us.amazon.nova-pro-v1:0", "m---------h-"),
        ("amazon.titan-text-express-v1", "m-m--m--mmm-"),
        ("meta.llama3-1-70b-instruct-v1:0", "mmm--h--mm--"),
        ("mistral.mistral-large-2402-v1:0", "mmm--h--mm--"),
        ("us.deepseek.r1-v1:0", "mmm-hm--mmm-"),
        ("acme.innovation-1", "mmm--m--mmmm"),
    ],
)
def test_rejections_by_models_of_converse(model, severities):
    tools = {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}
    told = ""
    for rule, messages in BREACHES.items():
        body = {"modelId": model, "messages": messages, "toolConfig": tools}
        found = {violation.rule: violation.severity[0] for violation in validate(body, "bedrock-converse")}
        told += found.get(rule, "-")
    assert told == severities
