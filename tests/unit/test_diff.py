"""The differ: two equal sides have no differences, and one change is reported exactly, at its place."""

import json

import msgspec
import pytest
from build import call, image, result, said, user
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs
from published_records import (
    OPENED,
    answers,
    appended,
    changes,
    compared,
    processed,
    side,
    turns,
    with_header,
    with_value,
)

from reknit.pipeline.diff import COMPARED_TOPICS, LIMITED, Summary, compare_session, values
from reknit.pipeline.diff.values import ABSENT, aligned, differing, read_json, unified
from reknit.pipeline.policy import Policy
from reknit.pipeline.providers.openai_chat import writer as openai_chat
from reknit.pipeline.rules.base import Rule
from reknit.pipeline.stages.base import Output
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.tenants import Limits
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics import headers as names
from reknit.topics.items import (
    AgentError,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    TurnDelta,
    TurnStop,
)

LOG = turns(
    OPENED | {"targets": ["anthropic", "openai-chat"]},
    *appended(
        user("hi", image()),
        said("well", call("a", n=1, big=2**70), call("b"), call("c")),
        user(result("a")),
        user("go on"),
    ),
    *appended(said("ok"), user("and?")),
    {"type": "turn.appended", "message": {"role": "nobody"}},
)
OUTPUTS = processed(LOG, answers("Hello world", "Once more"))
# Of the last request to Anthropic: a body with several messages, blocks and numbers.
LAST = [each for each in OUTPUTS if each.topic == PROVIDER_REQUESTS and (names.TARGET, b"anthropic") in each.headers][
    -1
]
PLACE = "anthropic agent.turns.v1/0/6"


def of(topic):
    return [output for output in OUTPUTS if output.topic == topic]


def replaced(output, *others):
    """Return all outputs, with one replaced by others."""
    at = next(at for at, each in enumerate(OUTPUTS) if each is output)
    return [*OUTPUTS[:at], *others, *OUTPUTS[at + 1 :]]


def edited(output, old, new):
    """Return all outputs, with a part of one output's JSON replaced."""
    assert output.value.count(old) == 1, output.value
    return replaced(output, with_value(output, output.value.replace(old, new)))


def altered(edit):
    """Return the differences after an edit of the messages of the last request."""
    body = json.loads(LAST.value)
    edit(body["messages"])
    return changes(OUTPUTS, replaced(LAST, with_value(LAST, json.dumps(body).encode())))


def test_a_side_equals_itself():
    found = compared(OUTPUTS, OUTPUTS)
    assert found.changes == ()
    assert found.counts == {
        "requests": 6,
        "dead letters": 1,
        "fixes": 2,
        "records of items": len(of(SESSION_ITEMS)),
        "recorded turns": 2,
    }


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_batches_make_no_difference(batch):
    assert changes(OUTPUTS, processed(LOG, answers("Hello world", "Once more"), batch=batch)) == []


@given(st.permutations(side(OUTPUTS)))
def test_records_may_come_in_any_order(records):
    assert compare_session("s1", side(OUTPUTS), records).changes == ()


def test_only_differing_bodies_are_read():
    requests = [each for each in OUTPUTS if each.topic == PROVIDER_REQUESTS]
    changed = [*requests[:-1], with_value(requests[-1], requests[-1].value + b" ")]
    read = []

    def noting(outputs):
        return [
            structs.replace(record, read=lambda record=record: (read.append(record.digest), record.read())[1])
            for record in side(outputs)
        ]

    assert compare_session("s1", noting(requests), noting(requests)).changes == ()
    assert read == []
    assert len(compare_session("s1", noting(requests), noting(changed)).changes) == 1
    assert len(read) == 2


# Records of items without an id or a number; repeats of them cannot be distinguished from other such records.
ANONYMOUS = sum(each.value.startswith((b'{"type":"turn/delta', b'{"type":"turn/stop')) for each in of(SESSION_ITEMS))
TWICE = [each for output in OUTPUTS for each in (output, output)]


@pytest.mark.parametrize("topic", COMPARED_TOPICS)
def test_a_record_that_one_side_has_twice_is_a_difference(topic):
    recorded = turns({"type": "turn.appended", "id": "recorded:1", "origin": "recorded", "message": said("hi")})
    records = of(topic) or [Output(topic, b"s1", record.value, ()) for record in recorded]
    assert records
    for at, record in enumerate(records):
        often = [*records[:at], record, *records[at:]]
        (found,) = compared(records, often).changes
        # Records of a screen without an id or a number can only be compared one by one.
        is_anonymous = record.value in {b'{"type":"turn/delta","model":"m"}', b'{"type":"turn/stop"}'}
        assert found.how == ("appeared" if is_anonymous else "repeated")
        if not is_anonymous:
            assert found.lines == ("-published once", "+published 2 times")
            (found,) = compared([*often, record], often).changes
            assert (found.how, found.lines) == ("repeated", ("-published 3 times", "+published 2 times"))
        assert changes(often, often) == []


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_repeats_of_a_side_with_at_least_once_delivery_are_counted_and_no_difference(sides):
    before, after = TWICE if sides[0] else OUTPUTS, TWICE if sides[1] else OUTPUTS
    found = compared(before, after, at_least_once=sides)
    assert (found.changes, found.repeats) == ((), 0 if all(sides) else len(side(OUTPUTS)) - ANONYMOUS)
    summary = Summary()
    summary.add_session(found)
    assert (summary.plain.differing, summary.plain.repeats) == (0, found.repeats)


def test_repeats_of_the_other_side_stay_differences():
    found = compared(TWICE, OUTPUTS, at_least_once=(False, True))
    assert ({each.how for each in found.changes}, found.repeats) == ({"repeated"}, 0)
    assert {each.subject for each in found.changes} == {"request", "dead letter", "fix", "item", "recorded"}


def test_a_request_with_another_id_and_an_equal_body_is_no_repeat():
    again = with_header(LAST, names.REQUEST_ID, b"9")
    assert changes(OUTPUTS, [*OUTPUTS, again], at_least_once=(True, True)) == [
        ("request", "appeared", "anthropic", PLACE, "")
    ]


@pytest.mark.parametrize("stops", [False, True])
def test_records_republished_after_an_unclean_end_count_once(stops):
    """A worker that delivers at least once resumes where it last wrote its state."""
    told, doing, done, answered = TurnDelta(model="m"), SHOWN[0], SHOWN[2], SHOWN[3]
    often = [each for item in SHOWN for each in (item, TurnStop())]
    again = [TurnStop(), SHOWN[-2], structs.replace(SHOWN[-1], seq=5), TurnStop(), TurnDelta()]
    items = [*of(SESSION_ITEMS), *shown([TurnStop(), *often, *again])]
    if not stops:
        first = ItemStarted(item_id="i0", item_type="text", origin="promoted", text="I look.")
        items = shown([SHOWN[-1], first, told, doing, done, told, answered, TurnStop(), TurnStop()])
    for begin in range(len(items)):
        for end in range(begin, len(items)):
            again = [*items[:end], *items[begin:]]
            assert changes(items, again, at_least_once=(False, True)) == [], items[begin:end]


def test_versions_and_derived_members_do_not_count():
    def by_another_build(output):
        value = output.value
        for member in (b'"version":"', b'"request_id":"'):
            value = value and value.replace(member, member + b"9")
        made = with_value(output, value)
        for name in (names.REKNIT_VERSION, names.REQUEST_ID, names.SUPERSEDES, names.BODY_SHA256, names.ERROR_VERSION):
            made = with_header(made, name, b"9") if name in dict(output.headers) else made
        return made

    other = [by_another_build(output) for output in OUTPUTS]
    assert [each.value for each in other] != [each.value for each in OUTPUTS]
    assert changes(OUTPUTS, other) == []


@pytest.mark.parametrize(
    ("old", "new", "label", "path", "lines"),
    [
        (b'"text":"well"', b'"text":"Well"', "block text", "messages.1.content.0.text", ("-well", "+Well")),
        (b'"n": 1,', b'"n": 1.0,', "block tool_use", "messages.1.content.1.input.n", ("-1", "+1.0")),
        (b'"n": 1,', b'"n": "1",', "block tool_use", "messages.1.content.1.input.n", ("-1", '+"1"')),
        (b'"n": 1,', b'"n": true,', "block tool_use", "messages.1.content.1.input.n", ("-1", "+true")),
        (str(2**70).encode(), str(2**70 + 1).encode(), "block tool_use", "messages.1.content.1.input.big",
         (f"-{2**70}", f"+{2**70 + 1}")),
        (str(2**70).encode(), b"1180591620717411303424.0", "block tool_use", "messages.1.content.1.input.big",
         (f"-{2**70}", f"+{2**70}.0")),
        (b'"max_tokens":100', b'"max_tokens":1e2', "parameter max_tokens", "max_tokens", ("-100", "+1e2")),
        (b"claude-sonnet-4-5", b"claude-opus-4-5", "model", "model", ("-claude-sonnet-4-5", "+claude-opus-4-5")),
        (b'"text":"and?"', b'"text": "and?"', "spelling", "", None),
    ],
)  # fmt: skip
def test_a_change_in_a_body_is_named_by_its_block_and_place(old, new, label, path, lines):
    found = compared(OUTPUTS, edited(LAST, old, new)).changes
    (only,) = found
    assert (only.subject, only.how, only.label, only.place, only.path) == (
        "request", "changed", f"anthropic {label}", PLACE, path
    )  # fmt: skip
    assert lines is None or only.lines == lines


def test_another_order_of_members_is_reported_as_spelling():
    body = json.loads(LAST.value)
    turned = with_value(LAST, json.dumps(dict(reversed(body.items())), separators=(",", ":")).encode())
    assert changes(OUTPUTS, replaced(LAST, turned)) == [("request", "changed", "anthropic spelling", PLACE, "")]


BLOCKS = [
    (at, number, block["type"])
    for at, message in enumerate(json.loads(LAST.value)["messages"])
    for number, block in enumerate(message["content"])
]


@pytest.mark.parametrize(("at", "number", "kind"), BLOCKS)
def test_every_dropped_repeated_or_changed_block_is_named(at, number, kind):
    def told(how, path):
        return [("request", how, f"anthropic block {kind}", PLACE, f"messages.{at}.content.{path}")]

    new = {"type": kind, "new": 1}
    assert altered(lambda messages: messages[at]["content"].pop(number)) == told("vanished", number)
    assert altered(lambda messages: messages[at]["content"].insert(number, new)) == told("appeared", number)
    assert altered(lambda messages: messages[at]["content"][number].update(new=1)) == told("appeared", f"{number}.new")


def test_blocks_in_another_order_differ():
    assert altered(lambda messages: messages[0]["content"].reverse()) == [
        ("request", "appeared", "anthropic block image", PLACE, "messages.0.content.0"),
        ("request", "vanished", "anthropic block image", PLACE, "messages.0.content.1"),
    ]


def test_a_message_of_another_role_is_another_message():
    assert altered(lambda messages: messages[4].update(role="user")) == [
        ("request", "changed", "anthropic message assistant", PLACE, "messages.4")
    ]


@pytest.mark.parametrize("output", [each for each in OUTPUTS if each.topic in COMPARED_TOPICS])
def test_every_record_that_one_side_lacks_is_reported(output):
    less = replaced(output)
    there, back = changes(OUTPUTS, less), changes(less, OUTPUTS)
    assert {how for _, how, *_ in there} <= {"vanished", "changed"}
    assert {how for _, how, *_ in back} <= {"appeared", "changed"}
    assert there
    assert len(there) == len(back)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b'"lossless":false', b'"lossless":true', [("changed", "result_synthesised lossy", "lossless")]),
        (b'"path":"messages.2', b'"path":"messages.9', [("changed", "result_synthesised lossy", "path")]),
        (b'"code":"result_synthesised"', b'"code":"result_late"',
         [("vanished", "result_synthesised lossy", "messages.2.content.1"),
          ("appeared", "result_late lossy", "messages.2.content.1")]),
    ],
)  # fmt: skip
def test_a_fix_that_differs_is_named_by_its_code_and_severity(old, new, expected):
    fix, _ = of(HISTORY_FIXES)
    found = changes(OUTPUTS, edited(fix, old, new))
    assert [(how, label, path) for _, how, label, _, path in found] == expected
    assert {(subject, place) for subject, *_, place, _ in found} == {("fix", "agent.turns.v1/0/4")}


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_fix_among_several_of_one_record_is_named(number):
    path = f"messages.2.content.{number + 1}"
    found = [("fix", "vanished", "result_synthesised lossy", "agent.turns.v1/0/4", path)]
    assert changes(OUTPUTS, replaced(of(HISTORY_FIXES)[number])) == found


@pytest.mark.parametrize(
    ("name", "value", "how", "label"),
    [
        (names.REASON, b"wanted", "changed", "header reason"),
        (names.PREFIX_RESET, b"because", "appeared", "header prefix-reset"),
        # The settled part of a body counts where the bodies are the same.
        (names.PREFIX_BYTES, b"1", "changed", "header prefix-bytes"),
    ],
)
def test_a_header_that_is_not_derived_counts(name, value, how, label):
    other = replaced(LAST, with_header(LAST, name, value))
    assert changes(OUTPUTS, other) == [("request", how, f"anthropic {label}", PLACE, "")]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("Hello World", "Once more"),
         [("item", "changed", "text", "cc-block-0", "text"),
          ("recorded", "changed", "turn.appended", "", "message.content.0.text")]),
        # Later ids and numbers differ, which is not a difference of its own.
        (("Once more",),
         [("item", "vanished", "text", "cc-block-0", ""),
          ("item", "vanished", "turn/delta", "", ""),
          ("item", "vanished", "turn/stop", "", ""),
          ("recorded", "vanished", "turn.appended", "", "")]),
        (("Once more", "Hello world"),
         [("item", "appeared", "text", "cc-block-0", ""),
          ("item", "vanished", "text", "cc-block-1", ""),
          ("item", "changed", "turn/result", "0", "result"),
          ("recorded", "appeared", "turn.appended", "", ""),
          ("recorded", "vanished", "turn.appended", "", "")]),
    ],
)  # fmt: skip
def test_differences_of_streams_are_named(texts, expected):
    found = changes(OUTPUTS, processed(LOG, answers(*texts)))
    # A recorded turn's id is derived from its content.
    assert [(*each[:3], each[3] if each[0] == "item" else "", each[4]) for each in found] == expected


# The items of one call and its result, and the events next to them.
SHOWN = (
    ItemStarted(item_id="i1", item_type="tool_use", name="ls", input=Raw(b'{"deep":1}')),
    ItemDelta(item_id="i1", delta_type="news", raw=Raw(b'{"new":1}')),
    ItemCompleted(item_id="i1", input=Raw(b'{"deep":1.0}'), extras={"cited": Raw(b"[1]")}),
    ItemResult(item_id="i1", content=Raw(b'[{"type":"text","text":"files"}]')),
    ItemStarted(item_id="i2", item_type="text", text="half", repeats="i1"),
    ItemCompleted(item_id="i2", incomplete=True, reason="stopped"),
    ItemStarted(item_id="i3", item_type="text", text="gone"),
    ItemRetracted(item_id="i3"),
    TurnStop(stop_reason="end_turn"),
    AgentError(message="slow", will_retry=True, seq=4),
)


def shown(items, run=b"r1"):
    return [Output(SESSION_ITEMS, b"s1", msgspec.json.encode(item), ((names.RUN, run),)) for item in items]


@pytest.mark.parametrize(
    ("number", "members", "expected"),
    [
        (0, {"name": "cat"}, [("tool_use", "i1", "name")]),
        (0, {"input": Raw(b'{"deep":7}')}, []),  # the completed input replaces it
        (1, {"raw": Raw(b'{"new":2}')}, [("tool_use", "i1", "unknown.0.new")]),
        (2, {"input": Raw(b'{"deep":1}')}, [("tool_use", "i1", "input.deep")]),
        (2, {"extras": {"cited": Raw(b"[1.0]")}}, [("tool_use", "i1", "completed.extras.cited.0")]),
        (3, {"content": Raw(b"[]")}, [("tool_use", "i1", "result.content.0")]),
        (3, {"is_error": True}, [("tool_use", "i1", "result.is_error")]),
        (4, {"text": "halt"}, [("text", "i2", "text")]),
        (4, {"repeats": "i9"}, []),  # an id
        (4, {"repeats": ""}, [("text", "i2", "repeats")]),
        (5, {"incomplete": False}, [("text", "i2", "incomplete")]),
        (5, {"reason": "killed"}, [("text", "i2", "reason")]),
        (6, {"text": "otherwise"}, []),  # not displayed
        (8, {"stop_reason": "refusal"}, [("turn/stop", "", "stop_reason")]),
        (9, {"message": "down"}, [("agent/error", "4", "message")]),
    ],
)  # fmt: skip
def test_every_displayed_member_counts_and_nothing_else(number, members, expected):
    other = [*SHOWN[:number], structs.replace(SHOWN[number], **members), *SHOWN[number + 1 :]]
    found = compared(shown(SHOWN), shown(other)).changes
    assert [(each.label, each.place, each.path) for each in found] == expected


def test_items_of_another_run_differ():
    assert {each[4] for each in changes(shown(SHOWN), shown(SHOWN, run=b"r2"))} == {"run"}


def test_an_id_counts_if_the_item_is_the_same_and_not_shifted():
    other = [
        with_value(each, each.value.replace(b"cc-block-1", b"other")) if each.topic == SESSION_ITEMS else each
        for each in OUTPUTS
    ]
    assert changes(OUTPUTS, other) == [("item", "changed", "text id", "cc-block-1", "")]


def test_a_dead_letter_with_other_content_is_named():
    (letter,) = of(DEAD_LETTERS)
    other = replaced(letter, with_header(letter, names.ERROR_PATH, b"message.role"))
    assert [each[:2] + each[3:] for each in changes(OUTPUTS, other)] == [
        ("dead letter", "changed", "agent.turns.v1/0/7", "path")
    ]
    cut = replaced(letter, with_value(letter, letter.value[:-1]))
    assert [each[1:3] + each[4:] for each in changes(OUTPUTS, cut)] == [("changed", "unknown_role", "value")]
    note = with_header(with_header(letter, names.ERROR_LETTER, b"0/17"), names.ERROR_CODE, b"retried")
    assert changes(OUTPUTS, [*OUTPUTS, note]) == []


# A single change of the pipeline's behaviour.


def test_a_changed_policy_shows_only_in_the_sessions_that_it_affects():
    whole = turns(OPENED, *appended(user("hi")), key=b"s2", first=100)
    drops = Defaults(policy=Policy(missing_result="drop"))
    before, after = processed([*LOG, *whole]), processed([*LOG, *whole], defaults=drops)
    assert changes(before, after, b"s2") == []
    found = changes(before, after)
    assert {(subject, how, label) for subject, how, label, *_ in found} == {
        ("request", "vanished", "anthropic block tool_use"),
        ("request", "vanished", "anthropic block tool_result"),
        ("request", "vanished", "openai-chat block function"),
        ("request", "vanished", "openai-chat message tool"),
        ("fix", "vanished", "result_synthesised lossy"),
        ("fix", "appeared", "call_unanswered lossy"),
    }
    # Each is reported for the first request that has it.
    assert {place.rpartition(" ")[2] for _, _, _, place, _ in found} == {"agent.turns.v1/0/4"}
    assert {each.again for each in compared(before, after).changes if each.subject == "request"} == {1}


def test_a_target_that_writes_differently_shows_in_its_own_requests(monkeypatch):
    write = openai_chat._call

    def compactly(use):
        made = write(use)
        function = made["function"] | {"arguments": made["function"]["arguments"].replace(" ", "")}
        return made | {"function": function}

    monkeypatch.setattr(openai_chat, "_call", compactly)
    path = "messages.1.tool_calls.0.function.arguments"
    (found,) = compared(OUTPUTS, processed(LOG, answers("Hello world", "Once more"))).changes
    assert (found.label, found.place, found.path) == (
        "openai-chat block function", "openai-chat agent.turns.v1/0/4", path
    )  # fmt: skip
    assert (found.lines, found.again) == (('-{"n": 1, "big": 1180591620717411303424}',
                                           '+{"n":1,"big":1180591620717411303424}'), 1)  # fmt: skip


@pytest.mark.parametrize(("target", "path"), [("claude-cli", "message.content"), ("copilot-cli", "")])
def test_a_differing_line_of_a_text_history_is_reported_once(target, path):
    def talk(word):
        turns_of_it = [user("one"), said("a"), user(word), said("b"), user("three"), said("c"), user("four")]
        return processed(turns(OPENED | {"targets": [target]}, *appended(*turns_of_it, said("d"), user("five"))))

    found = [each for each in compared(talk("two"), talk("2")).changes if each.again]
    assert [(each.path, each.again) for each in found] == [(path, 2)]


def test_an_addition_is_named_at_its_place_after_a_removal():
    def move_on(messages):
        del messages[0]
        messages[0]["content"].append({"type": "image", "source": "new"})

    assert altered(move_on) == [
        ("request", "vanished", "anthropic message user", PLACE, "messages.0"),
        ("request", "appeared", "anthropic block image", PLACE, "messages.0.content.4"),
    ]


def test_a_rule_that_becomes_hard_shows_as_rejected_requests(monkeypatch):
    judge = Rule.broken

    def stricter(self, path, severity=None, **values):
        return judge(self, path, "hard" if self.id == "ANT-26" else severity, **values)

    monkeypatch.setattr(Rule, "broken", stricter)
    found = changes(OUTPUTS, processed(LOG, answers("Hello world", "Once more")))
    assert [each for each in found if each[0] in {"request", "rejection"}] == [
        ("request", "vanished", "anthropic", "anthropic agent.turns.v1/0/4", ""),
        ("request", "vanished", "anthropic", "anthropic agent.turns.v1/0/6", ""),
        ("rejection", "appeared", "ANT-26", "agent.turns.v1/0/4", "tools"),
        ("rejection", "appeared", "ANT-26", "agent.turns.v1/0/6", "tools"),
    ]
    # The fix of the request to Anthropic is now reported with the other target's request.
    assert [each[:3] for each in found if each[0] not in {"request", "rejection"}] == []


# Sessions that cannot be compared, and sessions that are listed separately.


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        (processed(LOG, defaults=Defaults(limits=Limits(sessions=0))), LIMITED),
        (processed(turns({"type": "session.forgotten"}, *appended(user("hi")))), "forgotten"),
        ([Output(PROVIDER_REQUESTS, b"s1", b"{}", ((names.TARGET, b"anthropic"),))],
         "requests of a version that did not name their cause"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_incomparable_sessions_are_listed_and_not_compared(outputs, why, turned):
    found = compared(*((OUTPUTS, outputs) if turned else (outputs, OUTPUTS)))
    assert (found.not_comparable, found.changes, found.counts) == (why, (), {})


def test_a_session_of_several_versions_is_listed_separately():
    upgraded = replaced(LAST, with_header(LAST, names.REKNIT_VERSION, b"0.0.9"))
    summary = Summary()
    for before, after in ((OUTPUTS, OUTPUTS), (upgraded, OUTPUTS), (OUTPUTS, []), ([], upgraded)):
        summary.add_session(compared(before, after))
    assert (summary.plain.sessions, summary.plain.differing) == (2, 1)
    assert (summary.mixed.sessions, summary.mixed.differing) == (2, 1)


def test_the_summary_counts_kinds_and_keeps_examples_of_several_sessions():
    summary = Summary()
    for number in range(5):
        session = compared(OUTPUTS, replaced(LAST))
        summary.add_session(structs.replace(session, session=f"s{number}", changes=session.changes * 2))
    (kind,) = summary.plain.ranked()
    assert (kind.subject, kind.how, kind.label) == ("request", "vanished", "anthropic")
    assert (kind.count, kind.sessions) == (10, 5)
    assert [session for session, _ in kind.examples] == ["s0", "s1", "s2"]


# Values.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_values_differ_exactly_if_they_are_not_equal(one, other):
    before, after = (read_json(json.dumps(value).encode()) for value in (one, other))
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (list(differing(before, after)) == []) == same
    assert list(differing(before, before)) == []


def places(value, path=()):
    """Return the path of each innermost value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [place for name, each in inner for place in places(each, (*path, name))]
    return found or [path]


NESTED = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from("xy"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=20,
)


@given(NESTED, st.data())
def test_one_changed_value_is_named_at_its_path(value, data):
    path = data.draw(st.sampled_from(places(value)))
    text = json.dumps(value)
    before, after = {"in": json.loads(text)}, {"in": json.loads(text)}
    *way, last = ("in", *path)
    inner = after
    for name in way:
        inner = inner[name]
    inner[last] = "another"
    (found,) = differing(before, after)
    assert found.path == ".".join(map(str, ("in", *path)))
    assert found.after == "another"


def test_lists_too_long_to_align_are_compared_in_order_after_their_common_prefix(monkeypatch):
    monkeypatch.setattr(values, "_MOST_TO_ALIGN", 3)
    assert aligned("abcde", "axcbe") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert aligned("abe", "axbe") == [(0, 0), (None, 1), (1, 2), (2, 3)]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_every_element_is_paired_or_left_over_once_and_in_order(before, after):
    pairs = aligned(before, after)
    assert [at for at, _ in pairs if at is not None] == list(range(len(before)))
    assert sorted(to for _, to in pairs if to is not None) == list(range(len(after)))
    both = [pair for pair in pairs if None not in pair]
    assert both == sorted(both)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("one", "two", ("-one", "+two")),
        ("a" * 100 + "x" + "b" * 100, "a" * 100 + "y" + "b" * 100,
         ("-…" + "a" * 60 + "x" + "b" * 60 + "…", "+…" + "a" * 60 + "y" + "b" * 60 + "…")),
        ("1\n2\n3\n4\n5\n6", "1\n2\n3\nfour\n5\n6",
         ("@@ -2,5 +2,5 @@", " 2", " 3", "-4", "+four", " 5", " 6")),
        (ABSENT, {"type": "text"}, ("+{", '+  "type": "text"', "+}")),
        ("x" * 10_000_000, ABSENT, ("-" + "x" * 399 + "… 9,999,601 more characters",)),
        ("same\n" + "old\n" * 600 + "end", "same\n" + "new\n" * 2 + "end",
         (*["-old"] * 40, " … 562 more lines")),
        ("\ud800", ABSENT, ("-\\ud800",)),
    ],
)  # fmt: skip
def test_both_values_are_shown_as_a_unified_diff(before, after, lines):
    assert unified(before, after) == lines
