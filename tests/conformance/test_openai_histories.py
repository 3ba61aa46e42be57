"""The broken histories of the issue threads, mended for OpenAI's APIs and their kin, whole and turn by turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import validate
from pipeline.testing import Kit

HERE = Path(__file__).parent
VECTORS = [json.loads(line) for line in (HERE / "broken_histories.jsonl").read_text(encoding="utf-8").splitlines()]
TARGETS = [
    ("openai-chat", "gpt-5-mini"),
    ("openai-chat", "kimi-k2-thinking"),
    ("openai-responses", "gpt-5-mini"),
    ("vllm", "Qwen/Qwen3.5-9B"),
    ("vllm", "meta-llama/Llama-3.1-8B-Instruct"),
    ("vllm", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("vllm", "google/gemma-3-27b-it"),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
@pytest.mark.parametrize(("target", "model"), TARGETS)
def test_a_history_that_providers_refuse_is_mended(vector, target, model):
    done = Kit(target, setting={"model": model}).check(vector["messages"])
    assert [found for found in validate(done.body, target) if found.severity != "soft"] == []


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
@pytest.mark.parametrize(("target", "model"), TARGETS)
def test_no_mark_of_a_broken_history_is_lost_without_a_fix(vector, target, model):
    Kit(target, setting={"model": model}).marked(vector["messages"])
