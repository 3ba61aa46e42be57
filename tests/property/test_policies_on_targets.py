"""The promise of each policy, over arbitrary histories and on every target."""

import json
from collections import defaultdict

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import SCALE, histories, policies

from reknit.pipeline import normalize
from reknit.pipeline.history.clean import CUT_MARK
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.history.render import CONTINUE
from reknit.pipeline.history.result_text import ORPHAN_MARK
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.targets import Setting, structure_of

NAMES = sorted(TARGETS)
TEXTS = sorted(name for name, target in TARGETS.items() if target.is_text)
TOOL_KEYS = {"tool_calls", "tool_call_id", "toolUse", "toolResult", "functionCall", "functionResponse", "call_id"}


def made(messages, target, policy, **values):
    return normalize(msgspec.json.encode(messages), to=target, policy={"tail": "continue", **policy, **values})


def words(done):
    return json.dumps(json.loads(done.body), ensure_ascii=False) if done.body[:1] == b"{" else done.body.decode()


def walk(value):
    if isinstance(value, list):
        for item in value:
            yield from walk(item)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk(item)


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, missing=st.sampled_from(["synthesise", "drop"]))
def test_missing_result(target, messages, policy, missing):
    done = made(messages, target, policy, tail="continue", missing_result=missing)
    assume(done.body)
    codes = {fix.code for fix in done.fixes}
    assert ("result_synthesised" in codes) <= (missing == "synthesise")
    assert ("call_unanswered" in codes) <= (missing == "drop")
    # A result that was synthesised because the real one was late is dropped if the late one can still be used.
    if "placeholder_dropped" not in codes:
        assert (INTERRUPTED in words(done)) == ("result_synthesised" in codes)


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, orphan=st.sampled_from(["drop", "text"]))
def test_orphan_result(target, messages, policy, orphan):
    done = made(messages, target, policy, tail="continue", orphan_result=orphan)
    assume(done.body)
    codes = {fix.code for fix in done.fixes}
    assert not codes & ({"result_orphan", "result_late"} if orphan == "text" else {"result_orphan_text"})
    assert (ORPHAN_MARK in words(done)) == bool(codes & {"result_orphan_text", "result_late_text"})


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, cut=st.sampled_from(["drop", "text"]))
def test_incomplete_call(target, messages, policy, cut):
    done = made(messages, target, policy, tail="continue", incomplete_call=cut, strip_tools=False)
    found = [fix for fix in done.fixes if fix.code.startswith("call_incomplete")]
    assert {fix.code for fix in found} <= {"call_incomplete" if cut == "drop" else "call_incomplete_text"}
    assert all(fix.detail in {'{"path": "/a', "not json"} for fix in found)


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies, cut=st.sampled_from(["auto", "keep", "mark", "drop"]))
def test_cut_text(target, messages, policy, cut):
    said = [message["role"] == "assistant" and bool(message["content"]) for message in messages]
    marked = [message | {"incomplete": True} if says else message for message, says in zip(messages, said, strict=True)]
    done = made(marked, target, policy, tail="continue", cut_text=cut)
    plain = made(messages, target, policy, tail="continue")
    wanted = ("mark" if target in TEXTS else "keep") if cut == "auto" else cut
    codes = {fix.code for fix in done.fixes if fix.code.startswith("cut_text")}
    assert codes <= ({"cut_text_marked"} if wanted == "mark" else {"cut_text_dropped"} if wanted == "drop" else set())
    if wanted == "keep":
        assert (done.body, done.fixes) == (plain.body, plain.fixes)
    elif done.body:
        assert (CUT_MARK.strip() in words(done)) == (codes == {"cut_text_marked"})


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies)
def test_strip_tools_removes_all_tools(target, messages, policy):
    done = made(messages, target, policy, tail="continue", strip_tools=True)
    assume(done.body)
    if target in TEXTS:
        assert "[Tool call: " not in words(done)
        assert "[Tool result]" not in words(done)
        return
    for found in walk(json.loads(done.body)):
        assert not TOOL_KEYS & found.keys()
        assert found.get("type") not in {"tool_use", "tool_result"}
        assert found.get("role") != "tool"


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies)
def test_reasoning_is_stripped_for_all_or_kept_for_its_issuer(target, messages, policy):
    done = made(messages, target, policy, tail="continue", reasoning="strip")
    assume(done.body)
    if target not in TEXTS:
        for found in walk(json.loads(done.body)):
            assert found.get("type") not in {"thinking", "redacted_thinking", "reasoning"}
            assert not {"reasoningContent", "thought"} & found.keys()
    assert not [fix for fix in done.fixes if fix.code.startswith("thinking_") and fix.code != "thinking_misplaced"]


@pytest.mark.parametrize("target", NAMES)
@settings(max_examples=60 * SCALE)
@given(messages=histories, policy=policies)
def test_tail_policies_agree_on_histories_without_a_continued_tail(target, messages, policy):
    """A tail that is kept equals the one that is continued, without the added words."""
    going_on = made(messages, target, policy, tail="continue")
    kept, refused = (made(messages, target, policy, tail=tail) for tail in ("keep", "reject"))
    continued = any(fix.code == "tail_continued" for fix in going_on.fixes)
    assert (going_on.body is None) <= (not going_on.ids)
    assume(going_on.body)
    if target in TEXTS:
        assert kept.body == going_on.body
    elif not continued:
        assert kept.unjudged == going_on.unjudged == refused.unjudged
    else:
        assert f'"{CONTINUE}"'.encode() in going_on.unjudged
        assert kept.unjudged != going_on.unjudged
    if refused.ids:
        assert (refused.body is None) == continued


@settings(max_examples=150 * SCALE)
@given(messages=histories, policy=policies)
def test_structural_repairs_are_equal_for_targets_with_the_same_structure(messages, policy):
    found = defaultdict(set)
    for target in NAMES:
        fixes = made(messages, target, policy, tail="continue").fixes
        mends = str(sorted((fix.code, fix.path, fix.detail) for fix in fixes if not fix.target))
        found[structure_of(TARGETS[target].writer, Setting())].add(mends)
    assert all(len(mends) == 1 for mends in found.values())
    assert len(found) > 1
