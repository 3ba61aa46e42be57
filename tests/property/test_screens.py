"""Any order of records: clients that read on, and clients that resume, show the view, with each item once."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from screen_clients import AgUiClient, AiSdkClient, as_sent, shown_by_ag_ui, shown_by_ai_sdk, wanted

from reknit.pipeline.screens.ag_ui import AgUi
from reknit.pipeline.screens.ai_sdk import AiSdk
from reknit.topics.items import (
    AgentError,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    SessionCompacted,
    SessionInit,
    TurnDiagnosis,
    TurnResult,
    TurnStop,
    Usage,
)
from reknit.topics.reducer import View

SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
IDS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.sampled_from(["", "x", "he", "wörld 👋🏽", "\r\n</script>"])
KINDS = st.sampled_from(["text", "thinking", "tool_use", "server_tool_use", "web_search_tool_result", "user_message"])
DOUBTS = st.sampled_from(["", "", "attempt", "end", "kept"])
JSON = st.sampled_from([Raw(b'{"q":1}'), Raw(b'{"q": [1.0, 12345678901234567890]}')])
CONTENTS = st.sampled_from(
    [
        Raw(b'[{"type":"text","text":"found"}]'),
        Raw(b'"bare"'),
        Raw(b'[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]'),
        Raw(b"[]"),
        Raw(b'{"odd":null}'),
    ]
)
RAWS = st.sampled_from([Raw(b'{"type":"x"}'), Raw(b'{"type":"r","tool_use_id":"a"}'), Raw(b"[1]")])


@st.composite
def item(draw, view, number):
    """Draw a record that may come in a stream with this view."""
    kind = draw(st.integers(0, 13))
    key = draw(IDS)
    if kind < 3:
        item_type = draw(KINDS)
        is_whole = draw(st.booleans())
        is_call = item_type.endswith("_use")
        return ItemStarted(
            item_id=key,
            item_type=item_type,
            text=draw(TEXTS) if is_whole and not is_call else "",
            origin="promoted" if is_whole else "stream",
            doubtful=draw(DOUBTS),
            **({"input": draw(JSON)} if is_whole and is_call else {}),
            **({"raw": draw(RAWS)} if item_type.endswith("_result") else {}),
            **({"content": draw(CONTENTS)} if item_type == "user_message" and not is_whole else {}),
        )
    if kind < 6:
        at = view.length(key) - draw(st.integers(0, 2))
        return ItemDelta(item_id=key, delta_type="text_delta", content=draw(TEXTS), at=max(0, at))
    if kind < 8:
        entry = view.find(key)
        is_incomplete = draw(st.booleans())
        members = {}
        if entry is not None and entry.item_type.endswith("_use"):
            members = {"input": draw(JSON)} if draw(st.booleans()) else {}
        elif draw(st.booleans()):
            members = {"text": (entry.text if entry and draw(st.booleans()) else "") + draw(TEXTS)}
        reason = draw(st.sampled_from(["cut", "interrupted"])) if is_incomplete else ""
        return ItemCompleted(item_id=key, incomplete=is_incomplete, reason=reason, doubtful=draw(DOUBTS), **members)
    if kind == 8:
        return ItemRetracted(item_id=key)
    if kind == 9:
        return ItemResult(item_id=key, content=draw(CONTENTS), is_error=draw(st.booleans()))
    if kind == 10:
        return TurnStop(incomplete=draw(st.booleans()), stop_reason=draw(st.sampled_from([None, "end_turn", "odd"])))
    if kind == 11:
        is_unseen = draw(st.booleans())
        return TurnResult(is_error=draw(st.booleans()), result="r", unseen=is_unseen, usage=Usage(), seq=number)
    if kind == 12:
        return TurnDiagnosis(reason="lost", cause="disconnect", seq=number)
    compacted = SessionCompacted(seq=number, compact_metadata=Raw(b'{"trigger":"auto"}'))
    return draw(st.sampled_from([SessionInit(seq=number), AgentError(message="529", seq=number), compacted]))


@st.composite
def streams(draw):
    """Draw records with their runs; some are delivered twice."""
    view, found = View(), []
    for number in range(draw(st.integers(1, 25))):
        if found and draw(st.integers(0, 6)) == 0:
            found.append(draw(st.sampled_from(found)))
        else:
            found.append((draw(item(view, number)), draw(st.sampled_from(["r1", "r1", "r1", "r2"]))))
        view.apply(found[-1][0])
    return found


def by_key(shown):
    return sorted(shown)


@settings(max_examples=150 * SCALE)
@given(stream=streams(), data=st.data())
def test_ag_ui_shows_the_view(stream, data):
    cut = data.draw(st.integers(0, len(stream)))
    writer, client, late = AgUi("s"), AgUiClient(), AgUiClient()
    response = client.respond([])
    for count, (record, run) in enumerate(stream, start=1):
        for event in as_sent(writer.apply(record, run)):
            response.read(event)
        if count == cut:
            late.respond(writer.resume())
            response = client.respond(writer.resume(client.posted()))
        items = [each for each, _ in stream[:count]]
        assert by_key(shown_by_ag_ui(client)) == by_key(wanted(items))
    late.respond(writer.resume(late.posted()))
    assert shown_by_ag_ui(late) == wanted([each for each, _ in stream])
    ids = [message["id"] for message in client.messages]
    assert len(set(ids)) == len(ids)


def without_inputs(shown, keys):
    return sorted((key, kind, "" if key in keys and kind == "call" else text) for key, kind, text in shown)


@settings(max_examples=150 * SCALE)
@given(stream=streams(), data=st.data())
def test_ai_sdk_shows_the_view(stream, data):
    cut = data.draw(st.integers(0, len(stream)))
    confirmed_only = data.draw(st.booleans())
    writer = AiSdk("s", confirmed_only=confirmed_only)
    client = AiSdkClient(knows_reset=not confirmed_only)
    response = client.respond([])
    for count, (record, run) in enumerate(stream, start=1):
        for chunk in as_sent(writer.apply(record, run)):
            response.read(chunk)
        if count == cut:
            response = client.respond(writer.resume())
    alone = AiSdkClient(knows_reset=not confirmed_only)
    alone.respond(writer.resume())
    items = [each for each, _ in stream]
    if not confirmed_only and client.messages:
        shown = shown_by_ai_sdk(client.messages[-1], items)
        ids = {key for key, *_ in shown}
        # The input of a promoted call comes with its closing chunk; a client that resumes before it has it already.
        whole = {each.item_id for each in items if isinstance(each, ItemStarted) and isinstance(each.input, Raw)}
        pending = {key for key, kind, text in shown if key in whole and kind == "call" and not text}
        # A failed result without a text has this one.
        expected = [
            (key, kind, text or ("error" if kind == "error" else "")) for key, kind, text in wanted(items) if key in ids
        ]
        assert without_inputs(shown, pending) == without_inputs(expected, pending)
        assert without_inputs(shown, pending) == without_inputs(shown_by_ai_sdk(alone.messages[-1], items), pending)
    for message in client.messages:
        keys = [each[:2] for each in shown_by_ai_sdk(message, items)]
        assert len(set(keys)) == len(keys)
