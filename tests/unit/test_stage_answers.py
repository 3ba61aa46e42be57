"""A provider's answer to a published request: the stream side forwards it, and the history side judges it."""

from __future__ import annotations

import json

import claude_lines as cli
import pytest
from build import answered, called, said, user
from stage_runs import OPENED, in_batches, letters, of, processed, records, restored, turn

from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.refusals import read_refusal
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_REQUESTS
from reknit.topics.headers import DeadLetterHeaders, decode

COUNTED = "reknit_provider_refusals_total"
# A file of Anthropic's inside a tool's result is taken with a header that the body does not show.
FILE = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
DOUBTED = [called("toolu_1"), answered("toolu_1", [FILE])]
FORESEEN = (
    "messages.2.content.0.tool_result.content.0.image.source: Input tag 'file' found using 'type' does not match any "
    "of the expected tags: 'base64', 'url'"
)
MISSED = "messages: at least one message is required"
UNKNOWN = "the moon is in the wrong phase for tools"


def error(words):
    return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": words}}).encode()


def event(request_id, status, body):
    headers = (("source", b"anthropic"), ("run", b"r"), ("request-id", request_id.encode()), ("status", status))
    return records([body], headers)


class Sides:
    """Both sides of one session, with what crosses between them."""

    def __init__(self, **defaults):
        self.defaults = Defaults(**defaults)
        self.turns, self.events = TurnsStage(self.defaults), EventsStage(self.defaults)
        self.offset, self.kept, self.letters, self.requests, self.tally = 0, {}, [], [], {}

    def take(self, *values):
        found = self.turns.process(records(values, first=self.offset))
        self.offset += len(values)
        self.kept |= found.changes
        self.tally = found.tally
        self.letters = of(found, DEAD_LETTERS)
        self.requests += of(found, PROVIDER_REQUESTS)
        return self

    def answer(self, words, status=b"400", request=-1):
        """Have the provider answer a request; the metric's labels that were counted."""
        body = words if isinstance(words, bytes) else error(words)
        request_id = dict(self.requests[request].headers)["request-id"].decode()
        crossed = of(self.events.process(event(request_id, status, body)), AGENT_TURNS)
        self.take(*[each.value for each in crossed])
        return {key[1:]: count for key, count in self.tally.items() if key[0] == COUNTED}

    def restart(self):
        self.turns = restored(TurnsStage(self.defaults), self.kept)
        return self


def sides_with_request(**defaults):
    return Sides(**defaults).take(OPENED, turn(user("hi")))


@pytest.mark.parametrize(
    ("words", "status", "labels", "code"),
    [
        (FORESEEN, b"400", ("foreseen", "ANT-31c"), "refused_foreseen"),
        (MISSED, b"400", ("missed", "ANT-01"), "refused_missed"),
        (UNKNOWN, b"400", ("unknown", ""), "refused_unknown"),
        (b"<html>Bad Request</html>", b"400", ("unknown", ""), "refused_unknown"),
        ("prompt is too long: 200016 tokens > 200000 maximum", b"400", ("not_shape", "ANT-33"), None),
        ("Your credit balance is too low to access the API.", b"400", ("not_shape", ""), None),
        (UNKNOWN, b"401", ("not_shape", ""), None),
        (UNKNOWN, b"429", ("not_shape", ""), None),
        (UNKNOWN, b"529", ("not_shape", ""), None),
    ],
)
def test_a_refusal_is_counted_by_its_verdict(words, status, labels, code):
    sides = sides_with_request().take(*map(turn, DOUBTED))
    assert sides.tally["reknit_requests_doubted_total", "anthropic", "ANT-31c"] == 1
    assert sides.answer(words, status) == {("anthropic", *labels): 1}
    why = [decode(letter.headers, DeadLetterHeaders) for letter in sides.letters]
    assert [each.code for each in why] == ([] if code is None else [code])
    for each in why:
        request = dict(sides.requests[-1].headers)
        assert (each.target, each.body_sha256) == ("anthropic", request["body-sha256"].decode())
        assert each.message == (words.decode() if isinstance(words, bytes) else words)
    assert len(sides.requests) == 2


@pytest.mark.parametrize(
    ("status", "words", "outcome"),
    [
        (404, ("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false. Try again with "
         "`store` set to true, or remove this item from your input."), ("missed", "RSP-06")),
        (404, "The model `gpt-9` does not exist or you do not have access to it.", ("not_shape", "")),
        (401, "input item ID does not belong to this connection", ("not_shape", "")),
        (403, "A sentence that no rule has.", ("not_shape", "")),
        (503, ("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false. Try again with "
         "`store` set to true, or remove this item from your input."), ("not_shape", "")),
    ],
)  # fmt: skip
def test_with_the_status_of_keys_and_models_only_the_words_of_a_rule_decide(status, words, outcome):
    refusal = read_refusal(TARGETS["openai-responses"].catalogue, status, json.dumps({"error": {"message": words}}))
    assert (refusal.outcome, refusal.rule) == outcome


def test_a_refusal_is_judged_once_also_after_a_restart_and_transient_errors_each_time():
    sides = sides_with_request()
    assert sides.answer("busy", b"503") == sides.answer("busy", b"503") == {("anthropic", "not_shape", ""): 1}
    assert sides.answer(UNKNOWN) == {("anthropic", "unknown", ""): 1}
    assert sides.restart().answer(UNKNOWN) == {}
    assert sides.tally == {("reknit_turns_total", "provider.answered", "repeated"): 1}


def test_a_superseded_request_stays_known_until_the_model_answers():
    sides = sides_with_request().take(turn(user("and")), turn(user("more")))
    assert sides.restart().answer(UNKNOWN, request=0) == {("anthropic", "unknown", ""): 1}
    assert sides.answer(UNKNOWN, request=1) == {("anthropic", "unknown", ""): 1}
    sides.take(turn(said("yes")), turn(user("so?")))
    assert sides.answer(UNKNOWN, request=0) == {("", "unmatched", ""): 1}
    assert sides.answer(UNKNOWN, request=2) == {("", "unmatched", ""): 1}


def test_the_number_of_stored_requests_is_bounded():
    sides = sides_with_request().take(*[turn(user(f"{n}")) for n in range(50)])
    kept = [n for n in range(51) if ("anthropic", "unknown", "") in sides.answer(UNKNOWN, request=n)]
    assert kept == list(range(42, 51))


def test_an_answer_does_not_affect_later_requests():
    told = sides_with_request()
    told.answer(UNKNOWN)
    other = sides_with_request()
    for sides in (told, other):
        sides.take(turn(said("ok")), turn(user("go")))
    assert [each.value for each in told.requests] == [each.value for each in other.requests]
    ids = [[dict(each.headers)["request-id"] for each in sides.requests] for sides in (told, other)]
    assert ids[0] == ids[1]


def test_an_answer_creates_no_session():
    sides = Sides().take({"type": "provider.answered", "request_id": "r", "status": 400, "body": "no"})
    assert (sides.tally[COUNTED, "", "unmatched", ""], sides.kept, sides.letters) == (1, {}, [])


def test_answers_are_counted_for_a_session_that_follows_a_dead_letter():
    sides = sides_with_request(on_dead_letter="follow").take(b"not JSON")
    assert sides.answer(UNKNOWN) == {("anthropic", "unknown", ""): 1}


@pytest.mark.parametrize("status", [b"200", b"302"])
def test_only_a_refusal_passes_to_the_history_side(status):
    assert sides_with_request().answer(b'{"type": "ping"}', status) == {}


def test_an_event_without_a_request_id_does_not_pass():
    headers = (("source", b"anthropic"), ("status", b"400"))
    assert of(EventsStage().process(records([error(UNKNOWN)], headers)), AGENT_TURNS) == []


def test_log_records_do_not_depend_on_batches():
    """A turn that a refusal's record finishes is written to the log before the refusal."""
    headers = (("source", b"claude-cli"), ("run", b"r"), ("request-id", b"q"), ("status", b"400"))
    value = b"\n".join(json.dumps(each).encode() for each in (cli.whole("m", cli.said("hm")), cli.result("hm")))
    given = records([value] * 2, headers)
    defaults = Defaults(policy=Policy(record_assistant=True))
    at_once, one_by_one = (
        [
            each
            for each in processed(lambda: EventsStage(defaults), in_batches(given, size))[0]
            if each.topic == AGENT_TURNS
        ]
        for size in (2, 1)
    )
    assert [json.loads(each.value)["type"] for each in one_by_one][:2] == ["provider.answered", "turn.appended"]
    assert at_once == one_by_one


def test_an_invalid_status_is_a_dead_letter():
    found = EventsStage().process(event("r", b"soon", error(UNKNOWN)))
    assert letters(found.outputs) == [(0, "bad_status")]
    assert len(found.outputs) == 1


def test_the_passed_record_has_the_answers_text_and_its_origin():
    body = b"\xff" + b"x" * 20_000
    found = EventsStage().process(event("r", b"422", body))
    (crossed,) = of(found, AGENT_TURNS)
    assert json.loads(crossed.value) == {
        "type": "provider.answered",
        "request_id": "r",
        "status": 422,
        "body": "�" + "x" * (16 * 1024 - 1),
        "origin": "reknit",
    }


ODD = ["", "null", "[]", '["a"]', '{"error": null}', '{"error": [1]}', "[" * 5000, '"\\ud800"', "\n", "a\n\nb"]
ODD += [begin * depth + "1" + end * depth for depth in (900, 1800) for begin, end in (("[", "]"), ('{"error":', "}"))]


@pytest.mark.parametrize("body", ODD)
def test_any_body_of_an_answer_can_be_read(body):
    assert read_refusal(TARGETS["anthropic"].catalogue, 400, body).outcome == "unknown"
    assert read_refusal(None, 400, body).outcome == "unknown"
