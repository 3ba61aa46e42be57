"""Items as events of AG-UI and the AI SDK: the vectors, and resumption at every cut."""

import json
from pathlib import Path

import msgspec
import pytest
from screen_clients import AgUiClient, AiSdkClient, as_sent, shown_by_ag_ui, shown_by_ai_sdk, wanted

from reknit.pipeline.screens import ag_ui_messages
from reknit.pipeline.screens.ag_ui import AgUi
from reknit.pipeline.screens.ai_sdk import AiSdk
from reknit.topics.items import (
    AnyItem,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemStarted,
    TurnDiagnosis,
    TurnResult,
    TurnStop,
)

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


def last_snapshot(writer):
    return [event for event in writer.resume() if event["type"] == "MESSAGES_SNAPSHOT"][-1]


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


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_the_models_build_the_messages_of_the_real_clients(vector):
    ag_ui, ai_sdk = AgUiClient(), AiSdkClient()
    ag_ui.respond(vector["ag_ui"])
    ai_sdk.respond(vector["ai_sdk"])
    assert ag_ui.messages == vector["ag_ui_messages"]
    texts = [[part["text"] for part in message["parts"] if "text" in part] for message in ai_sdk.messages]
    assert texts == [[part["text"] for part in each["parts"] if "text" in part] for each in vector["ai_sdk_messages"]]


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_the_list_of_messages_is_what_a_client_has_after_the_stream(vector):
    writer = AiSdk("s")
    live(writer, items_of(vector), vector["runs"])
    shown = [message for message in as_sent(writer.messages()) if message["role"] == "assistant"]
    expected = [
        {**message, "parts": [part for part in message["parts"] if part["type"] != "data-reknit-user"]}
        for message in vector["ai_sdk_messages"]
    ]
    if vector["items"][-1]["type"] == "turn/stop":
        for message in shown:
            message.pop("metadata", None)
    if vector["name"] == "call_that_the_provider_ran":
        call = shown[0]["parts"][0]
        assert call.pop("output")["tool_use_id"] == call["toolCallId"]
        call["state"] = "input-available"  # the vector loses the result
    # A call that was cut says so from its start on; a client that saw it begin has that in its end only.
    for part in (part for message in (*shown, *expected) for part in message["parts"]):
        if "resultProviderMetadata" in part:
            assert part.pop("callProviderMetadata")["reknit"]["itemId"] == part["toolCallId"]
    assert shown == expected


def test_the_programs_own_prompts_are_not_the_users_words():
    writer = AiSdk("s")
    items = [
        ItemStarted(item_id="u", item_type="user_message", text="Hi"),
        ItemStarted(item_id="p", item_type="user_message", text="Continue.", is_synthetic=True),
        ItemStarted(item_id="q", item_type="user_message", text="Find it.", parent_tool_use_id="c"),
    ]
    chunks = flat(live(writer, items, ["r1"] * 3))
    assert [chunk["data"] for chunk in chunks if "data" in chunk] == [
        {"text": "Hi"},
        {"text": "Continue.", "synthetic": True},
        {"text": "Find it.", "parent": "c"},
    ]
    assert [message["id"] for message in writer.messages() if message["role"] == "user"] == ["u"]
    ag_ui = AgUi("s")
    live(ag_ui, items, ["r1"] * 3)
    snapshot = last_snapshot(ag_ui)
    assert snapshot["messages"][1]["metadata"]["reknit"] == {"synthetic": True}
    assert snapshot["messages"][2]["subagentRunId"] == "c"


def test_the_users_words_in_an_answer_keep_blocks_that_are_no_text():
    words = [{"type": "text", "text": "Look:"}, {"type": "note", "note": 1}, {"type": "image", "source": {}}]
    items = [
        ItemStarted(item_id="t", item_type="text", text="Wait."),
        ItemStarted(item_id="u", item_type="user_message", content=msgspec.Raw(json.dumps(words).encode())),
    ]
    chunks = flat(live(AiSdk("s"), items, ["r1"] * 2))
    data = {"text": 'Look:\n{"type":"note","note":1}'}
    assert [each for each in chunks if each["type"] == "data-reknit-user"] == [
        {"type": "data-reknit-user", "id": "u", "data": data}
    ]


def test_a_snapshot_fits_into_a_frame(monkeypatch):
    monkeypatch.setattr(ag_ui_messages, "LARGEST_SNAPSHOT", 1000)
    writer = AgUi("s")
    for number in range(50):
        writer.apply(ItemStarted(item_id=f"t{number}", item_type="text", text="x" * 100), "r1")
    snapshot = last_snapshot(writer)
    assert [message["id"] for message in snapshot["messages"]] == [f"t{number}" for number in range(44, 50)]
    assert len(msgspec.json.encode(snapshot["messages"])) <= 1000


def test_a_late_result_of_an_earlier_answer():
    """An API's answer ends with its call; the result comes with the next turn."""
    items = [
        ItemStarted(item_id="c", item_type="tool_use", name="ls"),
        ItemCompleted(item_id="c"),
        TurnStop(stop_reason="tool_use"),
        ItemResult(item_id="c", content=msgspec.Raw(b'[{"type":"text","text":"a b"}]')),
    ]
    ag_ui, ai_sdk = AgUiClient(), AiSdkClient()
    ag_ui.respond(flat(live(AgUi("s"), items, ["r1"] * 4)))
    assert shown_by_ag_ui(ag_ui) == wanted(items)
    assert [end["runId"] for end in ag_ui.ends] == ["r1#0", "r1#1"]
    ai_sdk.respond(flat(live(AiSdk("s"), items, ["r1"] * 4)))
    assert [message["id"] for message in ai_sdk.messages] == ["s:r1#0", "s:r1#1"]
    (late,) = ai_sdk.messages[1]["parts"]
    assert (late["type"], late["data"]) == (
        "data-reknit-result",
        {"toolCallId": "c", "output": "a b", "isError": False},
    )


def test_late_records_of_an_earlier_run_do_not_end_the_answer_of_this_one():
    items = [
        (ItemStarted(item_id="a", item_type="text", text="A", doubtful="attempt"), "r1"),
        (ItemStarted(item_id="b", item_type="text", text="B"), "r2"),
        (ItemCompleted(item_id="a"), "r1"),
        (TurnStop(), "r1"),
        (TurnDiagnosis(reason="lost", cause="other", seq=0), "r1"),
        (TurnResult(is_error=True, seq=1), "r1"),
        (ItemDelta(item_id="b", delta_type="text_delta", content="!", at=1), "r2"),
    ]
    writer, client = AgUi("s"), AgUiClient()
    client.respond([event for item, run in items for event in writer.apply(item, run)])
    assert writer.is_running
    assert [end["outcome"]["type"] for end in client.ends] == ["cancelled"]
    assert shown_by_ag_ui(client) == wanted([item for item, _ in items])


def test_the_users_messages_are_messages_of_their_own():
    vector = VECTORS[NAMES.index("two_turns_two_runs")]
    writer = AiSdk("s")
    live(writer, items_of(vector), vector["runs"])
    found = [(message["role"], message["id"]) for message in writer.messages()]
    assert found == [("user", "u1"), ("assistant", "s:r1#0"), ("user", "u2"), ("assistant", "s:r2#0")]
    vector = VECTORS[NAMES.index("a_user_message_with_an_image")]
    writer = AiSdk("s")
    live(writer, items_of(vector), vector["runs"])
    text, image = writer.messages()[0]["parts"]
    assert text == {"type": "text", "text": "What is this?"}
    assert (image["mediaType"], image["url"][:22]) == ("image/png", "data:image/png;base64,")
