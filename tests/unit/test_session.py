"""A session: several targets, changes midway, rewinds, and its records."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
from build import answered, called, rounds, said, session_of, text, user

from reknit.pipeline import Session, normalize
from reknit.pipeline.errors import InputError, InternalError, PolicyError, UnknownTargetError
from reknit.pipeline.model import Text, Turn
from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import TARGETS


def test_a_message_is_accepted_in_any_form():
    forms = [user("q"), json.dumps(user("q")), json.dumps(user("q")).encode()]
    forms.append(Turn(role="user", blocks=(Text(text="q"),), index=7))
    assert len({session_of(form).request().body for form in forms}) == 1


def test_several_targets_in_one_session():
    session = session_of(*rounds(3), targets=("anthropic", "claude-cli"))
    assert session.targets == ("anthropic", "claude-cli")
    for target in session.targets:
        assert session.request(target).body == normalize(rounds(3), to=target).body
    assert session.request().target == "anthropic"
    with pytest.raises(UnknownTargetError):
        session.request("gemini")


def test_a_request_is_a_value_that_later_turns_do_not_change():
    session = session_of(*rounds(3))
    early = session.request()
    for message in rounds(9)[12:]:
        session.append(message)
        session.request().sha256  # noqa: B018  advances the running digest
    whole = normalize(rounds(3))
    assert early.body == whole.body
    assert early.sha256 == hashlib.sha256(whole.body).hexdigest()
    assert early.ledger == whole.ledger


def test_append_returns_certain_fixes_and_the_request_all_current_ones():
    session = Session()
    assert session.append(user("q")) == []
    assert session.append(called("a.b"))[0].code == "id_rewritten"
    session.append(user("stop"))
    assert [fix.code for fix in session.request().fixes] == ["id_rewritten", "result_synthesised"]
    moved = session.append(answered("a.b"))
    assert [fix.code for fix in moved] == ["result_moved", "id_rewritten"]
    assert "result_synthesised" not in [fix.code for fix in session.request().fixes]


def test_an_unusable_message_leaves_the_session_unchanged():
    session = session_of(user("q"))
    before = session.head()
    with pytest.raises(InputError):
        session.append(b"{")
    assert session.head() == before


def test_a_configuration_change_resets_the_prefix_and_reports_it():
    session = session_of(*rounds(3), model="claude-sonnet-4-5", params={"max_tokens": 5})
    assert session.request().reset == ""
    assert session.configure(params={"max_tokens": 6}) is True
    changed = session.request()
    assert changed.reset == "configured"
    assert b'"max_tokens":6' in changed.body
    assert session.request().reset == ""
    assert session.configure(params={"max_tokens": 6}) is False


def test_an_added_target_does_not_affect_the_others():
    session = session_of(*rounds(3))
    first = session.request()
    session.configure(targets=["anthropic", "claude-cli"])
    assert session.request().reset == ""
    assert session.request().body == first.body
    added = session.request("claude-cli")
    assert added.reset == "configured"
    assert added.body == normalize(rounds(3), to="claude-cli").body


def test_a_changed_policy_repairs_the_history_again():
    history, policy = [user("q"), called("a"), user("stop"), said("ok"), user("on")], {"missing_result": "drop"}
    session = session_of(*history)
    session.configure(policy=policy)
    assert session.request().body == normalize(history, policy=policy).body


@pytest.mark.parametrize(("to", "kept"), [(0, 0), (3, 3), ("m2", 4), ("m1", 1)])
def test_a_rewind_to_a_count_or_an_id(to, kept):
    history = [user("a", id="m1"), said("b"), user("c"), said("d", id="m2"), user("e")]
    session = session_of(*history)
    session.rewind(to)
    assert session.count == kept
    assert session.request().reset == "rewound"
    assert session.request().body == normalize(history[:kept]).body


@pytest.mark.parametrize("to", [-1, 6, "nobody", ""])
def test_a_rewind_to_an_invalid_place_is_the_callers_fault(to):
    session = session_of(user("a"), said("b"))
    with pytest.raises(InputError):
        session.rewind(to)
    assert session.count == 2


def test_replace_discards_the_old_history():
    session = session_of(*rounds(3))
    fixes = session.replace([user("new"), said(""), user("one")])
    assert [fix.code for fix in fixes] == ["blank_dropped"]
    assert session.count == 3
    assert session.request().reset == "replaced"
    assert session.request().body == normalize([user("new"), said(""), user("one")]).body
    session.rewind(1)
    assert session.request().body == normalize([user("new")]).body


def test_a_replacement_is_read_in_the_named_shape():
    with pytest.raises(UnknownTargetError, match=r"expected one of acp, .*, anthropic, auto, .*, got 'nobody'"):
        Session().replace([{"role": "user", "content": "x"}], source="nobody")


def test_an_unreadable_replacement_changes_nothing():
    session = session_of(user("q"))
    with pytest.raises(InputError):
        session.replace([user("new"), 7])
    assert session.request().body == normalize([user("q")]).body


# Records.


def test_segments_are_written_once_and_the_head_stays_small():
    session = Session()
    written = []
    heads = []
    for message in rounds(60):
        session.append(message)
        written += session.take_segments()
        heads.append(len(session.head()))
    assert [number for number, _ in written] == list(range(len(written)))
    assert session.segments == [number for number, _ in written]
    assert max(heads[200:]) <= 1.5 * max(heads[:60])
    assert sum(len(record) for _, record in written) < 5 * len(session.request().body)
    resumed = Session.load(session.head(), [record for _, record in written])
    assert resumed.request().body == session.request().body


def test_flushing_a_segment_moves_the_settled_part_out_of_the_head():
    session = session_of(*rounds(12))
    before = len(session.head())
    ((number, record),) = session.take_segments(flush=True)
    assert number == 0
    assert len(session.head()) < before / 2
    assert session.take_segments(flush=True) == []
    assert Session.load(session.head(), [record]).request().body == session.request().body
    session.configure(model="claude-sonnet-4-5")
    assert [number for number, _ in session.take_segments(flush=True)] == [1]


def test_a_reloaded_session_can_rewind_and_change_its_target():
    session = session_of(
        *rounds(12), policy=Policy(tail="keep"), system="s", tools=[{"name": "ls", "input_schema": {}}]
    )
    segments = [record for _, record in session.take_segments(flush=True)]
    resumed = Session.load(session.head(), segments)
    assert resumed.policy == Policy(tail="keep")
    resumed.configure(targets=["claude-cli"])
    resumed.rewind(40)
    document = {"messages": rounds(12)[:40], "system": "s"}
    assert resumed.request().body == normalize(document, to="claude-cli").body


def test_segments_of_an_abandoned_history_are_ignored():
    session = session_of(*rounds(12))
    old = session.take_segments(flush=True)
    session.rewind(8)
    new = session.take_segments(flush=True)
    assert session.segments == [number for number, _ in new]
    assert {number for number, _ in old}.isdisjoint(session.segments)
    resumed = Session.load(session.head(), [record for _, record in (*new, *old)])
    assert resumed.request().body == normalize(rounds(12)[:8]).body


@pytest.mark.parametrize("target", TARGETS)
def test_a_rewind_keeps_earlier_segments_and_frees_later_ids(target):
    session, history = Session([target]), rounds(20)
    for message in history:
        session.append(message)
        session.take_segments()
    session.rewind(50)
    assert session.segments == [0, 1, 2]
    for message in history[50:]:
        session.append(message)
    assert session.request().body == normalize(history, to=target).body


@pytest.mark.parametrize("damage", ["missing", "other"])
def test_a_changed_segment_is_an_internal_error(damage):
    session = session_of(*rounds(12))
    ((_, record),) = session.take_segments(flush=True)
    other = msgspec.msgpack.encode([0, 1, [b"[]", [], [], [], [], {}]])
    with pytest.raises(InternalError):
        Session.load(session.head(), [] if damage == "missing" else [other] if record != other else [])


# Arguments.


@pytest.mark.parametrize("policy", [{"tail": "sideways"}, {"nothing": 1}, {"open_exchanges": "many"}])
def test_an_invalid_policy_is_the_callers_fault(policy):
    with pytest.raises(PolicyError):
        Session(policy=policy)
    with pytest.raises(PolicyError):
        normalize([user("q")], policy=policy)


def test_an_unknown_target_is_the_callers_fault():
    for make in (lambda: Session(["nobody"]), lambda: Session([]), lambda: normalize([], to="nobody")):
        with pytest.raises(UnknownTargetError):
            make()


def test_a_session_exposes_its_arguments():
    session = session_of(user("q"), model="claude-sonnet-4-5", system=[text("s")])
    assert session.model == "claude-sonnet-4-5"
    assert session.last_role == "user"
    assert json.loads(session.request().body)["system"] == [text("s")]


def test_missing_parameters_are_a_warning():
    done = normalize([user("q")])
    assert {violation.severity for violation in done.violations} == {"soft"}
    assert repr(done) == f"<Normalized for anthropic: accepted, 0 fixes, {len(done.violations)} violations>"


def test_an_unrepairable_request_is_rejected_in_the_providers_words():
    done = normalize({"messages": [user("q")], "model": "claude-sonnet-4-5", "max_tokens": "many"})
    assert done.body is None
    assert done.rejected
    assert done.unjudged.startswith(b'{"model":')
    assert done.violations[0].message == "max_tokens: Input should be a valid integer"
