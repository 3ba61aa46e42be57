"""Items as events of AG-UI and the AI SDK: the vectors, and resumption at every cut."""

import json
from pathlib import Path

import msgspec
import pytest
from screen_clients import AgUiClient, AiSdkClient, as_sent, shown_by_ag_ui, shown_by_ai_sdk, wanted

from reknit.pipeline.screens.ag_ui import AgUi
from reknit.pipeline.screens.ai_sdk import AiSdk
from reknit.topics.items import AnyItem

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "screens.jsonl").read_text(encoding="utf-8").splitlines()
]
NAMES = [vector["name"] for vector in VECTORS]
DECODER = msgspec.json.Decoder(AnyItem)


def items_of(vector):
    return [DECODER.decode(json.dumps(item, separators=(",", ":")).encode()) for item in vector["items"]]


def live(writer, items, runs):
    """Return the events of each record."""
    return [writer.apply(item, run) for item, run in zip(items, runs, strict=True)]


def flat(events):
    return [event for each in events for event in each]


def without_usage_of_stops(events):
    """Drop the usage of an API's turn, which the vectors do not have."""
    return [
        {name: value for name, value in event.items() if name not in {"usage", "messageMetadata"}}
        if event["type"] in {"RUN_FINISHED", "finish"}
        else event
        for event in events
    ]


def without_cleared_metadata(events):
    """Drop metadata that withdraws metadata: the vectors leave a doubt that was settled on the screen."""
    return [
        {name: value for name, value in event.items() if (name, value) != ("metadata", {"reknit": {}})}
        for event in events
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_ag_ui_events_are_those_of_the_vectors(vector):
    items = items_of(vector)
    got = without_cleared_metadata(as_sent(flat(live(AgUi("s", with_details=True), items, vector["runs"]))))
    expected = vector["ag_ui"]
    if vector["items"][-1]["type"] == "turn/stop":
        got, expected = without_usage_of_stops(got), without_usage_of_stops(expected)
    assert got == expected


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_ai_sdk_chunks_are_those_of_the_vectors(vector):
    items = items_of(vector)
    got, expected = as_sent(flat(live(AiSdk("s"), items, vector["runs"]))), vector["ai_sdk"]
    if vector["items"][-1]["type"] == "turn/stop":
        got, expected = without_usage_of_stops(got), without_usage_of_stops(expected)
    if vector["name"] == "call_that_the_provider_ran":
        # The vector loses the result: a client takes the state of the call's last chunk.
        again = got.pop(7)
        assert (again["type"], again["toolCallId"]) == ("tool-output-available", "srvtoolu_1")
    assert got == expected


def test_a_client_keeps_the_result_of_a_call_that_the_provider_ran():
    vector = VECTORS[NAMES.index("call_that_the_provider_ran")]
    client = AiSdkClient()
    client.respond(flat(live(AiSdk("s"), items_of(vector), vector["runs"])))
    call = client.messages[0]["parts"][0]
    assert (call["state"], call["output"]["tool_use_id"]) == ("output-available", "srvtoolu_1")


def test_a_doubt_that_is_settled_leaves_the_client():
    vector = VECTORS[NAMES.index("doubt_that_a_transcript_settles")]
    items, client = items_of(vector), AgUiClient()
    client.respond(flat(live(AgUi("s"), items, vector["runs"])))
    assert client.find("a")["metadata"]["reknit"] == {}
    assert client.find("b")["metadata"]["reknit"] == {"repeats": "a"}


def resumed_ag_ui(items, runs, known, server):
    """Return the client that got ``known`` events, resumed where ``server`` records were applied, and got the rest."""
    writer, client = AgUi("s"), AgUiClient()
    before = live(writer, items[:server], runs[:server])
    client.respond(flat(before)[:known])
    response = client.respond(writer.resume(client.posted()))
    assert shown_by_ag_ui(client) == wanted(items[:server])
    for item, run in zip(items[server:], runs[server:], strict=True):
        for event in as_sent(writer.apply(item, run)):
            response.read(event)
    assert shown_by_ag_ui(client) == wanted(items)
    return client


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_ag_ui_resumes_at_every_cut(vector):
    items, runs = items_of(vector), vector["runs"]
    events = live(AgUi("s"), items, runs)
    ends = [len(flat(events[: count + 1])) for count in range(len(items))]
    for known in range(ends[-1] + 1):
        # The server has applied the record of the cut, one in between, and all.
        at = next(count for count, end in enumerate(ends, start=1) if end >= known)
        for server in {at, (at + len(items)) // 2, len(items)}:
            client = resumed_ag_ui(items, runs, known, server)
            assert len({message["id"] for message in client.messages}) == len(client.messages)


def last_answer(client, items):
    """Return what the last message shows, and what of it every screen must show."""
    shown = shown_by_ai_sdk(client.messages[-1], items)
    ids = {key for key, *_ in shown}
    expected = [each for each in wanted(items) if each[0] in ids]
    return shown, expected


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_ai_sdk_resumes_at_every_cut(vector):
    items, runs = items_of(vector), vector["runs"]
    chunks = live(AiSdk("s"), items, runs)
    ends = [len(flat(chunks[: count + 1])) for count in range(len(items))]
    alone = AiSdkClient()
    alone.respond(flat(chunks))
    for known in range(ends[-1] + 1):
        at = next(count for count, end in enumerate(ends, start=1) if end >= known)
        for server in {at, (at + len(items)) // 2, len(items)}:
            writer, client = AiSdk("s"), AiSdkClient()
            client.respond(flat(live(writer, items[:server], runs[:server]))[:known])
            response = client.respond(writer.resume())
            if client.messages:
                shown, expected = last_answer(client, items[:server])
                assert shown == expected
            for chunk in as_sent(flat(live(writer, items[server:], runs[server:]))):
                response.read(chunk)
            assert shown_by_ai_sdk(client.messages[-1], items) == shown_by_ai_sdk(alone.messages[-1], items)
            shown, expected = last_answer(client, items)
            assert shown == expected


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_clients_without_reset_step_get_each_block_once(vector):
    items, runs, client = items_of(vector), vector["runs"], AiSdkClient(knows_reset=False)
    client.respond(flat(live(AiSdk("s", confirmed_only=True), items, runs)))
    keys = [each[:2] for message in client.messages for each in shown_by_ai_sdk(message, items)]
    assert len(keys) == len(set(keys))
    # An item that is withdrawn or changed later is named by the message.
    shown = dict.fromkeys(keys)
    assert [each[:2] for each in wanted(items) if each[:2] not in shown] == []
