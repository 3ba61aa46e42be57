"""The conformance kit sees what it is to see: for each promise a target that breaks it, and where the kit says so."""

import json
import subprocess
import sys

import msgspec
import pytest
from build import session_of

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.errors import InputError, UnknownTargetError
from reknit.pipeline.fixes import make
from reknit.pipeline.model import Text
from reknit.pipeline.providers.anthropic.rules import Anthropic as AnthropicRules
from reknit.pipeline.providers.anthropic.writer import Anthropic, AnthropicDialect
from reknit.pipeline.registry import TARGETS, register, unregister
from reknit.pipeline.rules.base import Catalogue, WholeBody
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.session.settled import SettledPart
from reknit.pipeline.testing import CallableKit, ConformanceError, Kit, broken_histories, healthy_histories
from reknit.pipeline.testing.promises import bytes_differ, lists_differ, values_differ

HELLO = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "well"}]}
LONG = [HELLO, ANSWER] * 4 + [HELLO]


class OwnRules(AnthropicRules):
    target = "own"


def blocks_in(body):
    """How many blocks a body of Anthropic's shape has; a string is one."""
    return sum(1 if isinstance(turn["content"], str) else len(turn["content"]) for turn in body["messages"])


def own_target(dialect):
    class Own(Anthropic):
        name = "own"

        def prepare(self, setting, system):
            return dialect(setting, system)

    return Own()


@pytest.fixture
def own():
    def enter(dialect, rules=None, catalogue=None):
        register(own_target(dialect), rules or OwnRules(), catalogue)
        return Kit("own", shape="anthropic", blocks=blocks_in)

    yield enter
    if "own" in TARGETS:
        unregister("own")


class Faithful(AnthropicDialect):
    pass


def test_a_faithful_target_keeps_every_promise(own):
    kit = own(Faithful)
    for sample in broken_histories():
        kit.check(sample.history)
    for sample in healthy_histories():
        kit.check(sample.history)
        kit.healthy(sample.history)


class OneByOne(AnthropicDialect):
    encode_valid_run = None


def encoding(change, base=OneByOne):
    """A dialect that changes each message after its encoding."""

    class Changed(base):
        def encode_message(self, message, state, *, final):
            return change(super().encode_message(message, state, final=final))

    return Changed


def rewriting(before, after, base=OneByOne):
    return encoding(lambda part: msgspec.structs.replace(part, data=part.data.replace(before, after)), base)


Wizard = rewriting(b'"role":"user"', b'"role":"wizard"')
Twofold = rewriting(b'"role":', b' "role":', AnthropicDialect)
Forgetful = encoding(lambda part: msgspec.structs.replace(part, rows=[]))
Silent = encoding(
    lambda part: msgspec.structs.replace(part, rows=[(path, "rewritten", "blank_dropped") for path, _, _ in part.rows])
)


class Emphatic(OneByOne):
    def encode_message(self, message, state, *, final):
        for piece in message.pieces:
            if isinstance(piece.block, Text):
                piece.block = msgspec.structs.replace(piece.block, text=f"{piece.block.text}!")
        return super().encode_message(message, state, final=final)


class Busy(AnthropicDialect):
    def __init__(self, setting, system):
        super().__init__(setting, system)
        self.fixes = [*self.fixes, make("param_dropped", "top_k", target="own")]


BREACHES = [
    pytest.param(
        Wizard,
        "valid",
        "messages.0",
        "Input should be 'user' or 'assistant' [ANT-03b]",
        id="a role that no provider knows",
    ),
    pytest.param(Forgetful, "accounted", "ledger", "missing 'messages.0.content.0'", id="no line in the ledger"),
    pytest.param(Silent, "accounted", "messages.", "no fix names it", id="no fix"),
    pytest.param(Twofold, "incremental", "after messages.", "byte ", id="two ways to write"),
    pytest.param(Emphatic, "idempotent", "the second time", "hello!!", id="mended twice"),
    pytest.param(Busy, "healthy", "", "unexpected Fix(code='param_dropped'", id="a fix of nothing"),
]


@pytest.mark.parametrize(("dialect", "promise", "where", "what"), BREACHES)
def test_a_broken_promise_is_detected_and_located(own, dialect, promise, where, what):
    kit = own(dialect)
    with pytest.raises(ConformanceError) as caught:
        getattr(kit, promise)(LONG)
    error = caught.value
    assert (error.promise, error.target) == (promise, "own")
    assert error.where.startswith(where)
    assert what in error.what
    assert str(error).startswith(f"{promise}, own")
    if promise != "healthy":
        with pytest.raises(ConformanceError):
            kit.check(LONG)


def test_an_output_block_without_a_source_is_detected(own):
    talkative = rewriting(b'"content":[', b'"content":[{"type":"text","text":"Listen."},')
    with pytest.raises(ConformanceError, match=r"accounted, own, body: 18 blocks, but 9 have a line"):
        own(talkative).accounted([*LONG[:-1], {"role": "user", "content": [{"type": "text", "text": " x"}]}])


def test_changed_settled_bytes_are_detected(monkeypatch):
    monkeypatch.setattr(SettledPart, "stable_prefix_bytes", lambda track: len(b"".join(track.chunks)) + 4_000)
    with pytest.raises(ConformanceError) as caught:
        Kit("anthropic").incremental(LONG)
    assert (caught.value.promise, caught.value.where) == ("settled", "after messages.1")
    monkeypatch.setattr(SettledPart, "stable_prefix_bytes", lambda track: 40 - len(track.chunks))
    with pytest.raises(ConformanceError, match=r"settled, anthropic, after messages.\d: 40 bytes became 39"):
        Kit("anthropic").incremental(LONG)


def test_rules_that_do_not_fold_are_detected(own):
    catalogue = Catalogue("own")
    rule = catalogue.rule("OWN-01", "soft", "too kind", summary="s", repair="r", source="s")

    class Moody(OwnRules):
        def validate(self, body, model=None):
            return [*super().validate(body, model), rule.broken("messages")]

    with pytest.raises(
        ConformanceError, match=r"folded, own: violations, step by step against whole: missing .*OWN-01"
    ):
        own(Faithful, Moody(), catalogue.rules).folded(LONG)


def test_a_lost_mark_is_detected(own):
    history = [{"role": "user", "content": [{"type": "text", "text": "MARK-A"}]}]
    Kit().marked(history)
    with pytest.raises(ConformanceError, match=r"accounted, own, messages.0.content.0: lost MARK-A without a fix"):
        own(rewriting(b"MARK-A", b"MARK-B")).marked(history)


# Policies, settings, shapes.


def test_a_rejection_is_the_policys_choice_or_a_violation(own):
    ended = [HELLO, ANSWER]
    assert Kit("anthropic", {"tail": "reject"}).valid(ended).body is None
    assert Kit("anthropic", {"tail": "keep"}).valid(ended).body is not None

    class Refused(OwnRules):
        def judge_end(self, state):
            return [RULES["ANT-01"].broken("messages")]

    with pytest.raises(ConformanceError, match=r"valid, own, messages: .*\[ANT-01\]"):
        own(Faithful, Refused()).valid(ended)


def test_members_other_than_the_messages_are_part_of_the_check():
    setting = {
        "model": "claude-sonnet-4-5",
        "system": "Be brief.",
        "tools": [{"name": "read.it", "input_schema": {"type": "object"}}],
        "params": {"max_tokens": 64},
    }
    for target in TARGETS:
        kit = Kit(target, setting=setting)
        body = kit.check(LONG).body
        document = {**setting, "messages": LONG}
        assert Kit(target).check(document).body == body
        assert Kit(target).check(json.dumps(document)).body == body
        assert Kit(target).check(json.dumps(document).encode()).body == body


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "gemini", "bedrock-converse"])
def test_a_providers_own_body_is_a_history_too(target):
    for sample in broken_histories():
        body = normalize(json.dumps(sample.history).encode(), to=target).body
        Kit("anthropic", source=target).check(json.loads(body))


def test_a_transcript_is_checked_whole():
    lines = [
        {"type": "user", "uuid": "a", "parentUuid": None, "sessionId": "s", "message": HELLO},
        {"type": "assistant", "uuid": "b", "parentUuid": "a", "sessionId": "s", "message": {**ANSWER, "id": "m"}},
    ]
    done = Kit(source="claude-code").check("\n".join(json.dumps(line) for line in lines))
    assert [fix.code for fix in done.fixes] == ["tail_continued"]


def test_an_invalid_history_is_a_typed_error():
    for history in (7, "7", {"messages": 7}, {"role": "user"}):
        with pytest.raises(InputError, match="list of messages"):
            Kit().check(history)
    with pytest.raises(UnknownTargetError):
        Kit("nobody")


def test_the_bundled_histories_are_broken_or_valid():
    broken = {sample.name: sample.history for sample in broken_histories()}
    assert len(broken) > 60
    # The model is unknown, so all of the structure is repaired; the rest is repaired for other targets, or under policy
    # `fit`.
    kit = Kit("bedrock-converse")
    assert {name for name, history in broken.items() if not kit.normalize(history).fixes} == {
        "answer_schema_closed",
        "cache_point_dropped",
        "cache_point_joined",
        "cache_ttl_shortened",
        "cut_text_dropped",
        "cut_text_marked",
        "document_notes_dropped",
        "environment_missed",
        "exchange_cut",
        "fit_exceeded",
        "nul_replaced",
        "parameter_unsupported",
        "schema_described",
        "summary_inserted",
        "thinking_disabled",
        "thinking_yields",
    }
    for sample in healthy_histories():
        assert Kit().healthy(sample.history).body


def test_the_kit_does_not_need_hypothesis():
    imports = "from reknit.pipeline.testing import *\nimport reknit.pipeline.cli.offline"
    code = f"import sys; sys.modules['hypothesis'] = None\n{imports}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Functions.


def test_a_function_is_checked_by_its_result():
    def mend(history):
        return normalize(history).body

    kit = CallableKit(mend)
    for sample in healthy_histories():
        assert kit.check(sample.history)["messages"] == sample.history
        kit.healthy(sample.history)
    assert kit.check([HELLO, ANSWER])["messages"][-1]["role"] == "user"
    assert kit.name == "mend"


def unchanged(history):
    return {"messages": history}


def emptied(history):
    history.clear()
    return {"messages": [HELLO]}


def growing(history):
    return json.dumps({"messages": [HELLO, ANSWER, *history]})


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, history):
        self.calls += 1
        return {"messages": [*history, {"role": "user", "content": str(self.calls)}]}


@pytest.mark.parametrize(
    ("mend", "promise", "text"),
    [
        (unchanged, "valid", "valid, unchanged, messages.0.role: "),
        (emptied, "repeatable", "repeatable, emptied: the history was changed: 0 elements, expected 1"),
        (growing, "idempotent", "idempotent, growing, messages: the second time: 5 elements, expected 3"),
        (growing, "healthy", "healthy, growing: the history: 3 elements, expected 1"),
        (Counting(), "repeatable", "repeatable, Counting, messages.1.content: the second call: '2', expected '1'"),
    ],
)
def test_a_function_that_breaks_a_promise_is_detected(mend, promise, text):
    history = [{"role": "wizard", "content": "x"}] if promise == "valid" else [HELLO]
    with pytest.raises(ConformanceError) as caught:
        getattr(CallableKit(mend), promise)(history)
    assert str(caught.value).startswith(text)


def test_a_function_may_have_its_own_rules():
    kit = CallableKit(unchanged, rules=lambda body: validate(body, "anthropic") if len(body["messages"]) > 1 else [])
    assert kit.check([HELLO]) == {"messages": [HELLO]}
    with pytest.raises(ConformanceError):
        kit.check([{"role": "wizard", "content": "x"}] * 2)
    with pytest.raises(TypeError, match="a JSON object, not list"):
        CallableKit(json.dumps).valid([HELLO])


# The registry.


def test_a_registered_target_is_found_by_name(own):
    own(Faithful)
    assert normalize([HELLO], to="own").body == normalize([HELLO], to="anthropic").body
    assert validate({"messages": []}, "own")[0].rule
    session = session_of(HELLO, targets=("own", "anthropic"))
    assert Session.load(session.head(), []).request("own").body == session.request("anthropic").body
    unregister("own")
    assert "own" not in TARGETS
    with pytest.raises(UnknownTargetError):
        normalize([HELLO], to="own")


def test_an_invalid_registration_is_a_typed_error_and_changes_nothing(own):
    before = (dict(TARGETS), dict(RULES))
    taken = Catalogue("own")
    taken.rule("ANT-01", "hard", "m", summary="s", repair="r", source="s")

    class Untailed(Anthropic):
        name = "own"
        tail_rule = "OWN-99"

    class Text(WholeBody):
        target = "other"

        def validate(self, body, model=None):
            return []

    for target, rules, catalogue, code in (
        (Anthropic(), AnthropicRules(), None, "name_taken"),
        (own_target(Faithful), OwnRules(), taken.rules, "name_taken"),
        (own_target(Faithful), Text(), None, "wrong_rules"),
        (Untailed(), OwnRules(), None, "unknown_rule"),
    ):
        with pytest.raises(InputError) as caught:
            register(target, rules, catalogue)
        assert caught.value.code == code
    with pytest.raises(UnknownTargetError):
        unregister("anthropic")
    assert (dict(TARGETS), dict(RULES)) == before


# The reports of differences.


def test_differences_are_reported_with_their_place():
    assert bytes_differ(b"abc", b"abc") == ""
    assert bytes_differ(b"abc", b"abd") == "byte 2: b'abc', expected b'abd'"
    assert bytes_differ(b"ab", b"abc") == "byte 2: b'ab', expected b'abc'"
    assert bytes_differ(None, b"abc") == "the body was refused, expected a body of 3 bytes"
    assert lists_differ([1, 2, 2], [2, 1]) == "unexpected 2"
    assert lists_differ([1], [1, 3]) == "missing 3"
    assert values_differ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) is None
    assert values_differ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ("a.1.b", "2, expected 3")
    assert values_differ({"a": 1}, {"a": 1.0}) == ("a", "1, expected 1.0")
    assert values_differ({"a": 1}, {"a": True}) == ("a", "1, expected True")
    assert values_differ({}, {"a": 1}) == ("a", "missing")
    assert values_differ({"a": 1}, {}) == ("a", "1, expected nothing")
    assert values_differ([1, 2], [1]) == ("", "2 elements, expected 1")
