"""The mock provider: its sentences are those of reports, and it accepts nothing but its own values."""

import json
import re
from pathlib import Path

import pytest
from mock_provider.body_agent import BodyAgent
from mock_provider.client_shapes import SHAPES
from mock_provider.driver import run_script
from mock_provider.envelopes import WRAPPERS
from mock_provider.faults import picture_data
from mock_provider.parties import PARTIES
from mock_provider.provider import Provider
from mock_provider.scripts import Fault, Script
from mock_provider.sentences import SENTENCES
from mock_provider.values import Mint, digest_of

from reknit.pipeline.healing.errors import read_error
from reknit.pipeline.targets.signatures import form_of

CASES = {
    case["name"]: case
    for case in map(
        json.loads,
        (Path(__file__).parents[1] / "vectors" / "refused_requests.jsonl").read_text("utf-8").splitlines(),
    )
}
# The reported refusal of each sentence.
CASE_OF = {
    "signature": "ant-signature-older-turn",
    "redacted": "ant-redacted-data",
    "modified": "ant-latest-turn-modified",
    "unsigned": "bed-signature-required",
    "empty_thinking": "ant-thinking-empty",
    "bare_loop": "ant-loop-without-thinking",
    "prefix": "ant-prefix-bound",
    "block_binding": "ant-block-binding-without-beta",
    "search": "ant-search-result-encrypted",
    "excerpt": "rsp-encrypted-excerpt",
    "by_item": "rsp-encrypted-by-item",
    "item_mismatch": "rsp-encrypted-item-id-mismatch",
    "caller": "rsp-encrypted-caller",
    "compaction": "rsp-compaction-blob",
    "item_unknown": "rsp-item-not-found",
    "connection": "rsp-connection-401",
    "no_follower": "rsp-reasoning-without-follower",
    "no_reasoning": "rsp-call-without-reasoning",
    "previous": "rsp-previous-not-found",
    "retention": "rsp-previous-zdr",
    "gemini_file": "gem-file-403",
    "cache": "gem-cache-403",
    "cache_expired": "gem-cache-vertex-expired",
    "openai_file": "rsp-file-gone",
    "container": "rsp-container-expired",
    "tool_reference": "ant-tool-reference-server",
    "image_bytes": "ant-image-5mb",
    "image_side": "ant-image-8000",
    "many_side": "ant-image-many-2000",
    "media_count": "ant-media-count",
    "vllm_count": "vllm-image-count",
    "undecodable": "ant-image-unprocessable-no-path",
    "undecodable_gemini": "gem-image-invalid",
    "undecodable_chat": "chat-together-corrupt",
    "download": "ant-image-url-fetch",
    "download_named": "chat-image-download",
    "download_gemini": "gem-url-robots",
    "download_timeout": "rsp-image-download",
    "no_vision": "chat-deepseek-image",
    "string_content": "chat-tool-content-list",
    "too_large": "ant-request-too-large",
    "deprecated": "ant-param-temperature",
    "unsupported": "rsp-param-unsupported",
    "adaptive": "ant-param-thinking-enabled",
    "max_tokens": "ant-param-max-tokens",
    "corrupted": "gem-corrupted",
    "missing_signature": "gem-missing-position",
    "deepseek": "chat-deepseek-reasoning",
    "kimi": "chat-kimi-reasoning",
    "key": "none-ant-auth",
    "length": "none-ant-length",
    "policy": "none-ant-policy",
    "other_modified": "none-ant-other-modified",
    "account": "none-gem-403-project",
    "busy": "none-ant-overloaded",
}
# The reference has these words without a case: by analogy, C5, and D4.
WORDS = {
    "search_field": "messages.3.content.1.web_search_tool_result.content.0.encrypted_content: Field required",
    "duplicate": "Duplicate item found with id rs_1. Remove duplicate items from your input and try again.",
    "output_alone": "No tool call found for function call output with call_id call_1.",
}


def pattern_of(words):
    return re.compile(
        "".join(".+" if at % 2 else re.escape(part) for at, part in enumerate(re.split(r"(\{\w+\})", words)))
    )


@pytest.mark.parametrize("name", [name for name in SENTENCES if name != "shape"])
def test_each_sentence_is_that_of_the_reference(name):
    sentence = SENTENCES[name]
    if name in WORDS:
        assert pattern_of(sentence.words).fullmatch(WORDS[name])
        return
    case = CASES[CASE_OF[name]]
    found = read_error(case["status"], case["error"])
    assert pattern_of(sentence.words).fullmatch(found.sentence), found.sentence
    assert sentence.status == case["status"]
    assert sentence.healable == (case["mend"] != "none")
    if case["target"] in ("openai-responses", "openai-chat"):
        level = case["error"]["error"]
        assert (sentence.code, sentence.type) == (level["code"], level.get("type", ""))
        assert sentence.param is None or pattern_of(sentence.param).fullmatch(level["param"])


def test_values_have_the_forms_of_the_real_ones_and_are_reproducible():
    mint, again, other = Mint("a"), Mint("a"), Mint("b")
    direct, vertex = mint.claude_signature("direct", 1), mint.claude_signature("vertex", 1)
    assert (form_of(direct).name, form_of(vertex).name) == ("claude", "vertex")
    assert len(direct) % 4 == 0
    assert form_of(mint.gemini_signature("aistudio", 1)).name == "gemini"
    assert form_of(mint.encrypted(1)).name == "encrypted"
    assert direct == again.claude_signature("direct", 1)
    assert len({direct, other.claude_signature("direct", 1), mint.claude_signature("direct", 2)}) == 3


def talk(party, *faults, rounds=(2, 0, 1), **more):
    script = Script(name="talk", group="A", party=party, report="-", rounds=list(rounds), faults=list(faults), **more)
    return run_script(script, Stubborn)


class Stubborn(BodyAgent):
    """A client that heals nothing."""

    def refused(self, status, error, attempt):
        return None


@pytest.mark.parametrize("party", PARTIES)
def test_its_own_values_are_accepted_and_the_same_requests_get_the_same_answers(party):
    run = talk(party)
    assert run.is_alive
    assert [each.name for each in run.provider.ledger] == [""] * 6
    assert talk(party).provider.ledger == run.provider.ledger


def refused_with(party, *faults, **more):
    """The name of the first refusal."""
    run = talk(party, *faults, **more)
    assert not run.is_alive
    return run.refusals[0].name


def at(name, turn=1, step=0, **given):
    return Fault(name=name, round=turn, step=step, given=given)


@pytest.mark.parametrize(
    ("party", "faults", "name"),
    [
        ("ant", [at("damage", 0)], "signature"),
        ("bed", [at("damage_text", 0)], "signature"),
        ("ant", [at("switch", party="vtx")], "signature"),
        ("vtx", [at("forget", kinds=["thinking"])], "signature"),
        ("ant", [at("merge", 0, 2)], "modified"),
        ("pfx", [at("configure", system="Other.")], "prefix"),
        ("pfx", [at("rewrite_text", at=0)], "prefix"),
        ("ant", [at("lose", 0, member="signature")], "unsigned"),
        ("oai", [at("damage", 0)], "excerpt"),
        ("oai", [at("speak", 0, wording="caller"), at("damage", 0)], "caller"),
        ("oai", [at("switch", party="azr")], "excerpt"),
        ("oai", [at("drop_state")], "item_unknown"),
        ("cop", [at("switch", connection="c2")], "connection"),
        ("gem", [at("switch", 0, 1, organisation="k2")], "corrupted"),
        ("gem", [at("lose", 0, member="thoughtSignature")], "missing_signature"),
        ("dsk", [at("lose", 0, member="reasoning_content")], "deepseek"),
        ("kim", [at("lose", 0, member="reasoning_content")], "kimi"),
        ("ant", [at("tighten", output_max=100)], "max_tokens"),
        ("ant", [at("tighten", adaptive_only=True)], "adaptive"),
        ("vll", [at("show", count=3)], "vllm_count"),
        ("gem", [at("show", bad=True)], "undecodable_gemini"),
        ("dsk", [at("tighten", vision=False), at("show")], "no_vision"),
        ("ant", [at("tighten", body_bytes=100)], "too_large"),
        ("ant", [at("speak", organisation="")], "key"),
    ],
)
def test_what_it_did_not_issue_is_refused(party, faults, name):
    assert refused_with(party, *faults) == name


def test_old_reasoning_may_be_left_out_but_the_latest_answers_only_as_a_whole():
    shape, provider = SHAPES["messages"], Provider("s")
    agent = BodyAgent("ant", ["read"], "System.")
    for number in range(5):
        agent.say(shape.user(f"Question {number}", []))
        agent.say(*shape.entries(provider.receive("ant", agent.request()).body))
    agent.say(shape.user("Last", []))
    entries = agent.entries
    assert [block["type"] for block in entries[9]["content"]] == ["thinking", "redacted_thinking", "text"]

    def answer(*, old, latest):
        changed = json.loads(json.dumps(entries))
        changed[1]["content"] = changed[1]["content"][old:]
        changed[9]["content"] = changed[9]["content"][latest:]
        agent.rewrite(changed)
        return provider.receive("ant", agent.request()).name

    assert answer(old=1, latest=0) == ""
    assert answer(old=0, latest=2) == ""
    assert answer(old=0, latest=1) == "modified"


def test_a_bound_block_is_dropped_without_an_error_where_the_client_asks_for_it():
    binding = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}
    assert refused_with("pfx", params=binding) == "block_binding"
    run = talk("pfx", at("speak", 0, wording="block_binding"), at("configure", system="Other."), params=binding)
    dropped = run.provider.ledger[3].body["input_transformations"]
    assert run.is_alive
    assert dropped[0] == {
        "type": "thinking_dropped",
        "path": "messages.1.content.0",
        "reason": "prefix_binding_mismatch",
    }


def test_busy_answers_come_before_all_checks_and_repeats_are_noted():
    provider = Provider("s")
    provider.busy = 2
    agent = BodyAgent("ant", ["read"], "System.")
    agent.say(SHAPES["messages"].user("Hi", []))
    answers = [provider.receive("ant", agent.request()) for _ in range(3)]
    assert [(each.status, each.same_as) for each in answers] == [(529, -1), (529, 0), (200, 1)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_envelope_has_the_sentence(wrapper):
    run = talk("ant", at("speak", 0, wrapper=wrapper), at("damage", 0))
    refused = run.refusals[0]
    assert read_error(400, refused.body).sentence == "messages.1.content.0: Invalid `signature` in `thinking` block"
    assert refused.status == (200 if wrapper == "stream" else 400)


def test_pictures_are_different():
    assert len({picture_data(10, number) for number in range(3)}) == 3
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
