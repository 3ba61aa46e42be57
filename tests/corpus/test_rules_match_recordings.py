"""The rules against recorded traffic: an accepted request breaks no hard rule, a refused one breaks one.

Hosts that imitate OpenAI's APIs are laxer: their chats are judged by the rules of ``vllm``, and those of hosts with a
target of their own by that one's.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from recorded import needs_corpus
from refusals import FACTS, TARGETS, fact_of, judge, judged, measured, refused

from reknit.pipeline.explain.documents import REFUSALS

pytestmark = needs_corpus


# How many accepted requests are warned about at most, where that is held.
MOST_WARNED = {"gemini": 14, "bedrock-converse": 8}
STRICT = ("anthropic", "gemini", "bedrock-converse", "openai-chat", "openai-responses")
# Taken with status 200, and broken all the same: the end of the recording's name, the rule ("" for any), and why.
NOT_REALLY_TAKEN = {
    ("anthropic_completion_tools_call_with_tool_result_stream_helper.yaml", ""): (
        "the result's id differs from its call's in a cassette that was edited by hand"
    ),
    ("openai/vllm/responses_api_accepts_null_metadata.yaml", "RSP-20"): "a vLLM server answered, not OpenAI",
    ("test_deepseek_responses[function_tool].yaml", "RSP-09"): "DeepSeek has ids of its own",
    ("parallel_tool_calls_single_turn_streaming.yaml", "VLM-05"): "Groq has a template of its own",
    ("permission_control/permission_control_prompt_example.yaml", "VLM-05"): "llamafile has a template of its own",
    ("mistralai_mistral_small_3_1_24b_instruct/tool_round_trip_2.json", "VLM-06"): "the router rewrites ids",
}
# The one source whose ids were replaced.
REDACTED = re.compile(r"(call|id)_REDACTED_\d")
# Refused for a field that other surfaces have, or for want of a beta header, which was not recorded; said in the
# provider's words, as a warning.
ONLY_WARNED = (
    "test_google_model_binary_video_detail.yaml",
    "test_google_model_video_url_detail.yaml",
    "test_multimodal_tool_return_matrix[direct-uploaded_file-image-anthropic].yaml",
    "test_multimodal_tool_return_matrix[tool_return_content-uploaded_file-document-anthropic].yaml",
)


@cache
def recordings(name):
    """The requests of a file that are JSON objects, and what the rules find in each."""
    return [(row, judge(name, row)) for row in judged(name)]


def cassette(row):
    return re.sub(r"(@[0-9a-f]+)?#\d+$", "", row["source"])


def words(found, *severities):
    return {violation.message for violation in found if violation.severity in severities}


def excuse(row, violation):
    """The exception that covers a false alarm, if there is one."""
    if REDACTED.search(violation.message):
        return "REDACTED"
    pairs = (pair for pair in NOT_REALLY_TAKEN if cassette(row).endswith(pair[0]))
    return next((pair for pair in pairs if pair[1] in {"", violation.rule}), None)


def alarms(name):
    """Return the hard violations of accepted requests; those of a model if its provider is known."""
    severities = {"hard", "model"} if name in STRICT and name != "openai-responses" else {"hard"}
    taken = [(row, found) for row, found in recordings(name) if row["status"] == 200]
    assert taken
    return [(row, violation) for row, found in taken for violation in found if violation.severity in severities]


def refusals(name):
    return [(row, found) for row, found in recordings(name) if row.get("error_class") == "MESSAGE-STRUCTURE"]


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_taken_breaks_no_hard_rule(name):
    assert {(row["source"], found.rule) for row, found in alarms(name) if not excuse(row, found)} == set()


@pytest.mark.parametrize("name", MOST_WARNED)
def test_warnings_stay_few(name):
    """Accepted requests seldom have warnings: 14 of 734 requests to Gemini, 8 of 464 to Converse."""
    taken = [found for row, found in recordings(name) if row["status"] == 200]
    assert len(taken) > 450
    assert len(list(filter(None, taken))) <= MOST_WARNED[name]


@pytest.mark.parametrize("name", STRICT)
def test_what_was_refused_for_its_structure_is_refused_in_the_same_words(name):
    refused = refusals(name)
    silent = {
        (row["source"], row["error_message"])
        for row, found in refused
        if row["error_message"]
        not in words(found, "hard", *(["model", "soft"] if cassette(row).endswith(ONLY_WARNED) else []))
        and not fact_of(row)
    }
    assert refused
    assert silent == set()


def test_mistral_refuses_an_order_in_the_words_of_its_rules():
    refused = [pair for pair in recordings("mistral") if "Unexpected role" in (pair[0]["error_message"] or "")]
    assert refused
    assert [row["source"] for row, found in refused if row["error_message"] not in words(found, "hard")] == []


def test_content_of_a_wrong_type_is_refused_as_every_server_refuses_it():
    """Mistral, DeepSeek and Ollama each have words of their own for it."""
    refused = [
        found
        for name in ("openai-compat", "mistral", "deepseek")
        for row, found in recordings(name)
        if row["status"] in (400, 422) and isinstance(row["request"]["messages"][0]["content"], dict)
    ]
    assert len(refused) >= 3
    shape = {("VLM-OAI-13", "hard"), ("MIS-OAI-13", "hard"), ("DSK-OAI-13", "hard")}
    assert all(any((one.rule, one.severity) in shape for one in found) for found in refused)


def test_the_exceptions_are_still_needed():
    """An exception that no longer excuses anything would hide the next failure."""
    used = {excuse(row, violation) for name in TARGETS for row, violation in alarms(name)}
    assert used == {*NOT_REALLY_TAKEN, "REDACTED"}
    refused = [pair for name in STRICT for pair in refusals(name)]
    warned = [(row, found) for row, found in refused if cassette(row).endswith(ONLY_WARNED)]
    assert len(warned) == len(ONLY_WARNED)
    assert [row["source"] for row, found in warned if row["error_message"] in words(found, "hard")] == []


def test_what_decided_each_refusal_is_written_down():
    """``python tests/corpus/refusals.py`` and ``make docs`` do it again; each fact decides something."""
    now = measured()
    assert now == list(REFUSALS)
    assert sum(len(each.requests) for each in now) == sum(len(refused(name)) for name in TARGETS)
    assert all(each.why for each in now)
    assert {each.why for each in now if not each.rule} == {fact for _, _, fact in FACTS}
