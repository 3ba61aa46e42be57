"""The OpenAI rules against recorded traffic: what the provider took breaks no hard rule, what it refused breaks one.

The hosts that imitate the API are laxer: their traffic is judged by the rules of ``vllm``, and only where an open
model's server answered.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from pipeline.rules import validate

CORPUS = Path(os.environ.get("REKNIT_CORPUS", Path(__file__).parents[2].parent / "shared" / "corpus"))

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not CORPUS.exists(), reason=f"no recorded traffic at {CORPUS} (set REKNIT_CORPUS)"),
]

TARGETS = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "responses-compat": "openai-responses",
    "openai-compat": "vllm",
}
# Taken with status 200, and broken all the same: the end of the recording's name, and the rule.
NOT_REALLY_TAKEN = {
    ("openai/vllm/responses_api_accepts_null_metadata.yaml", "RSP-20"): "a vLLM server answered, not OpenAI",
    ("test_deepseek_responses[function_tool].yaml", "RSP-09"): "DeepSeek has ids of its own",
    ("parallel_tool_calls_single_turn_streaming.yaml", "VLM-05"): "Groq has a template of its own",
    ("permission_control/permission_control_prompt_example.yaml", "VLM-05"): "llamafile has a template of its own",
    ("mistralai_mistral_small_3_1_24b_instruct/tool_round_trip_2.json", "VLM-06"): "the router rewrites ids",
}
# The one source whose ids were replaced.
REDACTED = re.compile(r"(call|id)_REDACTED_\d")
# Refused for its messages, by what the body does not show.
NOT_FORESEEABLE = {
    "Previous response with id": "only the provider knows which responses it kept",
    "Invalid input: Expected context stuffing file type": "an uploaded file is of another kind",
}
# Refusals of other classes that a body shows as well.
FORESEEABLE_PARAMETERS = re.compile(
    r"Invalid '(temperature|max_output_tokens)'|Setting 'max_tokens'|Unsupported parameter: 'max_tokens'"
    r"|Unrecognized request argument|Missing required parameter: 'tools"
)


def recordings(name):
    with gzip.open(CORPUS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if isinstance(row["request"], dict)]


def judge(name, row):
    return validate(json.dumps(row["request"]), TARGETS[name])


def cassette(row) -> str:
    return re.sub(r"(@[0-9a-f]+)?#\d+$", "", row["source"])


def excuse(row, violation):
    """Find the exception that covers a false alarm, if there is one."""
    if REDACTED.search(violation.message):
        return "REDACTED"
    pairs = (pair for pair in NOT_REALLY_TAKEN if cassette(row).endswith(pair[0]) and violation.rule == pair[1])
    return next(pairs, None)


def alarms(name):
    return [
        (row, violation)
        for row in recordings(name)
        if row["status"] == 200
        for violation in judge(name, row)
        if violation.severity == "hard"
    ]


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_taken_breaks_no_hard_rule(name):
    unexcused = {(row["source"], violation.rule) for row, violation in alarms(name) if not excuse(row, violation)}
    assert unexcused == set()


def test_a_known_model_has_no_doubtful_rule():
    """OpenAI's own models are known where a rule depends on them."""
    doubtful = {
        (row["model"], violation.rule)
        for row in recordings("openai-chat")
        if row["status"] == 200
        for violation in judge("openai-chat", row)
        if violation.severity == "model"
    }
    assert doubtful == set()


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
def test_what_was_refused_for_its_structure_is_refused_in_the_same_words(name):
    refused = [row for row in recordings(name) if row.get("error_class") == "MESSAGE-STRUCTURE"]
    silent = {
        (row["source"], row["error_message"])
        for row in refused
        if row["error_message"] not in {found.message for found in judge(name, row) if found.severity == "hard"}
        and not row["error_message"].startswith(tuple(NOT_FORESEEABLE))
    }
    assert refused
    assert silent == set()


def test_mistral_refuses_in_its_templates_words():
    refused = [row for row in recordings("openai-compat") if "Unexpected role" in (row["error_message"] or "")]
    assert refused
    for row in refused:
        hard = {found.message for found in judge("openai-compat", row) if found.severity == "hard"}
        assert row["error_message"] in hard


def test_content_of_a_wrong_type_is_refused_as_every_server_refuses_it():
    """Mistral, DeepSeek and Ollama each have words of their own for it."""
    refused = [
        row
        for row in recordings("openai-compat")
        if row["status"] in (400, 422) and isinstance(row["request"]["messages"][0]["content"], dict)
    ]
    assert len(refused) >= 3
    for row in refused:
        assert "VLM-OAI-13" in {found.rule for found in judge("openai-compat", row) if found.severity == "hard"}


def test_what_parameters_show_is_reported_in_the_same_words():
    shown = [
        (name, row)
        for name in ("openai-chat", "openai-responses")
        for row in recordings(name)
        if row["status"] == 400 and FORESEEABLE_PARAMETERS.match(row["error_message"])
    ]
    silent = {
        (row["source"], row["error_message"])
        for name, row in shown
        if row["error_message"] not in {found.message for found in judge(name, row)}
    }
    assert shown
    assert silent == set()


def test_the_exceptions_are_still_needed():
    """An exception that no longer excuses anything would hide the next failure."""
    used = {excuse(row, violation) for name in TARGETS for row, violation in alarms(name)}
    assert used == {*NOT_REALLY_TAKEN, "REDACTED"}
    refused = [
        (name, row)
        for name in ("openai-chat", "openai-responses")
        for row in recordings(name)
        if row.get("error_class") == "MESSAGE-STRUCTURE"
    ]
    for start in NOT_FORESEEABLE:
        assert [row for _, row in refused if row["error_message"].startswith(start)]
    for name, row in refused:
        if row["error_message"].startswith(tuple(NOT_FORESEEABLE)):
            assert row["error_message"] not in {found.message for found in judge(name, row)}
