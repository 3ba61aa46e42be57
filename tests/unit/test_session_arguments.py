"""Arguments that callers pass in addition to messages, in every form."""

from __future__ import annotations

import pytest
from msgspec import Raw
from reader_results import refusal

from reknit.pipeline import Session
from reknit.pipeline.errors import PolicyError
from reknit.pipeline.model import Tool
from reknit.pipeline.policy import Policy
from reknit.pipeline.session.arguments import policy_from, setting_from

TOOL = {"name": "ls", "description": "Lists.", "input_schema": {"type": "object"}}


def test_structs_and_json_give_the_same_setting():
    typed = Tool(name="ls", description="Lists.", input_schema=Raw(b'{"type":"object"}'))
    assert setting_from("Be brief.", [typed], "m", {}) == setting_from("Be brief.", [TOOL], "m", None)


def test_a_system_prompt_of_another_shape_is_read_as_in_a_document():
    blocks = setting_from([{"text": "Be brief."}, {"cachePoint": {"type": "default"}}], (), None, None)
    assert blocks.system == Raw(b'[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}]')


def test_parameters_are_kept_verbatim_whatever_their_names():
    given = {"temperature": Raw(b"1.0"), "system": "not the prompt", "messages": 1, "nothing": None}
    assert setting_from(None, (), None, given).params == {
        "temperature": Raw(b"1.0"),
        "system": Raw(b'"not the prompt"'),
        "messages": Raw(b"1"),
        "nothing": Raw(b"null"),
    }


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (b'{"a":  1}', b'{"a":  1}'),
        (b'{"a":\n 1}', b'{"a":1}'),
        (b'{"u": "\\ud83d"}', '{"u": "\ufffd"}'.encode()),
        (b'{"u":\r\n"\\ud83d"}', '{"u":"\ufffd"}'.encode()),
    ],
)
def test_raw_json_may_have_line_breaks_and_halves_of_surrogate_pairs(raw: bytes, kept: bytes):
    assert setting_from(None, (), None, {"p": Raw(raw)}).params == {"p": Raw(kept)}


@pytest.mark.parametrize(
    ("system", "tools", "params", "error"),
    [
        (5, (), None, ("wrong_type", "system")),
        (None, [5], None, ("wrong_type", "tools.0")),
        (None, [TOOL, {"description": "no name"}], None, ("wrong_type", "tools.1")),
        (None, [Tool(name="ls", input_schema=Raw(b"{}")), TOOL], None, ("wrong_type", "tools")),
        (None, (), {"p": object()}, ("wrong_type", "")),
        (None, (), {"p": "\ud83d"}, ("wrong_type", "")),
        (None, (), {"p": Raw(b'{"a":')}, ("not_json", "")),
        (None, (), {"p": Raw(b'"\xff"')}, ("not_utf8", "")),
        (None, (), {"p": Raw(b"[" * 600 + b"]" * 600)}, ("nested_too_deeply", "params")),
        (None, (), {"p": Raw(b"[" * 200_000 + b"]" * 200_000)}, ("nested_too_deeply", "params")),
    ],
)
def test_unreadable_arguments_are_rejected_with_their_place(system, tools, params, error):
    assert refusal(setting_from, system, tools, None, params) == error


def test_a_policy_is_parsed_from_text():
    text = {"strip_tools": "true", "open_exchanges": "3"}
    assert policy_from(text) == Session(policy=text).policy == Policy(strip_tools=True, open_exchanges=3)
    assert policy_from(None) == Policy()
    with pytest.raises(PolicyError):
        policy_from({"tial": "keep"})


def test_single_repairs_are_named_by_code_and_target():
    typed = {"mend.turns_merged": "observe", "mend.anthropic.turns_merged": "on", "mend": {"vllm": {}}}
    policy = policy_from({**typed, "mend.openai-chat.param_dropped": "observe"})
    assert policy == policy_from(policy)
    found = {target: policy.observed(target) for target in ("anthropic", "openai-chat", "gemini")}
    assert found == {
        "anthropic": set(),
        "openai-chat": {"turns_merged", "param_dropped"},
        "gemini": {"turns_merged"},
    }


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"mend.turn_merged": "observe"}, "policy.mend.turn_merged", "did you mean turns_merged?"),
        ({"mend.anthropic.turn_merged": "on"}, "policy.mend.anthropic.turn_merged", "did you mean turns_merged?"),
        ({"mend": {"antropic": {"turns_merged": "on"}}}, "policy.mend.antropic", "expected one of "),
        ({"mend.turns_merged": "off"}, "policy.mend.turns_merged", "expected one of observe, on, got 'off'"),
        ({"mend.turns_merged": {"anthropic": "on"}}, "policy.mend.turns_merged", "expected one of observe, on"),
        ({"mend": "observe"}, "policy.mend", "expected an object of codes"),
        ({"mend.a.b.c": "on"}, "policy", "expected one of cut_text, endpoints, expires_after, "),
        ({"tail.auto": "on"}, "policy", "expected one of cut_text, endpoints, expires_after, "),
        (
            {"mend.words_neutralised": "observe"},
            "policy.mend.words_neutralised",
            "words_neutralised is always made: without it words of a tool or a model could make a program act",
        ),
        (Policy(mend={"id_rewritten": "observe"}), "policy.mend.id_rewritten", "id_rewritten is always made: results"),
    ],
)
def test_a_repair_that_cannot_be_observed_is_rejected_in_a_sentence(given, path, said):
    with pytest.raises(PolicyError) as raised:
        policy_from(given)
    assert raised.value.path == path
    assert said in raised.value.message
