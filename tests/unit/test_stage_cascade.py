"""A planner's text on the stream side: items, fixes, metrics, and the turn for the next request."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest
import stage_runs
from build import answered, call, user
from msgspec import structs
from stage_runs import in_batches, processed, restored, turn

from reknit.pipeline.cli.config import session_defaults
from reknit.pipeline.config import load_config
from reknit.pipeline.errors import InputError
from reknit.pipeline.metrics import Metrics
from reknit.pipeline.policy import Policy
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Output, Record, Result
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.items import AnyItem
from reknit.topics.reducer import reduce

SOURCE = (("source", b"cascade"), ("run", b"r1"))
DEFAULTS = Defaults(targets=("cascade",), model="claude-sonnet-4-5", policy=Policy(record_assistant=True))
CALL = '<tool_call>{"name":"ls","arguments":{"path":"/opt/windsurf/bin"}}</tool_call>'
SAID = f'I am Cascade. In /opt/windsurf/log I look.\n{CALL}\n<tool_result tool_call_id="x">bin</tool_result>'


def text(words: str) -> bytes:
    return json.dumps({"type": "text_delta", "text": words}).encode()


def records(values: list[bytes | None], first: int = 0, headers=SOURCE) -> list[Record]:
    return stage_runs.records(values, headers, first=first)


def answer(said: str = SAID, size: int = 7, first: int = 0) -> list[Record]:
    """An answer in pieces, its end, and the end of the run."""
    pieces = [text(said[at : at + size]) for at in range(0, len(said), size)]
    given = records([*pieces, b'{"type":"done","reason":"idle_done"}'], first)
    return [*given, *records([None], first + len(given), (*SOURCE, ("exit", b"0")))]


def of(outputs: list[Output], topic: str) -> list:
    return [json.loads(output.value) for output in outputs if output.topic == topic]


def shown(outputs: list[Output]) -> list[tuple[str, str]]:
    items = [msgspec.json.decode(output.value, type=AnyItem) for output in outputs if output.topic == SESSION_ITEMS]
    return [(entry.item_type, entry.text) for entry in reduce(items).entries]


def test_an_answer_gives_items_fixes_and_a_turn() -> None:
    result = EventsStage(DEFAULTS).process(answer())
    assert shown(result.outputs) == [
        ("text", "I am claude-sonnet-4-5. In … I look.\n"),
        ("tool_use", '{"path":"…"}'),
    ]
    fixes = of(result.outputs, HISTORY_FIXES)
    assert [(fix["code"], fix["path"], fix["lossless"], fix["source"]) for fix in fixes] == [
        ("identity_renamed", "cascade-block-0", False, "cascade"),
        ("path_redacted", "cascade-block-0", False, "cascade"),
        ("path_redacted", "cascade-block-1", False, "cascade"),
        ("tool_text_removed", "", False, "cascade"),
    ]
    assert all(len(fix["before"]) == 16 and "target" not in fix and fix["turn"] == 0 for fix in fixes[:3])
    assert "windsurf" not in json.dumps(fixes).lower()
    (turn,) = of(result.outputs, AGENT_TURNS)
    assert (turn["type"], turn["origin"], turn["source"]) == ("turn.appended", "recorded", "cascade")
    assert "self_driving" not in turn
    assert turn["message"]["content"][1] == call("cascade-block-1", path="…")


def test_the_deltas_of_an_item_in_one_batch_are_one_record() -> None:
    items = of(EventsStage(DEFAULTS).process(answer()).outputs, SESSION_ITEMS)
    deltas = [(item["item_id"], item["content"]) for item in items if item["type"] == "item/delta"]
    assert deltas == [
        ("cascade-block-0", "I am claude-sonnet-4-5. In … I look.\n"),
        ("cascade-block-1", '{"path":"…"}'),
    ]


def test_every_rewrite_is_counted() -> None:
    result = EventsStage(DEFAULTS).process(answer())
    counted = {key: amount for key, amount in result.tally.items() if "fixes" in key[0]}
    assert counted == {
        ("reknit_fixes_total", "identity_renamed", "cascade"): 1,
        ("reknit_fixes_total", "path_redacted", "cascade"): 2,
        ("reknit_fixes_total", "tool_text_removed", "cascade"): 1,
        ("reknit_fixes_lossy_total", "identity_renamed", "cascade"): 1,
        ("reknit_fixes_lossy_total", "path_redacted", "cascade"): 2,
        ("reknit_fixes_lossy_total", "tool_text_removed", "cascade"): 1,
        ("reknit_producer_fixes_total", "", "identity_renamed"): 1,
        ("reknit_producer_fixes_total", "", "path_redacted"): 2,
        ("reknit_producer_fixes_total", "", "tool_text_removed"): 1,
    }
    assert result.tally["reknit_items_total", "cascade", "stream"] == 2
    metrics = Metrics()
    metrics.on_commit(PROVIDER_EVENTS, 0, result, 1)
    found = metrics.registry.get_sample_value("reknit_fixes_total", {"code": "path_redacted", "target": "cascade"})
    assert found == 2


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_batches_and_restarts_change_no_record(size: int) -> None:
    given = answer()
    expected = EventsStage(DEFAULTS).process(given).outputs
    outputs, *_ = processed(lambda: EventsStage(DEFAULTS), in_batches(given, size), "changelog")
    for topic in (HISTORY_FIXES, AGENT_TURNS):
        assert [o for o in outputs if o.topic == topic] == [o for o in expected if o.topic == topic]
    assert shown(outputs) == shown(expected)


@pytest.mark.parametrize("source", ["", "cascade"], ids=["of the records", "of the configuration"])
def test_a_record_names_the_event_that_was_changed(source: str) -> None:
    said = [text("In /opt/windsurf/a, "), text("/opt/windsurf/b, /opt/windsurf/c, "), b'{"type":"done"}']
    given = records(said, 5, headers=SOURCE[1:] if source else SOURCE)
    fixes = of(EventsStage(structs.replace(DEFAULTS, source=source)).process(given).outputs, HISTORY_FIXES)
    assert [(fix["offset"], fix["number"]) for fix in fixes] == [(5, 0), (6, 0), (6, 1)]


def test_a_sessions_model_and_tools_are_used() -> None:
    policy = json.dumps({"record_assistant": True, "model": "kimi-k2", "tools": ["read"]}).encode()
    state = EventsStage(DEFAULTS).process(records([None], headers=(("policy", policy),))).changes
    result = restored(EventsStage(DEFAULTS), state).process(
        answer('I am Cascade. {"name":"ls","arguments":{}} {"name":"read","arguments":{}}', first=1)
    )
    assert shown(result.outputs) == [
        ("text", 'I am kimi-k2. {"name":"ls","arguments":{}} '),
        ("tool_use", "{}"),
    ]


def test_model_and_tools_are_announced_if_the_planner_is_a_target() -> None:
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    opened = {"type": "session.opened", "targets": ["cascade"], "model": "kimi-k2", "tools": tools}
    for targets, told in ((["cascade", "anthropic"], {"model": "kimi-k2", "tools": ["ls"]}), (["anthropic"], {})):
        (output,) = TurnsStage().process(stage_runs.records([opened | {"targets": targets}])).outputs
        assert output.topic == PROVIDER_EVENTS
        assert json.loads(dict(output.headers)["policy"]) == told


def test_a_planner_timeout_is_reported_and_counted() -> None:
    stage = EventsStage(DEFAULTS)
    result = stage.process(records([text("Thinking about /opt/windsurf/x "), b'{"type":"max_wait"}']))
    (diagnosis,) = [item for item in of(result.outputs, SESSION_ITEMS) if item["type"] == "turn/diagnosis"]
    told = diagnosis["reason"], diagnosis["cause"], diagnosis["head"]
    assert told == ("max_wait", "time_limit", "Thinking about … ")
    assert result.tally["reknit_runs_unfinished_total", "cascade", "time_limit"] == 1
    ended = stage.process(records([None], 2, (*SOURCE, ("exit", b"1"))))
    assert [item for item in of(ended.outputs, SESSION_ITEMS) if item["type"] == "turn/diagnosis"] == []


def test_held_back_text_is_reported_when_another_source_takes_over() -> None:
    stage = EventsStage(DEFAULTS)
    held = stage.process(records([text("See /opt/windsurf/log")]))
    assert (of(held.outputs, HISTORY_FIXES), shown(held.outputs)) == ([], [("text", "See ")])
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]}
    result = stage.process(stage_runs.records([chunk], (("source", b"openai-chat"),), first=1))
    (fix,) = of(result.outputs, HISTORY_FIXES)
    told = fix["code"], fix["source"], fix["path"], fix["offset"]
    assert told == ("path_redacted", "cascade", "cascade-block-0", 1)
    assert shown([*held.outputs, *result.outputs]) == [("text", "See …"), ("text", "Hi")]


def test_a_session_feeds_its_next_request() -> None:
    turns, events = TurnsStage(DEFAULTS), EventsStage(DEFAULTS)
    log: list[Record] = []

    def append(event: dict | bytes) -> Result:
        log.extend(stage_runs.records([event], first=len(log)))
        return turns.process(log[-1:])

    tools = [{"name": "ls", "description": "List.", "input_schema": {"type": "object"}}]
    (policy,) = stage_runs.of(append({"type": "session.opened", "tools": tools}), PROVIDER_EVENTS)
    events.process(records([None], headers=policy.headers))
    asked = append(turn(user("Working directory: /srv/app\n\nWhat is there?")))
    (first,) = of(asked.outputs, PROVIDER_REQUESTS)
    assert "- Working directory: /srv/app" in first["system"]
    (recorded,) = stage_runs.of(events.process(answer(first=1)), AGENT_TURNS)
    assert of(append(recorded.value or b"").outputs, PROVIDER_REQUESTS) == []
    (second,) = of(append(turn(answered("cascade-block-1", "bin etc"))).outputs, PROVIDER_REQUESTS)
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I am claude-sonnet-4-5. In … I look.\n\n"
            '<tool_call>{"name":"ls","arguments":{"path":"…"}}</tool_call>',
        },
        {"role": "user", "content": '<tool_result tool_call_id="cascade-block-1">\nbin etc\n</tool_result>'},
    ]
    assert second["system"] == first["system"]


def test_redaction_is_configurable() -> None:
    config = load_config(None, env={}, overrides={"text.redact_roots": "/srv/secret", "text.redact_marker": "∎"})
    result = EventsStage(session_defaults(config)).process(
        records([text("/srv/secret/a and /opt/windsurf/b. "), b'{"type":"done"}'])
    )
    assert shown(result.outputs) == [("text", "∎ and /opt/windsurf/b. ")]
    assert session_defaults(Config()).speech() == Defaults().speech()


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("text.redact_marker", "<workspace>", "bad_marker"),
        ("text.redact_roots", "workspace", "bad_root"),
        ("session.params.previous_response_id", "resp_1", "chained"),
        ("session.params.conversation", "conv_1", "chained"),
    ],
)
def test_unusable_settings_stop_the_worker_at_its_start(key: str, value: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        session_defaults(load_config(None, env={}, overrides={key: value}))
    assert caught.value.code == code


def test_a_damaged_record_does_not_affect_its_neighbours() -> None:
    framed = (*SOURCE, ("framing", b"odd"))
    given = [*records([text("One. ")]), *records([text("Two. ")], 1, framed), *records([text("Three. ")], 2)]
    result = EventsStage(DEFAULTS).process(given)
    assert shown(result.outputs) == [("text", "One. Three. ")]
    assert Counter(output.topic for output in result.outputs)["pipeline.dead-letters.v1"] == 1
