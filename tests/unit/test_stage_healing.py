"""Healing through the topics: a refusal in the log leads to the healed request."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from stage_runs import KEY, OPENED, of, records, restored, turn

from reknit.pipeline.cli.sessions import summarise
from reknit.pipeline.policy import Policy
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS

OPEN = OPENED | {"tools": [{"name": "ls", "input_schema": {"type": "object", "properties": {}}}]}
SIGNED = ("EqQBAAAAAAAAAAAA", "EqQBBBBBBBBBBBBB", "EqQBCCCCCCCCCCCC", "EqQBDDDDDDDDDDDD")
UNKNOWN = "the moon is in the wrong phase for tools"
LIMIT = "max_tokens: 100 > 90, which is the maximum allowed number of output tokens for this model"
TOP_K = "`top_k` is deprecated for this model."
TIMEOUT = "Timeout while downloading https://example.com/a.png."


def said(role, text):
    return turn({"role": role, "content": [{"type": "text", "text": text}]})


def exchange(number):
    """A question, a call with reasoning, its result, and the answer."""
    thought = {"type": "thinking", "thinking": f"Hm {number}.", "signature": SIGNED[number]}
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "ls", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "a.py"}
    return [
        said("user", f"Question {number}?"),
        turn({"role": "assistant", "content": [thought, call]}),
        turn({"role": "user", "content": [result]}),
        said("assistant", f"Answer {number}."),
    ]


HISTORY = [OPEN, *exchange(0), *exchange(1), *exchange(2), said("user", "Thanks.")]


def refusal(request_id, words, status=400, **fields):
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": words}})
    return {"type": "provider.answered", "request_id": request_id, "status": status, "body": body, **fields}


def bad(at):
    return f"messages.{at}.content.0: Invalid `signature` in `thinking` block"


class Log:
    """One session's history side, which may restart after each record."""

    def __init__(self, *, restarts=False, **defaults):
        self.defaults, self.restarts = Defaults(**defaults), restarts
        self.stage, self.kept, self.values = TurnsStage(self.defaults), {}, []
        self.outputs, self.last, self.tally = [], [], {}

    def take(self, *values):
        for value in values:
            found = self.stage.process(records([value], first=len(self.values)))
            self.values.append(value)
            self.kept |= found.changes
            self.last, self.tally = found.outputs, found.tally
            self.outputs += found.outputs
            if self.restarts:
                self.stage = restored(TurnsStage(self.defaults), self.kept)
        return self

    def refuse(self, words, request=-1, **fields):
        return self.take(refusal(self.requests[request][0]["request-id"], words, **fields))

    def of(self, topic, outputs=None):
        return [each for each in (self.outputs if outputs is None else outputs) if each.topic == topic]

    @property
    def requests(self):
        return [_read(each) for each in self.of(PROVIDER_REQUESTS)]

    @property
    def healed(self):
        return [_read(each) for each in self.of(PROVIDER_REQUESTS, self.last)]

    @property
    def fixes(self):
        return [json.loads(each.value) for each in self.of(HISTORY_FIXES, self.last)]

    @property
    def letters(self):
        return [dict(each.headers)["reknit.error.code"].decode() for each in self.of(DEAD_LETTERS, self.last)]


def _read(output):
    return {name: value.decode() for name, value in output.headers}, (output.value or b"").decode()


def _outcomes(log):
    return {key[2:]: count for key, count in log.tally.items() if key[0] == "reknit_healed_total"}


def shown(output):
    return output.topic, output.key, output.value, output.headers


@pytest.fixture
def log():
    return Log().take(*HISTORY)


def test_a_refusal_publishes_the_healed_request(log):
    refused, _ = log.requests[-1]
    ((headers, body),) = log.refuse(bad(5)).healed
    assert [signature in body for signature in SIGNED[:3]] == [True, False, True]
    assert headers["reason"] == "healed"
    assert headers["heals"] == headers["supersedes"] == refused["request-id"]
    assert headers["request-id"] != refused["request-id"]
    assert headers["turn"] == refused["turn"]
    assert headers["prefix-reset"] == "healed"
    assert headers["cause"] == f"agent.turns.v1/2/{len(log.values) - 1}"
    assert log.letters == []
    (fix,) = log.fixes
    assert (fix["code"], fix["path"], fix["lossless"]) == ("healed_thinking_signature", "messages.5.content.0", False)
    assert fix["detail"].endswith(f"{bad(5)} (request {refused['request-id']})")
    assert fix["request_id"] == headers["request-id"]
    assert log.tally["reknit_provider_refusals_total", "anthropic", "healed", ""] == 1


def test_the_next_request_is_written_without_it(log):
    log.refuse(bad(5)).take(said("assistant", "Bye."), said("user", "Wait."))
    ((headers, body),) = log.healed
    assert SIGNED[1] not in body
    assert "heals" not in headers
    assert log.fixes == []


def test_a_redelivered_refusal_heals_once(log):
    log.refuse(bad(5))
    again = log.values[-1]
    assert log.take(again).last == []
    log.take(said("assistant", "Bye."), said("user", "Wait."))
    assert [body for _, body in log.take(again).healed] == []
    assert log.tally == {("reknit_turns_total", "provider.answered", "repeated"): 1}


def test_the_last_refusal_is_a_dead_letter(log):
    assert log.refuse(bad(1)).letters == []
    assert log.refuse(bad(5)).letters == []
    assert log.refuse(UNKNOWN).letters == ["refused_unknown"]
    assert log.healed == []


def test_a_refusal_that_no_row_has_is_judged_as_before(log):
    assert log.refuse(UNKNOWN).letters == ["refused_unknown"]
    assert (log.healed, log.fixes) == ([], [])


@pytest.mark.parametrize(("heal", "most"), [("off", 0), ("once", 1), ("on", 3)])
def test_the_policy_limits_the_healings_of_a_user_turn(heal, most):
    log = Log(policy=Policy(heal=heal)).take(*HISTORY)
    limit = "max_tokens: {} > {}, which is the maximum allowed number of output tokens for this model"
    words = (bad(1), limit.format(100, 90), limit.format(90, 80), limit.format(80, 70))
    published = [len(log.refuse(each).healed) for each in words]
    assert published == [int(number < most) for number in range(4)]
    assert len({headers["request-id"] for headers, _ in log.requests}) == len(log.requests)


def test_the_outcome_of_a_healed_request_is_counted(log):
    log.refuse(bad(1)).refuse(bad(5))
    assert log.tally["reknit_healed_total", "anthropic", "thinking_signature", "refused"] == 1
    log.take(said("assistant", "Bye."))
    assert log.tally["reknit_healed_total", "anthropic", "thinking_signature", "accepted"] == 1
    log.take(said("user", "Wait."), said("assistant", "Yes?"))
    assert not any(name == "reknit_healed_total" for name, *_ in log.tally)


def test_a_late_refusal_heals_the_next_request(log):
    log.take(said("user", "Are you there?"))
    assert log.refuse(bad(5), request=-2).healed == []
    assert log.letters == []
    ((headers, body),) = log.take(said("user", "Hello?")).healed
    assert headers["reason"] == "turn"
    assert not any(signature in body for signature in SIGNED)
    assert [fix["code"] for fix in log.fixes if fix["code"].startswith("healed_")] == ["healed_thinking_signature"] * 3


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("outcome", ["accepted", "refused"])
def test_the_request_after_a_late_refusal_is_counted_with_its_outcome(outcome, restarts):
    log = Log(restarts=restarts).take(*HISTORY, said("user", "Are you there?"))
    log.refuse(bad(5), request=-2)
    log.take(said("assistant", "Yes."))
    assert not any(name == "reknit_healed_total" for name, *_ in log.tally), "its request was sent before the refusal"
    log.take(said("user", "Hello?"))
    if outcome == "accepted":
        log.take(said("assistant", "Hello."))
    else:
        log.refuse(UNKNOWN)
    counted = {key: count for key, count in log.tally.items() if key[0] == "reknit_healed_total"}
    assert counted == {("reknit_healed_total", "anthropic", "thinking_signature", outcome): 1}
    log.take(said("user", "Go on."), said("assistant", "Done."))
    assert not any(name == "reknit_healed_total" for name, *_ in log.tally)


@pytest.mark.parametrize("restarts", [False, True])
def test_each_of_several_healings_is_counted_with_its_outcome(restarts):
    opened = HISTORY[0] | {"params": {"max_tokens": 100, "top_k": 5}}
    log = Log(restarts=restarts).take(opened, *HISTORY[1:], said("user", "Are you there?"))
    log.refuse(LIMIT)  # its healed request waits for its outcome during the next two healings
    log.refuse(bad(5), request=-3)
    log.take(said("user", "Hello?"))
    log.refuse(TOP_K)
    assert _outcomes(log) == {("thinking_signature", "refused"): 1}
    log.take(said("assistant", "Hello."))
    assert _outcomes(log) == {("max_tokens", "accepted"): 1, ("deprecated", "accepted"): 1}


def test_the_outcome_that_an_earlier_version_waits_for_is_counted(log):
    log.refuse(bad(5))
    session = log.stage.find(KEY).session
    (memory,) = session._memory.values()
    session._memory["anthropic"] = structs.replace(memory, pending=memory.waiting[0], waiting=())
    log.take(said("assistant", "Bye."))
    assert log.tally["reknit_healed_total", "anthropic", "thinking_signature", "accepted"] == 1


def test_a_request_that_was_sent_before_a_late_refusal_is_healed_by_what_was_learned(log):
    log.take(said("user", "Are you there?"))
    log.refuse(bad(5), request=-2)
    ((headers, body),) = log.refuse(bad(5)).healed
    assert headers["reason"] == "healed"
    assert not any(signature in body for signature in SIGNED)


def test_two_targets_heal_independently():
    log = Log().take(HISTORY[0] | {"targets": ["anthropic", "openai-chat"]}, *HISTORY[1:])
    (first, second) = log.requests[-2:]
    assert (first[0]["target"], second[0]["target"]) == ("anthropic", "openai-chat")
    ((headers, _),) = log.take(refusal(first[0]["request-id"], bad(1))).healed
    assert headers["target"] == "anthropic"
    renamed = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    ((headers, body),) = log.take(refusal(second[0]["request-id"], renamed)).healed
    assert headers["target"] == "openai-chat"
    assert json.loads(body)["max_completion_tokens"] == 100
    (anthropic, chat) = log.take(said("assistant", "Bye."), said("user", "Wait.")).healed
    assert "max_completion_tokens" not in anthropic[1]
    assert "max_completion_tokens" in chat[1]


def test_a_download_is_healed_at_the_second_attempt_and_not_at_a_redelivery():
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    log = Log().take(OPENED, turn({"role": "user", "content": [image, {"type": "text", "text": "See."}]}))
    assert log.refuse(TIMEOUT, id="a").last == []
    assert log.refuse(TIMEOUT, id="a").last == []
    ((_, body),) = log.refuse(TIMEOUT, id="b").healed
    assert "Image or file left out" in body


def test_the_stream_side_gives_each_attempt_of_a_download_an_id():
    headers = (("source", b"anthropic"), ("run", b"r"), ("request-id", b"q"), ("status", b"400"))
    body = refusal("q", TIMEOUT)["body"].encode()
    crossed = of(EventsStage().process(records([body] * 2, headers)), AGENT_TURNS)
    assert [json.loads(each.value)["id"] for each in crossed] == ["provider.events.v1/2/0", "provider.events.v1/2/1"]


def test_an_opening_with_heal_reset_forgets_what_was_refused(log):
    log.refuse(bad(5)).take({"type": "session.opened", "policy": {"heal": "reset"}}, said("user", "Go on."))
    assert all(signature in log.healed[0][1] for signature in SIGNED[:3])
    assert log.stage.find(KEY).session.policy.heal == "on"


@pytest.mark.parametrize("ending", ["session.closed", "session.forgotten"])
def test_memory_ends_with_the_session(log, ending):
    log.refuse(bad(5)).take({"type": ending})
    if ending == "session.closed":
        log.take(*HISTORY)
        assert all(signature in log.healed[0][1] for signature in SIGNED[:3])
    else:
        assert not any(b"healed" in (value or b"") for value in log.kept.values())


def test_inspect_shows_the_refusals_that_were_healed(log):
    refused, _ = log.requests[-1]
    log.refuse(bad(5))
    healed = {"row": "thinking_signature", "sentence": bad(5), "request_id": refused["request-id"]}
    shown_state = summarise(KEY, list(log.kept.items()), [])
    assert shown_state["history"]["healed"] == {"anthropic": [healed]}


def test_nothing_is_healed_before_format_3():
    stage = TurnsStage()
    stage.use_format(2)
    outputs = stage.process(records(HISTORY)).outputs
    request = [each for each in outputs if each.topic == PROVIDER_REQUESTS][-1]
    words = refusal(dict(request.headers)["request-id"].decode(), bad(5))
    found = stage.process(records([words], first=len(HISTORY)))
    assert of(found, PROVIDER_REQUESTS) == []


def test_the_same_ids_are_given_as_before_where_nothing_was_refused():
    plain, off = Log().take(*HISTORY), Log(policy=Policy(heal="off")).take(*HISTORY)
    assert [shown(each) for each in plain.outputs] == [shown(each) for each in off.outputs]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from([bad(1), bad(5), bad(9), UNKNOWN, TIMEOUT]), st.integers(1, 3)), max_size=12))
def test_restarts_and_batches_change_nothing(refusals):
    """A log with refusals, early and late, gives the same outputs however it is processed."""
    log = Log().take(*HISTORY).refuse(bad(1))
    for at, (words, back) in enumerate(refusals):
        if at % 3 == 2:
            log.take(said("user", f"Well {at}?"))
        log.refuse(words, request=-back)
        if at % 4 == 3:
            log.take(said("assistant", "Hm."), said("user", "And?"))
    expected = [shown(each) for each in log.outputs]
    assert any(headers.get("reason") == "healed" for headers, _ in log.requests)
    restarted = Log(restarts=True).take(*log.values)
    assert [shown(each) for each in restarted.outputs] == expected
    stage, at_once = TurnsStage(), []
    for first in range(0, len(log.values), 7):
        at_once += stage.process(records(log.values[first : first + 7], first=first)).outputs
    assert [shown(each) for each in at_once] == expected
    # Neither the same bytes nor the same id are published again after a refusal.
    ids = [headers["request-id"] for headers, _ in log.requests]
    assert len(set(ids)) == len(ids)
