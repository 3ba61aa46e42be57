"""Recorded streams of OpenAI's two APIs and of their imitators: items reduce to what the oracles say, damaged or not.

Oracles, in order of trust: the final event of a Responses stream; the turn as the client sent it again and the provider
took it; what the official SDK's accumulator makes of the chunks; and a plain sum of the chunks, written here.
"""

import json
from collections import Counter, defaultdict

import pytest
from recorded import needs_corpus
from recorded_streams import (
    arguments,
    check_cut_in_bytes,
    check_disturbed,
    check_named,
    check_redelivered_by_the_engine,
    cuts,
    disturbed,
    errors,
    events,
    in_records,
    incomplete,
    next_request,
    parts_in,
    payloads,
    places,
    recordings,
    screen,
    shown,
    sse,
    thought,
)
from stream_lab import fed
from stream_lab import sse as event_bytes
from stream_runs import only, picture

from reknit.topics.items import AgentError, AgentUnrecognized, ItemRetracted, ItemStarted, TurnDelta, TurnStop
from reknit.topics.reducer import reduce

pytestmark = needs_corpus

CHAT = ("openai-chat", "openai-compat")
RESPONSES = ("openai-responses", "responses-compat")
each_chat = pytest.mark.parametrize("provider", CHAT)
each_responses = pytest.mark.parametrize("provider", RESPONSES)
each = pytest.mark.parametrize("provider", [*CHAT, *RESPONSES])
each_and_gemini = pytest.mark.parametrize("provider", [*CHAT, *RESPONSES, "gemini"])

# Turns that the client sent again in another form than the provider's: the end of the recording's id, and why.
SENT_OTHERWISE = {
    "openai_gpt_4o_completions.yaml#0": "Mirascope writes its output tool's call as text",
    "deepseek/prompt_caching/streaming_probe.yaml#0": "the probe's second request has words of its own",
    "doubleword/prompt_caching/streaming_probe.yaml#0": "the probe's second request has words of its own",
    "groq/prompt_caching/streaming_probe.yaml#0": "the probe's second request has words of its own",
    "test_databricks_empty_response.yaml#0": "chatlas writes [empty string] for an empty answer",
    "test_tool_use_failed_error_streaming_with_text.yaml#0": "pydantic-ai writes reasoning as text in <think>",
    "test_openai_responses_compact_stateful_mode_stream.yaml#1": "pydantic-ai's recorder writes ASCII quotes",
    "test_openai_responses_compact_stateful_mode_stream.yaml#2": "pydantic-ai's recorder writes ASCII quotes",
    "test_openai_responses_phase_streamed_on_part_start.yaml#0": "pydantic-ai's recorder writes ASCII quotes",
}
# Streams without a sign that another attempt has begun.
NO_SIGN_OF_A_RETRY = {
    "test_groq_model_web_search_tool_stream.yaml#0": "every chunk has an id of its own, and none a role"
}

TEXT_DELTAS = {"response.output_text.delta", "response.refusal.delta"}
ENDS = {"response.completed", "response.incomplete"}
# Items that are sent back unchanged.
REPEATED = {"reasoning", "message", "function_call"}


def source(provider):
    return "openai-responses" if provider in RESPONSES else "gemini" if provider == "gemini" else "openai-chat"


def is_listed(row, exceptions):
    return any(row["id"].endswith(end) for end in exceptions)


# -- oracles ------------------------------------------------------------------------------------------------------


def plain_chat(chunks):
    """Texts and calls of all choices, added up with no regard to anything else."""
    texts = defaultdict(str)
    calls = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            content = delta.get("content") or ""
            if isinstance(content, list):
                content = "".join(part["text"] for part in content if part["type"] == "text")
            texts[choice["index"]] += content + (delta.get("refusal") or "")
            for call in delta.get("tool_calls") or []:
                name_and_input = calls.setdefault((choice["index"], call["index"]), ["", ""])
                name_and_input[0] += call["function"].get("name") or ""
                name_and_input[1] += call["function"].get("arguments") or ""
    return (
        "".join(texts[index] for index in sorted(texts)),
        [(name, arguments(text)) for _, (name, text) in sorted(calls.items())],
    )


def of_sdk(final):
    messages = [choice["message"] for choice in final["choices"]]
    text = "".join((message.get("content") or "") + (message.get("refusal") or "") for message in messages)
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or []]
    return text, [(call["name"], arguments(call["arguments"])) for call in calls]


def sent_again(messages):
    text = ""
    calls = []
    for message in messages:
        content = message.get("content") or ""
        if message.get("type", "message") == "message":
            text += content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        if message.get("type") == "function_call":
            calls.append((message["name"], arguments(message["arguments"])))
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls += [(function["name"], arguments(function["arguments"])) for function in functions]
    return text, calls


def responses_in(row):
    """The output of each response in a stream, as its final event has it (Codex's leaves it out: the whole items)."""
    found, items = [], []
    for event in events(row):
        if event["type"] == "response.output_item.done":
            items.append(event["item"])
        if event["type"] in ENDS:
            found.append(event["response"]["output"] or items)
            items = []
    return found


def of_output(output):
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    calls = [item for item in output if item["type"] == "function_call"]
    text = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
    return text, [(call["name"], arguments(call["arguments"])) for call in calls]


def final(row):
    outputs = [of_output(output) for output in responses_in(row)]
    return "".join(text for text, _ in outputs), [call for _, calls in outputs for call in calls]


def is_shown(item):
    return item["type"] != "reasoning" or bool(thought(item))


def thoughts(row):
    reasoning = [item for output in responses_in(row) for item in output if item["type"] == "reasoning"]
    return [thought(item) for item in reasoning if is_shown(item)]


# -- the undisturbed streams --------------------------------------------------------------------------------------


@each_chat
def test_a_chat_adds_up_to_what_its_chunks_say(provider):
    rows = recordings(provider)
    wrong = [row["id"] for row in rows if shown(source(provider), row).everything() != plain_chat(events(row))]
    assert wrong == []


@each_chat
def test_a_chat_is_what_the_official_accumulator_makes_of_it(provider):
    rows = [row for row in recordings(provider) if row.get("sdk_final")]
    wrong = [row["id"] for row in rows if shown("openai-chat", row).everything() != of_sdk(row["sdk_final"])]
    assert rows
    assert wrong == []


@each
def test_a_turn_is_what_the_client_sent_again(provider):
    rows = [row for row in recordings(provider) if row.get("followup_assistant")]
    wrong = [row for row in rows if shown(source(provider), row)[:2] != sent_again(row["followup_assistant"])]
    assert rows
    assert [row["id"] for row in wrong if not is_listed(row, SENT_OTHERWISE)] == []


@each_responses
def test_a_response_is_what_its_final_event_says(provider):
    rows = recordings(provider)
    wrong = [row["id"] for row in rows if shown("openai-responses", row).everything() != final(row)]
    assert rows
    assert wrong == []


@each_responses
def test_reasoning_and_the_providers_own_tools_are_shown_in_their_places(provider):
    for row in recordings(provider):
        entries = reduce(fed("openai-responses", sse(row))).entries
        assert [entry.text for entry in entries if entry.item_type == "thinking"] == thoughts(row), row["id"]
        kinds = {"message": "text", "reasoning": "thinking", "function_call": "tool_use"}
        items = [item for output in responses_in(row) for item in output if is_shown(item)]
        expected = [kinds.get(item["type"], item["type"]) for item in items]
        assert [entry.item_type for entry in entries] == expected, row["id"]


@each
def test_nothing_is_withdrawn_or_not_understood_where_nothing_went_wrong(provider):
    for row in recordings(provider):
        items = fed(source(provider), sse(row))
        assert only(items, ItemRetracted | AgentUnrecognized) == [], row["id"]
        assert [item.item_id for item in only(items, ItemStarted) if item.origin != "stream"] == []
        check_named(items)


@each
def test_only_what_was_cut_is_incomplete(provider):
    """A call whose arguments are no JSON, a message without a reason to stop, and what came before an error."""
    for row in recordings(provider):
        items = fed(source(provider), sse(row))
        cut_calls = [raw for _, raw in screen(reduce(items)).cut_calls]
        stops = only(items, TurnStop)
        ended = bool(stops) and not stops[-1].incomplete
        for raw in cut_calls:
            assert not isinstance(arguments(raw), dict) or not raw or not ended, row["id"]
        if ended:
            assert len(incomplete(items)) == len(cut_calls), row["id"]
        else:
            assert errors(items) or "[DONE]" not in payloads(row), row["id"]


@each
def test_tokens_are_reported_once_a_message(provider):
    for row in recordings(provider):
        items = fed(source(provider), sse(row))
        told = [item for item in items if isinstance(item, TurnStop | TurnDelta) and item.usage]
        said = [
            event.get("usage") or (event.get("response") or event.get("x_groq") or {}).get("usage")
            for event in events(row)
        ]
        output = [usage.get("completion_tokens", usage.get("output_tokens")) for usage in said if usage]
        messages = len(responses_in(row)) if provider in RESPONSES else 1
        assert len(told) == (min(len(output), messages) if output else 0), row["id"]
        if messages == 1 and output:
            assert told[0].usage.output_tokens == output[-1], row["id"]


@each
def test_the_turn_goes_into_the_next_request_to_the_same_api(provider):
    target = {"openai-chat": "openai-chat", "openai-compat": "vllm"}.get(provider, "openai-responses")
    for row in recordings(provider):
        blocks, normalized = next_request("vllm" if target == "vllm" else target, row, target)
        hard = [found.rule for found in normalized.violations if found.severity == "hard"]
        # The tools of deep research are not in a stream.
        assert [rule for rule in hard if not rule.startswith("RSP-25")] == [], row["id"]
        cut = [block for block in blocks if block.get("incomplete")]
        assert len([fix for fix in normalized.fixes if fix.code == "call_incomplete"]) == len(cut), row["id"]
        assert "call_id_derived" not in {fix.code for fix in normalized.fixes}


@each_responses
def test_sealed_reasoning_is_sent_back_unchanged(provider):
    """Unless the turn has what cannot go back, such as a search of the provider's own."""
    for row in recordings(provider):
        items = [item for output in responses_in(row) for item in output]
        if len(responses_in(row)) != 1 or not {item["type"] for item in items} <= REPEATED:
            continue
        if items[-1]["type"] == "reasoning" or any(item.get("status") == "incomplete" for item in items):
            continue
        _, normalized = next_request("openai-responses", row, "openai-responses")
        sent = [item for item in json.loads(normalized.body)["input"] if item.get("type") == "reasoning"]
        assert [item["encrypted_content"] for item in sent] == sealed(row), row["id"]


def sealed(row):
    done = [event["item"] for event in events(row) if event["type"] == "response.output_item.done"]
    return [item["encrypted_content"] for item in done if item.get("encrypted_content")]


def test_other_apis_are_passed_on_as_they_are():
    """Cohere's, Ollama's own and Gemini's interactions: nothing is taken for what it is not, and nothing is lost.

    Writer's chat is OpenAI's, but for a member of its own.
    """
    for row in recordings("other"):
        if any("choices" in event for event in events(row)):
            assert shown("openai-chat", row)[:2] == plain_chat(events(row)), row["id"]
            continue
        for name in ("openai-chat", "openai-responses", "gemini", "vllm"):
            items = fed(name, sse(row))
            assert only(items, ItemStarted) == [], (row["id"], name)
            told = only(items, AgentUnrecognized | AgentError)
            assert len(told) == len([raw for raw in payloads(row) if raw.strip() != "[DONE]"]), (row["id"], name)


# -- cut ----------------------------------------------------------------------------------------------------------


@each_chat
def test_a_chat_that_is_cut_has_all_that_came_and_nothing_whole(provider):
    for row in recordings(provider):
        raws = payloads(row)
        for count, view in cuts("openai-chat", row):
            chunks = [json.loads(raw) for raw in raws[:count] if raw.lstrip()[:1] == "{"]
            assert screen(view).everything() == plain_chat(chunks), (row["id"], count)
            reasons = [choice.get("finish_reason") for chunk in chunks for choice in chunk.get("choices") or []]
            if not any(reasons) and "[DONE]" not in raws[:count]:
                assert all(entry.incomplete for entry in view.entries), (row["id"], count)


@each_responses
def test_a_response_that_is_cut_has_all_that_came_and_only_whole_items_are_whole(provider):
    for row in recordings(provider):
        decoded = events(row)
        for count, view in cuts("openai-responses", row):
            came = decoded[:count]
            items = [event["item"] for event in came if event["type"] == "response.output_item.done"]
            done = Counter(item["type"] for item in items if is_shown(item))
            ended = any(event["type"] in ENDS for event in came)
            whole = Counter(entry.item_type for entry in view.entries if not entry.incomplete)
            assert ended or (whole["text"], whole["thinking"]) == (done["message"], done["reasoning"]), row["id"]
            words = "".join(event["delta"] for event in came if event["type"] in TEXT_DELTAS)
            assert ended or screen(view).text == words, (row["id"], count)
            assert all(entry.done for entry in view.entries)


@each_and_gemini
def test_bytes_may_be_cut_anywhere(provider):
    for row in recordings(provider):
        check_cut_in_bytes(source(provider), row)


# -- delivered again ----------------------------------------------------------------------------------------------


@each_and_gemini
def test_a_record_that_is_read_again_makes_the_same_items(provider):
    for row in recordings(provider):
        check_redelivered_by_the_engine(source(provider), row)


def is_numbered(row):
    return all("sequence_number" in event for event in events(row))


@each_responses
def test_numbered_events_may_come_again(provider):
    rows = [row for row in recordings(provider) if is_numbered(row)]
    assert rows
    for row in rows:
        pieces = [piece for piece in sse(row) if piece != b"data: [DONE]\n\n"]
        clean = fed("openai-responses", pieces)
        assert fed("openai-responses", [piece for piece in pieces for _ in range(2)]) == clean, row["id"]
        records = in_records(pieces, 5)
        assert picture(fed("openai-responses", [record for record in records for _ in range(2)])) == picture(clean)


# -- completed by the whole message -------------------------------------------------------------------------------


def has_the_whole(row):
    """Whether a stream is one response whose last event holds all of it."""
    last = [event for event in events(row) if event["type"] in ENDS]
    return len(last) == 1 and bool(last[0]["response"]["output"])


@each_responses
def test_the_whole_response_makes_up_for_what_did_not_stream(provider):
    rows = [row for row in recordings(provider) if has_the_whole(row)]
    assert rows
    for row in rows:
        raws = payloads(row)
        last = max(at for at, raw in enumerate(raws) if raw.lstrip()[:1] == "{")
        expected = shown("openai-responses", row)
        for count in places(last):
            items = fed("openai-responses", [event_bytes(raw) for raw in [*raws[:count], raws[last]]])
            assert screen(reduce(items)) == expected, (row["id"], count)
            assert only(items, ItemRetracted) == []
            streamed = {event.get("output_index") for event in map(json.loads, raws[:count])} - {None}
            promoted = [entry for entry in reduce(items).entries if entry.origin == "promoted"]
            missing = [item for at, item in enumerate(responses_in(row)[0]) if at not in streamed and is_shown(item)]
            assert len(promoted) >= len([item for item in missing if item.get("status") != "incomplete"]), row["id"]
            check_named(items)


# -- tried again --------------------------------------------------------------------------------------------------


def renamed(value):
    """The same event of another attempt: with other ids."""
    if isinstance(value, dict):
        named = {"id", "item_id"} if "choices" not in value else {"id"}
        return {
            key: f"first-{inner}" if key in named and isinstance(inner, str) and inner else renamed(inner)
            for key, inner in value.items()
        }
    return [renamed(inner) for inner in value] if isinstance(value, list) else value


def can_tell_a_retry(row, count):
    """Return True if a second attempt begins differently from a continuation: with another id, or a repeated role.

    Without a role, one chunk's id is not a sign: the next chunk may have another. (Seen with Cloudflare's streams,
    which have no roles, when they are cut after the first chunk.)
    """
    chunks = [chunk for chunk in events(row)[:count] if chunk.get("choices")]
    roles = [choice["delta"].get("role") for chunk in chunks for choice in chunk["choices"]]
    if chunks and chunks[0].get("id"):
        return bool(roles[0]) or len(chunks) > 1
    return not chunks or bool(roles[0] and not all(roles))


@each
def test_another_attempt_takes_the_place_of_the_first(provider):
    for row in recordings(provider):
        if is_listed(row, NO_SIGN_OF_A_RETRY):
            continue
        raws = payloads(row)
        clean = shown(source(provider), row)
        ends = [at for at, raw in enumerate(raws) if '"finish_reason": "' in raw or '"finish_reason":"' in raw]
        ends += [at for at, raw in enumerate(raws) if raw.startswith("[DONE]") or '"response.completed"' in raw]
        ends += [at for at, raw in enumerate(raws) if '"response.incomplete"' in raw or raw.startswith('{"error"')]
        for count in places(min(ends, default=len(raws))):
            if not can_tell_a_retry(row, count):
                continue
            first = [event_bytes(json.dumps(renamed(json.loads(raw)))) for raw in raws[:count]]
            before = fed(source(provider), first)
            items = fed(source(provider), [*first, *sse(row)])
            assert screen(reduce(items)) == clean, (row["id"], count)
            withdrawn = {item.item_id for item in items if isinstance(item, ItemRetracted)}
            assert withdrawn == {item.item_id for item in before if isinstance(item, ItemStarted)}, (row["id"], count)
            check_named(items)


# -- disturbed in every way ---------------------------------------------------------------------------------------


def words_of_chat(chunks):
    rest = [chunk.get("content") for chunk in chunks if "choices" not in chunk]
    return plain_chat(chunks)[0] + "".join(words for words in rest if isinstance(words, str))


def words_of_responses(came):
    """All texts in deltas; a numbered one counts once."""
    deltas = [event for event in came if event["type"] in TEXT_DELTAS]
    once = {json.dumps(event): event["delta"] for event in deltas if "sequence_number" in event}
    return "".join(once.values()) + "".join(event["delta"] for event in deltas if "sequence_number" not in event)


def words_of_gemini(chunks):
    return "".join("" if part.get("thought") else part.get("text", "") for part in parts_in(chunks))


@each_and_gemini
def test_no_word_is_lost_whatever_comes_twice_late_or_not_at_all(provider):
    said = words_of_responses if provider in RESPONSES else words_of_gemini if provider == "gemini" else words_of_chat
    rows = recordings(provider)
    for number, row in enumerate(rows):
        check_disturbed(source(provider), disturbed(row, rows[number - 1]), said)
