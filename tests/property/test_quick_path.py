"""The quick path over a valid beginning gives the machine's result, wherever the first defect is."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE, TOOLS, healthy_histories, issued, perturbed_histories, policies

from reknit.pipeline import normalize
from reknit.pipeline.history import History
from reknit.pipeline.history.valid_runs import ValidRun
from reknit.pipeline.providers.anthropic import writer as anthropic
from reknit.pipeline.providers.bedrock_converse import writer as converse
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.session.settled import SettledPart
from reknit.pipeline.session.working import StructureRepair
from reknit.pipeline.testing import Kit

NO_HEAD = {}


def outcome(messages, target, policy, head, root):
    done = normalize(msgspec.json.encode(head | {root: messages}), to=target, policy=policy)
    return done.body, done.sha256, done.fixes, done.ledger, done.ids, done.violations


def assert_same_without_quick_path(messages, target, policy=None, head=NO_HEAD, root="messages"):
    quick = outcome(messages, target, policy, head, root)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ValidRun, "holds", lambda *_: False)
        patched.setattr(converse, "piece_stays", lambda _: False)
        assert outcome(messages, target, policy, head, root) == quick


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=100 * SCALE)
# Converse has a quick path only with tools, and reasoning stays only if it is the target's own.
@given(messages=perturbed_histories(), policy=policies, tools=st.sampled_from([[], TOOLS, TOOLS]), is_own=st.booleans())
def test_the_request_is_the_same_with_and_without_the_quick_path(target, messages, policy, tools, is_own):
    messages = issued(messages, target) if is_own else messages
    head = {"tools": tools} if tools else NO_HEAD
    assert_same_without_quick_path(messages, target, policy if target == "anthropic" else None, head)


@st.composite
def histories_of_rows(draw):
    """Valid histories in the shape of OpenAI's chat, each result a message; one message is missing or repeated."""
    rows = []
    for turn in [*draw(healthy_histories()), {"role": "assistant", "content": "well"}]:
        blocks = turn["content"]
        results = [block for block in blocks if "tool_use_id" in block] if isinstance(blocks, list) else []
        calls = [block for block in blocks if "input" in block] if isinstance(blocks, list) else []
        rows += [{"role": "tool", "tool_call_id": each["tool_use_id"], "content": "r"} for each in results]
        if len(results) < len(blocks):
            text = {"role": turn["role"], "content": blocks if isinstance(blocks, str) else "and"}
            named = [{"id": each["id"], "function": {"name": "read", "arguments": "{}"}} for each in calls]
            rows.append(text | ({"tool_calls": named} if named else {}))
    at = draw(st.integers(0, len(rows) - 1))
    rows[at : at + 1] = [rows[at]] * draw(st.sampled_from([1, 1, 1, 0, 2]))
    return rows


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=50 * SCALE)
@given(messages=histories_of_rows())
def test_separate_result_messages_give_the_same_request(target, messages):
    assert_same_without_quick_path(messages, target)


def _call(name):
    return {"type": "tool_use", "id": name, "name": "read", "input": {}}


def _result(name):
    return {"type": "tool_result", "tool_use_id": name, "content": f"of {name}"}


def _text(text):
    return {"type": "text", "text": text}


def _thought(provider):
    """Reasoning of a provider. The form of its signature does not identify the signer."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
    return thought | ({"issuer": {"provider": provider}} if provider else {})


_ISSUERS = ["", "anthropic", "bedrock-converse", "gemini", "openai-chat", "openai-responses"]


_DEFECTS = ("block lost", "message lost", "blank", "repeated", "reversed", "stray", "late")


@st.composite
def histories_with_broken_places(draw, rounds=(3, 16), count=(1, 3), defects=_DEFECTS, different=(100,)):
    """Valid histories that are long enough for every call to expire, with a few defects."""
    issuers = draw(st.lists(st.sampled_from(_ISSUERS), max_size=2))
    messages = [{"role": "user", "content": [_text("begin")]}]
    # Some programs number the calls of each turn, so ids come again.
    different = draw(st.sampled_from(different))
    for number in range(draw(st.integers(*rounds))):
        calls = [f"call_{number % different}_{at}" for at in range(draw(st.integers(0, 2)))]
        said = [_text("well")] if not calls or draw(st.booleans()) else []
        asked = [_text("go on")] if not calls or draw(st.booleans()) else []
        thoughts = [_thought(draw(st.sampled_from(issuers)))] if issuers and draw(st.booleans()) else []
        messages.append({"role": "assistant", "content": [*thoughts, *said, *map(_call, calls)]})
        messages.append({"role": "user", "content": [*map(_result, calls), *asked]})
    for _ in range(draw(st.integers(*count))):
        at = draw(st.integers(0, len(messages) - 1))
        content = messages[at]["content"]
        place = draw(st.integers(0, len(content)))
        defect = draw(st.sampled_from(defects))
        if defect == "message lost" and len(messages) > 1:
            del messages[at]
        elif defect == "repeated":
            messages.insert(at, messages[at])
        else:
            earlier = messages[draw(st.integers(0, at))]["content"]
            added = {"blank": [_text(" ")], "stray": [_result("other")], "late": earlier}.get(defect, [])
            kept = content[:place] + added + content[place + (defect == "block lost") :]
            messages[at] = messages[at] | {"content": kept[::-1] if defect == "reversed" else kept}
    return messages


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=100 * SCALE)
@given(messages=histories_with_broken_places(), policy=policies, tools=st.sampled_from([[], TOOLS]))
def test_runs_around_broken_places_give_the_same_request(target, messages, policy, tools):
    assert_same_without_quick_path(messages, target, policy, {"tools": tools} if tools else NO_HEAD)


MARK = {"type": "ephemeral"}
MARKS = [MARK, MARK, MARK | {"ttl": "1h"}, MARK | {"ttl": "2d"}, {"type": "other"}, None]


@st.composite
def histories_with_marks(draw):
    """Histories with a few defects at most, and cache breakpoints: valid ones, unknown ones, and null."""
    messages = draw(histories_with_broken_places(rounds=(3, 8), count=(0, 1)))
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(messages) - 1))
        content = list(messages[at]["content"])
        if content:
            place = draw(st.integers(0, len(content) - 1))
            content[place] = content[place] | {"cache_control": draw(st.sampled_from(MARKS))}
        messages[at] = messages[at] | {"content": content}
    return messages


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=50 * SCALE)
@given(messages=histories_with_marks(), policy=policies, tools=st.sampled_from([[], TOOLS, TOOLS]))
def test_breakpoints_give_the_same_request(target, messages, policy, tools):
    head = {"tools": tools} if tools else NO_HEAD
    with pytest.MonkeyPatch.context() as patched:
        quick = outcome(messages, target, policy, head, "messages")
        patched.setattr(anthropic.AnthropicDialect, "_plain", lambda *_: None)
        assert outcome(messages, target, policy, head, "messages") == quick
        assert_same_without_quick_path(messages, target, policy, head)


_LOSSES = ("block lost", "block lost", "message lost", "message lost", *_DEFECTS)


@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse", "openai-chat", "openai-responses", "claude-cli"])
@settings(max_examples=60 * SCALE, deadline=None)
@given(
    messages=histories_with_broken_places(rounds=(8, 30), count=(2, 12), defects=_LOSSES, different=(100, 7)),
    policy=policies,
)
def test_many_lost_results_give_the_same_request(target, messages, policy):
    assert_same_without_quick_path(messages, target, policy)


@settings(max_examples=60 * SCALE, deadline=None)
@given(
    messages=histories_with_broken_places(rounds=(8, 24), count=(2, 12), defects=_LOSSES, different=(100, 7)),
    policy=policies,
)
def test_incremental_requests_with_many_lost_results_equal_the_whole_one(messages, policy):
    Kit("anthropic", policy).incremental(messages)


def in_geminis_shape(messages, has_id=lambda _: True, name_of=lambda _: "read"):
    """The same in Gemini's shape; ``has_id`` returns whether a part has its id, ``name_of`` the name of its tool."""

    def named(call):
        return ({"id": call} if has_id(call) else {}) | {"name": name_of(call)}

    def part(block):
        if "input" in block:
            return {"functionCall": {**named(block["id"]), "args": {}}}
        if "tool_use_id" in block:
            return {"functionResponse": {**named(block["tool_use_id"]), "response": {"result": block["content"]}}}
        return {"text": block["text"]} if "text" in block else {"text": block["thinking"], "thought": True}

    return [
        {"role": "model" if turn["role"] == "assistant" else "user", "parts": [part(each) for each in turn["content"]]}
        for turn in messages
    ]


@st.composite
def contents_without_ids(draw):
    """Histories in Gemini's shape whose calls have no ids, except for a few; names may not be legal elsewhere."""
    few = draw(st.sampled_from([0, 0, 1]))
    name = draw(st.sampled_from(["read", "read", "default_api:read"]))
    return in_geminis_shape(
        draw(histories_with_broken_places()),
        lambda call: bool(few) and call.endswith("3_0"),
        lambda call: name if call.endswith("_0") else draw(st.sampled_from(["read", "write"])),
    )


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=40 * SCALE)
@given(contents=contents_without_ids(), policy=policies, tools=st.sampled_from([[], TOOLS]))
def test_calls_without_ids_give_the_same_request(target, contents, policy, tools):
    assert_same_without_quick_path(contents, target, policy, {"tools": tools} if tools else NO_HEAD, "contents")


@settings(max_examples=60 * SCALE)
@given(contents=contents_without_ids(), policy=policies)
def test_incremental_and_whole_requests_of_calls_without_ids_are_equal(contents, policy):
    Kit("gemini", policy).incremental({"contents": contents})


@st.composite
def contents_with_signatures(draw):
    """Histories in Gemini's shape, with signatures on any parts, and thoughts before any."""
    has_ids = draw(st.booleans())
    contents = in_geminis_shape(draw(histories_with_broken_places()), lambda _: has_ids)
    for content in contents:
        for part in content["parts"] if content["role"] == "model" else []:
            if draw(st.booleans()):
                part["thoughtSignature"] = draw(st.sampled_from(["c2lnbmVk", "c2lnbmVk", ""]))
        if content["role"] == "model" and draw(st.booleans()):
            content["parts"].insert(draw(st.integers(0, len(content["parts"]))), {"text": "hm", "thought": True})
    return contents


@pytest.mark.parametrize("target", ["gemini", "anthropic", "openai-chat"])
@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-3-pro"])
@settings(max_examples=150 * SCALE)
@given(contents=contents_with_signatures(), mend=st.sampled_from([{}, {"mend": {"signature_skipped": "observe"}}]))
def test_signatures_on_parts_give_the_same_request(target, model, contents, mend):
    assert_same_without_quick_path(contents, target, mend, {"model": model}, "contents")


def test_signed_parts_stay_in_the_quick_path(written_one_by_one):
    thought = {"text": "hm", "thought": True}
    call = {"functionCall": {"name": "ls", "args": {}}, "thoughtSignature": "c2lnbmVk"}
    response = {"functionResponse": {"name": "ls", "response": {"result": "r"}}}
    question, text = {"role": "user", "parts": [{"text": "and"}]}, {"text": "well", "thoughtSignature": "c2lnbmVk"}
    answers = [{"role": "model", "parts": [thought, call]}, {"role": "model", "parts": [thought, text]}]
    contents = [question, answers[0], {"role": "user", "parts": [response]}, answers[1], question, answers[1]]
    done = normalize({"contents": contents, "model": "gemini-3-pro"}, to="gemini")
    assert written_one_by_one == []
    assert not done.fixes
    assert msgspec.json.decode(done.body)["contents"] == contents


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-3-pro"])
@settings(max_examples=100 * SCALE)
@given(messages=histories_with_broken_places(), mend=st.sampled_from([{}, {"mend": {"signature_skipped": "observe"}}]))
def test_each_model_of_gemini_gets_the_same_request(model, is_own, messages, mend):
    messages = in_geminis_shape(messages) if is_own else messages
    assert_same_without_quick_path(messages, "gemini", mend, {"model": model})


_SEALED = "gAAAAAB" + "c2lnbmVk" * 8


@st.composite
def histories_of_items(draw):
    """Valid histories as items of Responses, with the members that the API gives them, and a few defects."""
    has_ids, is_sealed = draw(st.sampled_from([True, True, False])), draw(st.sampled_from([True, True, False]))
    items = [{"type": "message", "role": "user", "content": "begin"}]

    def answered(kind, prefix, **members):
        named = {"id": f"{prefix}_{len(items)}", "status": "completed"} if has_ids else {}
        items.append({"type": kind} | (named if draw(st.integers(0, 9)) else {}) | members)

    for number in range(draw(st.integers(2, 12))):
        kind = draw(st.sampled_from(["function", "function", "custom_tool"]))
        if draw(st.booleans()):
            sealed = {"encrypted_content": _SEALED} if is_sealed else {}
            said = [{"type": "summary_text", "text": "hm"}] if draw(st.booleans()) else []
            answered("reasoning", "rs", summary=said, **sealed)
        calls = [f"call_{number}_{at}" for at in range(draw(st.integers(0, 2)))]
        if not calls or draw(st.booleans()):
            part = {"type": "output_text", "text": draw(st.sampled_from(["well", "well", "well", " "]))}
            part |= draw(st.sampled_from([{"annotations": []}, {"annotations": [], "logprobs": []}, {}]))
            answered("message", "msg", role="assistant", content=draw(st.sampled_from(["well", [part], [part, part]])))
        given = {"input": "x"} if kind == "custom_tool" else {"arguments": "{}"}
        for call in calls:
            answered(f"{kind}_call", "ctc" if kind == "custom_tool" else "fc", call_id=call, name="read", **given)
        for call in calls:
            output = draw(st.sampled_from(["r", "r", [{"type": "input_text", "text": "r"}]]))
            output_kind = draw(st.sampled_from([kind, kind, kind, "function"]))
            items.append({"type": f"{output_kind}_call_output", "call_id": call, "output": output})
        if not calls or draw(st.booleans()):
            part = {"type": "input_text", "text": draw(st.sampled_from(["go on", "go on", " "]))}
            items.append({"type": "message", "role": "user", "content": draw(st.sampled_from([[part], [part, part]]))})
    for _ in range(draw(st.integers(0, 2))):
        at, to = draw(st.integers(0, len(items) - 1)), draw(st.integers(0, len(items) - 1))
        items[at : at + 1] = draw(st.sampled_from([[], [items[at]] * 2, [items[at], items[to]], [items[to]]]))
    return items


@pytest.mark.parametrize("target", sorted({*TARGETS} - {"openai-responses"}))
@settings(max_examples=40 * SCALE)
@given(items=histories_of_items(), tools=st.sampled_from([[], TOOLS]))
def test_items_of_responses_give_the_same_request(target, items, tools):
    assert_same_without_quick_path(items, target, None, {"tools": tools} if tools else NO_HEAD, "input")


@pytest.mark.parametrize("params", [{}, {"store": False}])
@pytest.mark.parametrize("mend", [{}, {"mend": {"item_id_dropped": "observe"}}, {"reasoning": "strip"}])
@settings(max_examples=150 * SCALE)
@given(items=histories_of_items(), model=st.sampled_from(["gpt-5", "o3-mini", "claude-sonnet-4-5", None]))
def test_items_of_responses_go_back_alike(items, model, mend, params):
    assert_same_without_quick_path(items, "openai-responses", mend, {"model": model, "params": params}, "input")


@settings(max_examples=100 * SCALE)
@given(items=histories_of_items())
def test_incremental_and_whole_requests_of_items_are_equal(items):
    Kit("openai-responses").incremental({"input": items})


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("deepseek", "deepseek-reasoner"),
        ("moonshot", "kimi-k2-thinking"),
        ("mistral", "magistral-medium"),
        ("openai-chat", "glm-4.6"),
        ("vllm", "qwen3"),
    ],
)
@settings(max_examples=100 * SCALE)
@given(messages=histories_with_broken_places(), is_own=st.booleans())
def test_models_with_readable_reasoning_get_the_same_request(target, model, messages, is_own):
    assert_same_without_quick_path(issued(messages, target) if is_own else messages, target, None, {"model": model})


@settings(max_examples=60 * SCALE)
@given(messages=histories_with_broken_places(), policy=policies)
def test_incremental_requests_with_broken_places_equal_the_whole_one(messages, policy):
    Kit("anthropic", policy).incremental(messages)


@settings(max_examples=60 * SCALE)
@given(messages=perturbed_histories(), policy=policies)
def test_incremental_and_whole_requests_are_equal(messages, policy):
    Kit("anthropic", policy).incremental(messages)


def blank(text):
    """An answer that begins with a blank text, and another one after it."""
    return {"role": "assistant", "content": [{"type": "text", "text": each} for each in ("", text)]}


HELLO = [{"role": role, "content": "hello"} for role in ("user", "assistant") * 4]
CALL = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
TWO = [
    {"role": "assistant", "tool_calls": [{"id": i, "function": {"name": "read", "arguments": "{}"}} for i in "ab"]},
    *({"role": "tool", "tool_call_id": each, "content": "r"} for each in "ba"),
]


@pytest.mark.parametrize(
    ("between", "taken"),
    [
        ([{"role": "user", "content": ""}], [7, 4]),
        # What precedes an answer is settled if a text of the answer stays.
        ([HELLO[0], blank("well"), HELLO[0]], [17]),
        ([HELLO[0], blank(" "), HELLO[0]], [7, 6]),
        ([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], [7, 6]),
        # A call without its result is waited for through eight turns, which the run after it has or has not.
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": [CALL]}, *HELLO[:7]], [9, 12]),
        ([HELLO[0], {"role": "assistant", "content": [CALL]}, HELLO[0]], [9]),
        # Several results in separate messages become one message, without a repair.
        ([HELLO[0], *TWO], [18]),
    ],
)
def test_the_quick_path_resumes_after_a_repair(monkeypatch, between, taken):
    skipped = []
    skip = StructureRepair._skip
    monkeypatch.setattr(
        StructureRepair, "_skip", lambda work, turns, run: skipped.append(len(turns)) or skip(work, turns, run)
    )
    normalize([*HELLO, *between, *HELLO[1:]])
    assert skipped == taken


def _answer(call):
    return {"role": "user", "content": [_result(call)]}


def one_call(number, *answered):
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {}}
    return [{"role": "assistant", "content": [_text("well"), call]}, *answered]


@pytest.mark.parametrize(
    ("each_round", "taken_singly"),
    [
        # The message with the result is lost, so the call is one message with the next one.
        (
            lambda at: [
                *one_call(f"{at}_a"),
                *one_call(f"{at}_b", _answer(f"toolu_{at}_b")),
            ],
            3,
        ),
        # The user speaks over the call.
        (lambda at: one_call(at, HELLO[0]), 2),
        # One of two results is lost.
        (
            lambda at: [
                {"role": "assistant", "content": [_call(f"a_{at}"), _call(f"b_{at}")]},
                _answer(f"b_{at}"),
            ],
            2,
        ),
    ],
)
def test_runs_between_lost_results_are_taken_in_one_pass(monkeypatch, each_round, taken_singly):
    appended = []
    append = History.append
    monkeypatch.setattr(History, "append", lambda history, turn: appended.append(turn) or append(history, turn))
    rounds = 20
    messages = [HELLO[0], *(message for at in range(rounds) for message in [*each_round(at), *HELLO[1:7]])]
    done = normalize(messages)
    assert [fix.code for fix in done.fixes].count("result_synthesised") == rounds
    # The last eight exchanges may still get their results.
    assert len(appended) <= (rounds - 3) * taken_singly + 3 * (taken_singly + 6)


@pytest.mark.parametrize("later", range(4, 22, 2))
@pytest.mark.parametrize("late_result", ["drop", "turn", "replace"])
@pytest.mark.parametrize("again", ["toolu_a", "toolu_b"])
def test_a_result_that_comes_while_a_lost_one_could_come_is_repaired_alike(again, late_result, later):
    messages = [HELLO[0], *one_call("a", HELLO[0]), *one_call("b", _answer("toolu_b")), *HELLO[1:], *HELLO, *HELLO]
    messages.insert(later, _answer(again))
    assert_same_without_quick_path([*messages, *one_call("c"), *HELLO * 3], "anthropic", {"late_result": late_result})


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
JPEG = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}}


@pytest.fixture
def written_one_by_one(monkeypatch):
    """The indexes of the input messages that left the quick path."""
    written = []
    settle = SettledPart.settle_message
    monkeypatch.setattr(
        SettledPart,
        "settle_message",
        lambda part, message: written.append(message.pieces[0].turn) or settle(part, message),
    )
    return written


def thought(**members):
    return {"type": "thinking", "thinking": "hm", "signature": "EqQBCkYIAxgC", **members}


def round_of(first, result, *, is_error=False):
    """A question, a call with its result, and an answer, which begin with these blocks."""
    answered = {"type": "tool_result", "tool_use_id": "t", "content": result, "is_error": is_error}
    text = {"type": "text", "text": "well"}
    return [
        {"role": "user", "content": [text]},
        {"role": "assistant", "content": [*first, text, CALL]},
        {"role": "user", "content": [answered]},
        {"role": "assistant", "content": [text]},
    ]


@pytest.mark.parametrize(
    ("blocks", "careful"),
    [
        pytest.param(round_of([], "r"), [], id="plain"),
        pytest.param(round_of([thought(issuer={"provider": "bedrock-converse"})], "r"), [], id="own reasoning"),
        pytest.param(round_of([thought()], "r"), [], id="foreign reasoning"),
        pytest.param(round_of([], [IMAGE]), [], id="an image"),
        pytest.param(round_of([], [JPEG]), [2], id="an image under another type"),
        pytest.param(round_of([], "r", is_error=True), [], id="an error"),
        pytest.param(round_of([], [{"type": "text", "text": "r"}], is_error=True), [], id="an error in parts"),
        pytest.param(round_of([], " ", is_error=True), [2], id="an empty error"),
        pytest.param(round_of([], [IMAGE], is_error=True), [2], id="an error with an image"),
    ],
)
def test_converse_takes_only_messages_that_change_out_of_the_quick_path(written_one_by_one, blocks, careful):
    normalize({"messages": [*blocks, *HELLO], "tools": TOOLS}, to="bedrock-converse")
    assert [at for at in written_one_by_one if at < len(blocks)] == careful


def test_converse_drops_breakpoints_in_the_quick_path(written_one_by_one):
    marked = _text("well") | {"cache_control": MARK}
    blocks = [{"role": "user", "content": [_text("so"), marked]}, *round_of([marked], "r")[1:]]
    done = normalize({"messages": [*blocks, *HELLO, HELLO[0]], "tools": TOOLS}, to="bedrock-converse")
    assert [at for at in written_one_by_one if at < len(blocks)] == []
    places = ["messages.0.content.1", "messages.1.content.0"]
    assert [(fix.code, fix.path) for fix in done.fixes] == [("cache_mark_dropped", place) for place in places]
    assert [entry.path for entry in done.ledger if entry.fate == "rewritten"] == places
    assert b"cache" not in done.body


LINK = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize(
    ("shown", "is_error", "careful"),
    [
        pytest.param([IMAGE], False, [], id="an image"),
        pytest.param([_text("this"), IMAGE], False, [], id="a text and an image"),
        pytest.param([IMAGE, IMAGE], False, [], id="two images"),
        pytest.param([LINK], False, [2], id="a link"),
        pytest.param([JPEG], False, [2], id="an image under another type"),
        pytest.param([IMAGE | {"cache_control": MARK}], False, [], id="a marked image"),
        pytest.param([IMAGE], True, [2], id="an image after an error"),
    ],
)
def test_openai_takes_only_images_that_change_out_of_the_quick_path(
    written_one_by_one, target, shown, is_error, careful
):
    messages = round_of([], "r", is_error=is_error)
    messages[2]["content"] += shown
    normalize({"messages": [*messages, *HELLO], "tools": TOOLS}, to=target)
    assert [at for at in written_one_by_one if at < len(messages)] == careful
    assert_same_without_quick_path([*messages, *HELLO], target, head={"tools": TOOLS})


@pytest.mark.parametrize("target", ["openai-chat", "deepseek"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_blocks_of_own_reasoning_are_joined_alike(target, count):
    thoughts = [_thought(target)] * count
    messages = [HELLO[0], {"role": "assistant", "content": [*thoughts, _text("well")]}, *HELLO, HELLO[0]]
    assert_same_without_quick_path(messages, target)
    done = normalize(messages, to=target)
    joined = [fix.path for fix in done.fixes if fix.code == "reasoning_joined"]
    assert joined == [f"messages.1.content.{at}" for at in range(1, count)]


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_messages_of_the_quick_path_have_their_ids(target):
    messages = [HELLO[at % len(HELLO)] | {"id": f"m{at}"} for at in range(9)]
    assert_same_without_quick_path(messages, target, head={"tools": TOOLS})
    assert normalize({"messages": messages, "tools": TOOLS}, to=target).ids == [f"m{at}" for at in range(9)]


def test_a_model_without_images_gets_lines_of_text_for_them():
    messages = [{"role": "user", "content": [_text("this"), IMAGE]}, *HELLO[1:], *HELLO]
    done = normalize({"messages": messages, "model": "deepseek-chat"}, to="deepseek")
    assert [fix.code for fix in done.fixes] == ["image_stubbed"]


ANSWER = {"role": "assistant", "content": "well"}


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        # As the client libraries of both write an answer: with every member, also those without a value.
        (
            "openai-chat",
            ANSWER | {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
        ),
        ("anthropic", ANSWER | {"content": [_text("well") | {"citations": None}]}),
        ("anthropic", ANSWER | {"content": [_text("well"), CALL | {"caller": {"type": "direct"}}]}),
    ],
)
def test_answers_of_client_libraries_stay_in_the_quick_path(written_one_by_one, target, answer):
    results = [_result("t")] if "caller" in str(answer) else []
    done = normalize([HELLO[0], answer, {"role": "user", "content": [*results, _text("and")]}, *HELLO[1:-1]], to=target)
    assert [at for at in written_one_by_one if at < 3] == []
    assert not done.fixes


def test_items_of_responses_stay_in_the_quick_path(written_one_by_one):
    reasoning = {"type": "reasoning", "summary": [], "encrypted_content": _SEALED}
    part = {"type": "output_text", "text": "well"}
    answer = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
    call = {"type": "function_call", "name": "read", "arguments": "{}", "status": "completed"}
    custom = {"type": "custom_tool_call", "name": "patch", "input": "x"}
    calls = [call | {"id": "fc_1", "call_id": "a"}, custom | {"id": "ctc_1", "call_id": "b"}]
    outputs = [
        {"type": "function_call_output", "call_id": "a", "output": "r"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "r"},
    ]
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and"}]}
    items = [question, reasoning | {"id": "rs_1"}, answer, *calls, *outputs, question, HELLO[1]]
    done = normalize({"input": items, "model": "gpt-5"}, to="openai-responses")
    assert written_one_by_one == []
    assert not done.fixes
    written = msgspec.json.decode(done.body)["input"]
    assert written[1:7] == items[1:7]


def test_calls_without_ids_stay_in_the_quick_path(written_one_by_one):
    call = {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in ("ls", "ls", "cat")]}
    responses = [{"functionResponse": {"name": name, "response": {"result": "r"}}} for name in ("ls", "ls", "cat")]
    question = {"role": "user", "parts": [{"text": "and"}]}
    contents = [
        question,
        *[call, {"role": "user", "parts": responses}] * 3,
        {"role": "model", "parts": [{"text": "a"}]},
    ]
    done = normalize({"contents": contents}, to="gemini")
    assert written_one_by_one == []
    assert not done.fixes
    assert msgspec.json.decode(done.body)["contents"] == contents


def test_media_beyond_a_limit_take_only_their_messages_out_of_the_quick_path(written_one_by_one):
    shown = [{"role": "user", "content": [IMAGE]}, {"role": "assistant", "content": "well"}]
    done = normalize({"messages": [*shown * 21, *HELLO[:-1]], "tools": TOOLS}, to="bedrock-converse")
    # Of 21 images, 70 % of the limit of 20 are left. The last answer is the machine's.
    stubbed = [0, 2, 4, 6, 8, 10, 12]
    assert written_one_by_one == [*stubbed, 47]
    assert [(fix.code, fix.path) for fix in done.fixes] == [
        ("media_over_limit", f"messages.{at}.content.0") for at in stubbed
    ]
