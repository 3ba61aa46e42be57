"""The promises, for every target over arbitrary histories: valid, accounted, reproducible."""

import itertools
import json

import msgspec
import pytest
from build import session_of
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE, TOOLS, healthy_histories, histories, own, policies, reasoned, spiced, with_members
from target_cases import PROVIDERS, TARGET_CASES

from reknit.pipeline import Session, normalize
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing import Kit
from reknit.pipeline.testing.strategies import broken_histories, mixed_histories, open_histories, perturbed_histories

each_target = pytest.mark.parametrize("target_case", TARGET_CASES, ids=str)
READABLE = [target_case for target_case in TARGET_CASES if target_case.shape]
ROOTED = [target_case for target_case in TARGET_CASES if target_case.root]
data = st.data()


def assert_same(one, other):
    """Assert that two requests are equal and report the same about each block, in any order."""
    assert (one.body, one.unjudged, one.sha256, one.ids) == (other.body, other.unjudged, other.sha256, other.ids)
    assert sorted(one.fixes, key=repr) == sorted(other.fixes, key=repr)
    assert sorted(one.ledger, key=repr) == sorted(other.ledger, key=repr)


def test_every_target_is_covered():
    assert PROVIDERS.keys() == TARGETS.keys()


@each_target
@settings(max_examples=100 * SCALE)
@given(data=data, policy=policies)
def test_output_is_valid_and_its_fixes_are_in_the_catalogue(target_case, data, policy):
    done = Kit(target_case.target, policy).valid(data.draw(target_case.documents))
    hard = {violation.rule for violation in done.violations if violation.severity == "hard"}
    if done.body is None:
        # The only allowed violations are those that the policy or the caller requested. Otherwise there is nothing to
        # send.
        assert not done.ids or policy["tail"] in {"reject", "prefill"}
        assert not done.ids or policy["tail"] == "reject" or hard <= {"BED-11", "BED-11b"}
        assert hard <= target_case.provider.refusals
        assert len(hard) == 1
    else:
        assert hard == set()
    for fix in done.fixes:
        assert FIXES[fix.code].lossless == fix.lossless
        assert msgspec.json.decode(msgspec.json.encode(fix), type=type(fix)) == fix


@each_target
@settings(max_examples=80 * SCALE)
@given(data=data, policy=policies)
def test_each_input_block_has_one_outcome_and_each_output_block_a_source(target_case, data, policy):
    Kit(target_case.target, policy).accounted(data.draw(target_case.documents))


@each_target
@settings(max_examples=15 * SCALE)
@given(messages=with_members, policy=policies)
def test_members_of_one_provider_keep_every_promise(target_case, messages, policy):
    Kit(target_case.target, policy, setting={"model": target_case.model} if target_case.model else {}).check(messages)


NEWEST = (("anthropic", "claude-opus-4-8"), ("openai-responses", "gpt-5"), ("openai-chat", "gpt-4o"))


@pytest.mark.parametrize(("target", "model"), NEWEST)
@settings(max_examples=60 * SCALE)
@given(messages=with_members, policy=policies)
def test_members_of_one_provider_keep_every_promise_for_models_that_take_them(target, model, messages, policy):
    Kit(target, policy, setting={"model": model}).check(messages)


def shown_blocks(body):
    """Count the texts, media, calls, results and reasoning items in an OpenAI body, without the system prompt."""
    count = 0
    messages = body.get("input", body.get("messages"))
    for message in itertools.dropwhile(lambda message: message.get("role") == "system", messages):
        content = message.get("content")
        if message.get("type") != "reasoning":
            is_one = isinstance(content, str) or message.get("role") == "tool" or "call_id" in message
            count += 1 if is_one else len(content or ())
        count += len(message.get("tool_calls", ())) + (message.get("type") == "reasoning")
    return count


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "vllm"])
@settings(max_examples=150 * SCALE)
@given(messages=reasoned, policy=policies)
def test_each_block_sent_to_openai_is_in_the_ledger(target, messages, policy):
    # Reasoning has no place of its own in a chat message.
    Kit(target, policy | {"reasoning": "strip"}, blocks=shown_blocks).accounted(messages)


def found(body, place):
    value = body
    for step in place.split("."):
        if isinstance(value, str) and step == "0":
            break
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


@pytest.mark.parametrize("target_case", ROOTED, ids=str)
@settings(max_examples=80 * SCALE)
@given(data=data, policy=policies)
def test_ledger_places_exist_in_the_body_and_hold_the_kept_blocks(target_case, data, policy):
    document = data.draw(target_case.documents)
    done = normalize(msgspec.json.encode(document), to=target_case.target, policy=policy)
    body, root = json.loads(done.unjudged), target_case.root
    entries = [entry for entry in done.ledger if entry.output not in {"", "system"}]
    for entry in entries:
        assert entry.output.startswith(f"{root}.")
        shown = found(body, entry.output)
        assert shown is not None
        came = found(document, entry.path) if entry.fate == "kept" else {}
        text = came if isinstance(came, str) else came.get("text")
        if text is not None:
            assert text == (shown if isinstance(shown, str) else shown["text"])
    if done.ids:  # a prompt by itself is not a message of the history
        assert len(done.ids) == len(body[root])
    # A signature without words shares the place of its part; so does reasoning that was joined.
    joined = [
        entry
        for entry in entries
        if entry.output.endswith("reasoning_content")
        or entry.code == "signature_joined"
        or entry.path.endswith(".thoughtSignature")
    ]
    assert len(entries) - len({entry.output for entry in entries}) <= len(joined)


@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_the_fix_count_equals_the_number_of_fixes(messages, policy):
    session = Session(TARGETS, policy)
    for message in messages:
        session.append(message)
        for target in TARGETS:
            done = session.request(target)
            assert done.fix_count == len(done.fixes)


@each_target
@settings(max_examples=60 * SCALE)
@given(data=data, policy=policies)
def test_incremental_requests_equal_whole_ones_and_settled_bytes_stay(target_case, data, policy):
    Kit(target_case.target, policy).incremental(data.draw(target_case.documents))


@pytest.mark.parametrize("model", [None, "claude-sonnet-4-5", "meta-llama/Llama-3.1-8B-Instruct", "mistral-7b"])
@settings(max_examples=45 * SCALE)
@given(
    messages=st.one_of(histories, own, reasoned, spiced, mixed_histories),
    beside=st.fixed_dictionaries({}, optional={"system": st.just("Be brief."), "tools": st.just(TOOLS)}),
    policy=policies,
    data=data,
)
def test_a_session_resumes_from_its_records(model, messages, beside, policy, data):
    beside |= {} if model is None else {"model": model}
    session, segments = Session(TARGETS, policy, **beside), []
    for message in messages:
        session.append(message)
        if data.draw(st.booleans()):
            segments += session.take_segments(flush=data.draw(st.booleans()))
            session = Session.load(session.head(), [record for _, record in segments])
    session = Session.load(session.head(), [record for _, record in segments])
    for target in TARGETS:
        resumed = session.request(target)
        whole = normalize(msgspec.json.encode(beside | {"messages": messages}), to=target, policy=policy)
        assert_same(resumed, whole)


@pytest.mark.parametrize("model", [None, "claude-sonnet-4-5", "mistral-7b"])
@settings(max_examples=45 * SCALE)
@given(messages=st.one_of(histories, own, reasoned, spiced, mixed_histories), policy=policies, data=data)
def test_a_rewound_session_equals_one_without_the_dropped_messages(model, messages, policy, data):
    """This also holds after a reload from records, whatever segments were written.

    Earlier results of requests stay as is.
    """
    session, segments = Session(TARGETS, policy, model=model), []
    target_case = data.draw(st.sampled_from(sorted(TARGETS)))
    for _ in range(3):
        for message in messages[session.count :]:
            session.append(message)
            if data.draw(st.booleans()):
                segments += session.take_segments(flush=True)
            if data.draw(st.booleans()):
                session.request(target_case)
        before = session.request(target_case)
        expected = (before.fixes, before.ledger, before.ids)
        if data.draw(st.booleans()):
            session = Session.load(session.head(), [record for _, record in segments])
        session.rewind(data.draw(st.integers(0, session.count)))
        assert (before.fixes, before.ledger, before.ids) == expected
        read = session_of(*messages[: session.count], targets=TARGETS, policy=policy, model=model)
        for target in TARGETS:
            found, whole = session.request(target), read.request(target)
            assert (found.unjudged, found.body, found.sha256) == (whole.unjudged, whole.body, whole.sha256)
            assert (found.fixes, found.ledger, found.ids) == (whole.fixes, whole.ledger, whole.ids)
            assert (found.violations, found.prefix_bytes) == (whole.violations, whole.prefix_bytes)


@settings(max_examples=100 * SCALE)
@given(messages=st.one_of(broken_histories, open_histories(), mixed_histories, perturbed_histories()), policy=policies)
def test_all_promises_hold_for_all_targets_in_one_session(messages, policy):
    session, before = Session(TARGETS, policy), {}
    for count, message in enumerate(messages, start=1):
        session.append(message)
        for target in TARGETS:
            step, whole = session.request(target), normalize(messages[:count], to=target, policy=policy)
            assert_same(step, whole)
            assert step.violations == whole.violations
            settled, earlier = before.get(target, (b"", 0))
            assert step.unjudged.startswith(settled) or step.prefix_reset
            assert step.prefix_bytes >= earlier or step.prefix_reset
            before[target] = step.unjudged[: step.prefix_bytes], step.prefix_bytes
    for target in TARGETS:
        kit = Kit(target, policy)
        kit.accounted(messages)
        if TARGETS[target].shape:
            kit.idempotent(messages)


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=40 * SCALE)
@given(messages=st.one_of(mixed_histories, perturbed_histories()))
def test_all_promises_hold_for_mixed_shapes_and_single_bad_blocks(target, messages):
    Kit(target).check(messages)


@pytest.mark.parametrize("target_case", READABLE, ids=str)
@settings(max_examples=100 * SCALE)
@given(data=data, policy=policies, named=st.booleans())
def test_normalizing_twice_changes_nothing_and_reports_nothing(target_case, data, policy, named):
    kit = Kit(target_case.target, policy, shape=target_case.shape if named else "auto")
    document = data.draw(target_case.documents)
    body = kit.normalize(document).body
    # A history has no place for a prefix, and a system prompt that became a user message stays one.
    if body is not None and b'"prefix":true' not in body and target_case.model != "o1-mini":
        kit.idempotent(document)


@pytest.mark.parametrize(
    "target_case", [target_case for target_case in TARGET_CASES if target_case.root in {"input", "contents"}], ids=str
)
@settings(max_examples=80 * SCALE)
@given(data=data, policy=policies)
def test_a_request_fed_item_by_item_gives_the_same_request(target_case, data, policy):
    once = normalize(msgspec.json.encode(data.draw(target_case.documents)), to=target_case.target, policy=policy)
    if once.body is None:
        return
    session, root = Session((target_case.target,), policy, model=target_case.model), target_case.root
    items = msgspec.json.decode(once.body, type=dict[str, msgspec.Raw])[root]
    for item in msgspec.json.decode(items, type=list[msgspec.Raw]):
        session.append(bytes(item), source=target_case.target)
    step = session.request()
    assert json.loads(step.unjudged)[root] == json.loads(once.body)[root]
    assert step.fixes == []


@each_target
@settings(max_examples=40 * SCALE)
@given(data=data, policy=policies)
def test_incremental_rules_equal_the_rules_over_the_whole_body(target_case, data, policy):
    Kit(target_case.target, policy).folded(data.draw(target_case.documents))


@each_target
@settings(max_examples=50 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_valid_history_has_only_the_models_fixes_and_round_trips(target_case, messages, policy):
    needed = target_case.provider.models[target_case.model]
    kit = Kit(
        target_case.target,
        policy | {"strip_tools": False},
        setting={**target_case.provider.setting, **target_case.named},
    )
    done = kit.healthy(messages, allowed=needed)
    if (
        target_case.target.endswith("-cli")
        or target_case.target in {"cascade", "bedrock-converse"}
        or needed - {"tools_stubbed", "signature_skipped"}
    ):
        return
    body = msgspec.json.encode(target_case.named | msgspec.json.decode(done.body, type=dict[str, msgspec.Raw]))
    back = normalize(body, to="anthropic", policy={"tail": "keep"}, source=target_case.shape)
    # Older Geminis get no ids; the history read back has different ids in the same places.
    read = numbered if target_case.target == "gemini" and not needed else list
    assert read([in_blocks(message) for message in json.loads(back.body)["messages"]]) == read(messages)
    assert {fix.code for fix in back.fixes} <= {"thinking_foreign"}


def in_blocks(message):
    return {**message, "content": blocks_of(message)}


def numbered(messages):
    numbers = {}

    def known(block):
        key = {"tool_use": "id", "tool_result": "tool_use_id"}.get(block["type"])
        return block if key is None else block | {key: numbers.setdefault(block[key], len(numbers))}

    return [{**message, "content": [known(block) for block in message["content"]]} for message in messages]


# Additional promises of the Messages API's own shape: kept blocks are unchanged, and strings stay strings.


@settings(max_examples=100 * SCALE)
@given(messages=histories, policy=policies)
def test_the_ledger_follows_the_body(messages, policy):
    done = normalize(msgspec.json.encode(messages), policy=policy)
    if done.body is None:
        return
    body = json.loads(done.body)
    outputs = [
        f"messages.{at}.content.{place}"
        for at, message in enumerate(body["messages"])
        for place in range(len(blocks_of(message)))
    ]
    assert [entry.output for entry in done.ledger if entry.output.startswith("messages")] == outputs
    assert len(done.ids) == len(body["messages"])


@settings(max_examples=200 * SCALE)
@given(messages=histories, policy=policies)
def test_kept_blocks_are_unchanged(messages, policy):
    done = normalize(msgspec.json.encode(messages), policy=policy)
    if done.body is None:
        return
    body = json.loads(done.body)["messages"]
    for entry in done.ledger:
        if entry.fate != "kept" or not entry.output.startswith("messages"):
            continue
        at, place = entry.output.removeprefix("messages.").split(".content.")
        out = blocks_of(body[int(at)])[int(place)]
        came = messages
        for step in entry.path.split(".")[1:]:
            came = came[int(step) if isinstance(came, list) else step]
        came = {"type": "text", "text": came} if isinstance(came, str) else came
        assert plain(out) == plain(came)


def blocks_of(message):
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def plain(block):
    """Reduce a block to what every reader sees: without breakpoints, the issuer, and a false `is_error`."""
    if isinstance(block, list):
        return [plain(part) for part in block]
    if not isinstance(block, dict):
        return block
    ignored = {"cache_control", "issuer"}
    return {
        key: plain(value) if key == "content" else value
        for key, value in block.items()
        if key not in ignored and (key, value) != ("is_error", False)
    }


@st.composite
def with_strings(draw):
    """Valid histories in which some of the texts are the whole content of their messages."""
    messages = draw(healthy_histories())
    for message in messages:
        if [block["type"] for block in message["content"]] == ["text"] and draw(st.booleans()):
            message["content"] = message["content"][0]["text"]
    return messages


@settings(max_examples=100 * SCALE)
@given(messages=with_strings(), policy=policies)
def test_a_valid_history_keeps_its_strings(messages, policy):
    kit = Kit("anthropic", policy | {"strip_tools": False})
    done = kit.healthy(messages)
    kit.incremental(messages)
    assert json.loads(done.body)["messages"] == messages


@settings(max_examples=100 * SCALE)
@given(messages=histories, cut=st.integers(0, 14), policy=policies)
def test_rewinding_is_as_if_the_dropped_messages_never_came(messages, cut, policy):
    cut = min(cut, len(messages))
    session = session_of(*messages, policy=policy)
    session.rewind(cut)
    assert session.request().body == normalize(msgspec.json.encode(messages[:cut]), policy=policy).body
    for message in messages[cut:]:
        session.append(message)
    assert session.request().body == normalize(msgspec.json.encode(messages), policy=policy).body
