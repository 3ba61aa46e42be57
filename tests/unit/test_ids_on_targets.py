"""Ids that a target cannot take as they are: two calls never get one, whatever the digests do."""

from __future__ import annotations

import json

import msgspec
import pytest
from build import call, result, said, user

from pipeline import Session, normalize
from pipeline.history.ids import IdTable, SettledCall
from pipeline.targets import vllm
from pipeline.targets.names import nine, shortened

MISTRAL = "mistralai/Mistral-7B-Instruct-v0.3"


def rounds(ids):
    """A round for each id: the call, and its result, which names it."""
    history = [{"role": "user", "content": "q"}]
    for at, call_id in enumerate(ids):
        history += [said(call(call_id, "f", n=at)), user(result(call_id, f"r{at}"))]
    return history


def pairs(body):
    """Each call's id with what it asked, and each result's with what it says."""
    asked, told = {}, {}
    for row in json.loads(body)["messages"]:
        for made in row.get("tool_calls", ()):
            assert made["id"] not in asked
            asked[made["id"]] = json.loads(made["function"]["arguments"])["n"]
        if row["role"] == "tool":
            assert row["tool_call_id"] not in told
            told[row["tool_call_id"]] = row["content"]
    return asked, told


def weak(call_id):
    """A way to write ids that gives many the same."""
    return call_id if len(call_id) == 9 and call_id.isalnum() else f"call0000{len(call_id) % 3}"


@pytest.mark.parametrize("restart", [False, True])
def test_a_digest_that_is_no_good_still_gives_each_call_its_own(monkeypatch, restart):
    monkeypatch.setattr(vllm, "nine", weak)
    history = rounds(["call00000", "a-1", "aaaaaaaa1", "b-22"])
    whole = normalize({"model": MISTRAL, "messages": history}, to="vllm")
    asked, told = pairs(whole.body)
    assert list(asked) == list(told)
    assert list(asked.values()) == [0, 1, 2, 3]
    assert list(told.values()) == ["r0", "r1", "r2", "r3"]
    session, segments = Session(["vllm"], model=MISTRAL), []
    for message in history:
        session.append(msgspec.json.encode(message))
        if restart:
            segments += session.take_segments(flush=True)
            session = Session.load(session.head(), [record for _, record in segments])
    assert session.request().body == whole.body
    assert session.request().fixes == whole.fixes


def first_and_digest(final):
    """The first letter, and the last character of a digest: few enough to meet often."""
    return final[0] + final[-1] if "-" in final else final[0]


def test_an_id_that_a_target_would_write_like_another_is_made_anew():
    table = IdTable([first_and_digest])
    claimed = [table.claim(original) for original in ("ab", "cd", "ax", "ay", "az")]
    assert claimed[:2] == ["ab", "cd"]
    assert all(final.startswith("a") and "-" in final for final in claimed[2:])
    assert len({first_and_digest(final) for final in claimed}) == 5


def test_a_table_from_saved_state_knows_what_is_taken():
    table = IdTable([first_and_digest])
    table.reload(SettledCall("ab", "ab", answered=True))
    table.reload_open("cd", "cd")
    assert table.claim("ax") != "ax"
    assert table.claim("cx") != "cx"


def test_a_run_of_ids_is_admitted_if_they_stay_apart():
    table = IdTable([first_and_digest])
    assert table.admits(["ab", "cd"])
    assert not table.admits(["ab", "ax"])
    assert IdTable().admits(["ab", "ax"])


LONG = "x" * 41


@pytest.mark.parametrize(("write", "ids"), [
    (shortened, ["a", LONG, LONG + "y", shortened(LONG), "z" * 40]),
    (nine, ["a", LONG, "abcdefgh1", nine("a"), "a-b"]),
])  # fmt: skip
def test_an_id_that_looks_like_one_of_ours_is_kept_apart_from_it(write, ids):
    """An id that is what another one would become: one of both gives way."""
    table = IdTable([write])
    written = [write(table.claim(each)) for each in ids]
    assert len(set(written)) == len(ids)


@pytest.mark.parametrize("ids", [[LONG, shortened(LONG)], [shortened(LONG), LONG], [LONG + "a", LONG + "b", LONG]])
def test_both_sides_of_a_call_have_its_id(ids):
    done = normalize({"messages": rounds(ids)}, to="openai-chat")
    asked, told = pairs(done.body)
    assert list(asked) == list(told)
    assert all(len(each) <= 40 for each in asked)
    assert list(told.values()) == [f"r{at}" for at in range(len(ids))]
    again = normalize(done.body, to="openai-chat", source="openai-chat")
    assert (again.body, again.fixes) == (done.body, [])


# Where the ledger says that blocks are, and whose ids the rows of a body have.

ROUND = [
    {"role": "user", "content": "q", "id": "m0"},
    said("so", call("a", "f"), call("b", "f"), id="m1"),
    user(result("a", "ra"), result("b", "rb"), "one", "two", id="m2"),
]


@pytest.mark.parametrize(
    ("target", "model", "places", "ids"),
    [
        (
            "openai-chat",
            None,
            (
                "messages.1.content messages.2.content messages.2.tool_calls.0 messages.2.tool_calls.1 "
                "messages.3.content messages.4.content messages.5.content.0 messages.5.content.1"
            ),
            [None, "m0", "m1", "m2", "m2", "m2"],
        ),
        (
            "vllm",
            "meta-llama/Llama-3.1-8B-Instruct",
            (
                "messages.1.content messages.2.content messages.2.tool_calls.0 messages.4.tool_calls.0 "
                "messages.3.content messages.5.content messages.6.content.0 messages.6.content.1"
            ),
            [None, "m0", "m1", "m2", "m1", "m2", "m2"],
        ),
        (
            "vllm",
            "mistralai/Mistral-7B-Instruct-v0.3",
            (
                "messages.1.content messages.2.content messages.2.tool_calls.0 messages.2.tool_calls.1 "
                "messages.3.content messages.4.content messages.5.content messages.6.content.0 messages.6.content.1"
            ),
            [None, "m0", "m1", "m2", "m2", "m2", "m2"],
        ),
        (
            "openai-responses",
            None,
            (
                "input.0.content input.1.content input.2 input.3 input.4.output input.5.output "
                "input.6.content.0 input.6.content.1"
            ),
            ["m0", "m1", "m1", "m1", "m2", "m2", "m2"],
        ),
        (
            "gemini",
            None,
            (
                "contents.0.parts.0 contents.1.parts.0 contents.1.parts.1 contents.1.parts.2 "
                "contents.2.parts.0 contents.2.parts.1 contents.2.parts.2 contents.2.parts.3"
            ),
            ["m0", "m1", "m2"],
        ),
        (
            "bedrock-converse",
            "us.mistral.pixtral-large-2502-v1:0",
            (
                "messages.0.content.0 messages.1.content.0 messages.1.content.1 messages.1.content.2 "
                "messages.2.content.0 messages.2.content.1 messages.3.content.0 "
                "messages.4.content.0 messages.4.content.1"
            ),
            ["m0", "m1", "m2", "m2", "m2"],
        ),
    ],
)
def test_places_and_ids_of_a_round(target, model, places, ids):
    done = normalize({"messages": ROUND, "system": "Be brief.", "model": model}, to=target)
    assert [entry.output for entry in done.ledger] == places.split()
    assert done.ids == ids
