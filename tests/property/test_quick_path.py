"""The quick path over a valid beginning gives the machine's result, wherever the first defect is."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE, healthy_histories, perturbed_histories, policies

from reknit.pipeline import normalize
from reknit.pipeline.history.valid_runs import ValidRun
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.session.working import StructureRepair
from reknit.pipeline.testing import Kit


def outcome_of(messages, target, policy):
    done = normalize(msgspec.json.encode(messages), to=target, policy=policy)
    return done.body, done.sha256, done.fixes, done.ledger, done.ids, done.violations


def assert_same_without_quick_path(messages, target, policy=None):
    quick = outcome_of(messages, target, policy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ValidRun, "holds", lambda *_: False)
        assert outcome_of(messages, target, policy) == quick


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=100 * SCALE)
@given(messages=perturbed_histories(), policy=policies)
def test_the_request_is_the_same_with_and_without_the_quick_path(target, messages, policy):
    assert_same_without_quick_path(messages, target, policy if target == "anthropic" else None)


@st.composite
def histories_of_rows(draw):
    """Valid histories in the shape of OpenAI's chat, each result a message; one message is missing or repeated."""
    rows = []
    for turn in [*draw(healthy_histories()), {"role": "assistant", "content": "well"}]:
        blocks = turn["content"]
        results = [block for block in blocks if "tool_use_id" in block] if isinstance(blocks, list) else []
        calls = [block for block in blocks if "input" in block] if isinstance(blocks, list) else []
        rows += [{"role": "tool", "tool_call_id": each["tool_use_id"], "content": "r"} for each in results]
        if len(results) < len(blocks):
            text = {"role": turn["role"], "content": blocks if isinstance(blocks, str) else "and"}
            named = [{"id": each["id"], "function": {"name": "read", "arguments": "{}"}} for each in calls]
            rows.append(text | ({"tool_calls": named} if named else {}))
    at = draw(st.integers(0, len(rows) - 1))
    rows[at : at + 1] = [rows[at]] * draw(st.sampled_from([1, 1, 1, 0, 2]))
    return rows


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=50 * SCALE)
@given(messages=histories_of_rows())
def test_separate_result_messages_give_the_same_request(target, messages):
    assert_same_without_quick_path(messages, target)


@settings(max_examples=60 * SCALE)
@given(messages=perturbed_histories(), policy=policies)
def test_incremental_and_whole_requests_are_equal(messages, policy):
    Kit("anthropic", policy).incremental(messages)


HELLO = [{"role": role, "content": "hello"} for role in ("user", "assistant") * 4]
CALL = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
TWO = [
    {"role": "assistant", "tool_calls": [{"id": i, "function": {"name": "read", "arguments": "{}"}} for i in "ab"]},
    *({"role": "tool", "tool_call_id": each, "content": "r"} for each in "ba"),
]


@pytest.mark.parametrize(
    ("between", "taken"),
    [
        ([{"role": "user", "content": ""}], [7, 4]),
        ([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], [7, 6]),
        # A call without its result is waited for through eight exchanges, that is four pairs.
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": [CALL]}, *HELLO[:7]], [9, 4]),
        # Several results in separate messages become one message, without a repair.
        ([HELLO[0], *TWO], [18]),
    ],
)
def test_the_quick_path_resumes_after_a_repair(monkeypatch, between, taken):
    skipped = []
    skip = StructureRepair._skip
    monkeypatch.setattr(
        StructureRepair, "_skip", lambda work, turns, run: skipped.append(len(turns)) or skip(work, turns, run)
    )
    normalize([*HELLO, *between, *HELLO[1:]])
    assert skipped == taken
