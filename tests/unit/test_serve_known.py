"""Conversations that the gateway knows: each request is repaired as if it were the first."""

import json

import pytest
from gateway import gateway
from moving_marks import MARKS, marked

from reknit.pipeline import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.policy import Policy
from reknit.pipeline.serve import known as known_conversations
from reknit.pipeline.serve.answered import NOTHING_ANSWERED
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.known import KnownConversations
from reknit.pipeline.serve.repair import RequestBody
from reknit.pipeline.session import normalize_answered
from reknit.pipeline.session.documents import GrowingDocument

ANTHROPIC, DEFAULT = Endpoint("anthropic"), Policy()
USE = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}}
# A call without a result, a blank text, and two turns of the user in a row.
HISTORY = [
    {"role": "user", "content": "List the files."},
    {"role": "assistant", "content": [{"type": "text", "text": ""}, USE]},
    {"role": "user", "content": "Are you there?"},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
]


def body(messages, **more):
    return json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 64, **more, "messages": messages}).encode()


@pytest.fixture
def whole_reads(monkeypatch):
    """The documents that were read as a whole."""
    found = []
    begin = GrowingDocument.__init__

    def noted(self, document, *args, **more):
        found.append(document)
        begin(self, document, *args, **more)

    monkeypatch.setattr(GrowingDocument, "__init__", noted)
    return found


@pytest.fixture
def decoded_lists(monkeypatch):
    """The lists of messages that were decoded."""
    found = []
    decode = known_conversations._messages
    monkeypatch.setattr(known_conversations, "_messages", lambda data: found.append(json.loads(data)) or decode(data))
    return found


def asked(known, data, policy=DEFAULT, endpoint=ANTHROPIC, answered=NOTHING_ANSWERED, *, tenant=b""):
    done, end = known.normalized(data, RequestBody(data).members, endpoint, policy, answered, tenant=tenant)
    whole, expected_end = normalize_answered(data, endpoint.target, answered, policy, model=endpoint.model or None)
    assert (done.body, done.violations, end) == (whole.body, whole.violations, expected_end)
    assert sorted(done.fixes, key=repr) == sorted(whole.fixes, key=repr)
    return done


def test_only_the_first_request_of_a_conversation_is_read_as_a_whole(whole_reads):
    known = KnownConversations()
    for end in (1, 3, 4, 6):
        asked(known, body(HISTORY[:end]))
    assert whole_reads == [body(HISTORY[:1])]


# The start of a list, by which its conversation is found, ends within the first message.
LONG = [{"role": "user", "content": "List the files. " * 20}, *HISTORY[1:]]


def test_only_new_messages_are_decoded(decoded_lists):
    known = KnownConversations()
    for end in (1, 3, 4, 6, 6):
        asked(known, body(LONG[:end]))
    assert decoded_lists == [LONG[:1], LONG[1:3], LONG[3:4], LONG[4:], LONG]


def test_messages_before_moving_breakpoints_are_not_decoded_again(decoded_lists):
    known = KnownConversations()
    history = [*LONG, {"role": "assistant", "content": "Done."}, *HISTORY[2:5]]
    requests = [with_last_marked(history[:end]) for end in (4, 6, 7, 8, 10)]
    for messages in requests:
        asked(known, json.dumps({"messages": messages}, separators=(",", ":")).encode())
    assert decoded_lists == [messages[-new:] for messages, new in zip(requests, (4, 6, 3, 3, 4), strict=True)]


def test_conversations_of_one_start_take_turns(decoded_lists):
    known = KnownConversations()
    other = [LONG[0], {"role": "assistant", "content": "Which ones?"}, *HISTORY[2:]]
    for end in (2, 4, 6):
        for history in (LONG, other):
            asked(known, body(history[:end]))
    assert [len(each) for each in decoded_lists] == [2, 2, 4, 4, 6, 6]


def with_last_marked(messages):
    return [*messages[:-2], *(marked(message, MARKS[0]) for message in messages[-2:])]


def test_a_conversation_whose_breakpoints_move_is_read_as_a_whole_twice(whole_reads):
    known = KnownConversations()
    history = [*HISTORY, {"role": "assistant", "content": "Done."}, *HISTORY[2:5]]
    asked(known, body(with_last_marked(history[:4])))
    # The messages that may change again are added to those before them.
    asked(known, body(with_last_marked(history[:6])))
    assert [json.loads(each)["messages"] for each in whole_reads] == [with_last_marked(history[:4]), history[:4]]
    for end in (7, 8, 10):
        asked(known, body(with_last_marked(history[:end])))
    assert len(whole_reads) == 2


def test_a_last_message_that_differs_is_read_again_alone(whole_reads):
    known = KnownConversations()
    for text in ("one", "two", "three"):
        asked(known, body([*HISTORY[:4], *with_last_marked([*HISTORY[4:], {"role": "user", "content": text}])]))
    assert len(whole_reads) == 2


def test_a_breakpoint_that_moves_from_further_back_is_read_as_a_whole(whole_reads):
    known = KnownConversations()
    history = HISTORY + [{"role": "user", "content": f"{at}"} for at in range(9)]
    for marks in ({1}, {1}, {2}, {3}):
        asked(known, body([marked(each, MARKS[0]) if at in marks else each for at, each in enumerate(history)]))
    assert len(whole_reads) == 3


@pytest.mark.parametrize("lifetimes", [("1h", "5m", "5m", "1h", "5m"), ("5m", "1h", "1h", "1h", "1h")])
def test_the_limits_of_breakpoints_are_kept_where_they_move(lifetimes):
    known = KnownConversations()
    history = HISTORY + [{"role": "assistant" if at % 2 else "user", "content": f"{at}"} for at in range(9)]
    for end in range(6, len(history) + 1):
        messages = history[:end]
        for at, ttl in enumerate(lifetimes, 1):
            messages[-at] = marked(messages[-at], {"type": "ephemeral", "ttl": ttl})
        done = asked(known, body(messages))
        assert done.body.count(b'"cache_control"') == 4
        assert {"cache_control_dropped", "cache_ttl_shortened"} & {fix.code for fix in done.fixes}


def test_a_conversation_that_cannot_be_read_in_two_parts_is_tried_again_later(whole_reads):
    known = KnownConversations()
    # A part with these members may be another shape's, so every message of the body decides how the others are read.
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    history = [{"role": "user", "content": [image]}, {"role": "assistant", "content": 'It says "value".'}]
    tools = [{"name": "ls", "input_schema": {"type": "object", "properties": {"value": {"type": "string"}}}}]
    reads = []
    for at in range(14):
        history.append({"role": "assistant" if at % 2 else "user", "content": f"{at}"})
        whole_reads.clear()
        asked(known, body(with_last_marked(history), tools=tools))
        reads.append(len(whole_reads))
    assert reads == [1, 2, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]


def test_the_same_request_again_is_known(whole_reads):
    known = KnownConversations()
    for _ in range(3):
        asked(known, body(HISTORY))
    assert len(whole_reads) == 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (body(HISTORY[:3]), "it goes back"),
        (body([*HISTORY[:3], {"role": "user", "content": "Stop."}, *HISTORY[4:]]), "a message in the middle differs"),
        (body(HISTORY, system="Be brief."), "it has a system prompt"),
        (body(HISTORY, max_tokens=65), "a parameter differs"),
        (body([*HISTORY, {"role": "nobody", "content": [{"type": "text"}]}]), "a message is broken"),
        (body([*HISTORY, {"role": "assistant", "content": [{"type": "of_another_time"}]}]), "a block is unknown"),
        (json.dumps(json.loads(body(HISTORY)), indent=1).encode(), "it is written in another way"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_history_is_read_as_a_whole(other, why, whole_reads):
    known = KnownConversations()
    asked(known, body(HISTORY))
    try:
        asked(known, other)
    except InputError:
        with pytest.raises(InputError):
            normalize(other, "anthropic")
    assert whole_reads[-1] == other, why
    # Nothing that was added in vain is left.
    asked(known, body(HISTORY))


def test_another_policy_or_target_is_another_conversation(whole_reads):
    known = KnownConversations()
    asked(known, body(HISTORY))
    asked(known, body(HISTORY), Policy(strip_tools=True))
    asked(known, body(HISTORY), endpoint=Endpoint("openai-chat"))
    asked(known, body(HISTORY), endpoint=Endpoint("anthropic", "claude-opus-4-8"))
    assert len(whole_reads) == 4


def test_each_tenant_has_conversations_of_its_own(whole_reads):
    known = KnownConversations()
    for end in (3, 6):
        for tenant in (b"one", b"other"):
            asked(known, body(HISTORY[:end]), tenant=tenant)
    # Neither reads the other's history, nor takes its place.
    assert whole_reads == [body(HISTORY[:3])] * 2


@pytest.mark.parametrize("name", ["x-api-key", "authorization", "x-goog-api-key"])
async def test_clients_with_different_keys_share_no_conversation(name, whole_reads):
    async with gateway() as (provider, url, client):
        for end in (1, 6):
            for key in ("one", "other"):
                data = body(HISTORY[:end])
                async with client.post(f"{url}/v1/messages", data=data, headers={name: key}) as response:
                    assert response.status == 200
    assert len(provider.received) == 4
    assert whole_reads == [body(HISTORY[:1])] * 2


def test_a_conversation_with_other_answered_requests_is_read_as_a_whole(whole_reads):
    known = KnownConversations()
    for answered in ({}, {4: False}, {4: False}, {4: True}, {4: True}, {}):
        asked(known, body(HISTORY), answered=answered)
    assert len(whole_reads) == 4


def test_parallel_requests_of_one_beginning_keep_their_own_histories():
    known = KnownConversations()
    left, right = ([*HISTORY, {"role": "assistant", "content": name}] for name in ("left", "right"))
    for _ in range(3):
        for branch in (left, right):
            branch.append({"role": "user", "content": f"{len(branch)}"})
            done = asked(known, body(branch))
            assert branch[6]["content"].encode() in done.body


def test_the_conversation_used_longest_ago_is_forgotten_first(whole_reads):
    first, second, third = ([{"role": "user", "content": name}] for name in ("first", "second", "third"))
    size = 3 * len(body(second)) + 2048
    known = KnownConversations(most_bytes=2 * size + size // 2)
    for each in (first, second, first, third):
        asked(known, body(each))
    assert len(whole_reads) == 3
    asked(known, body(first))
    assert len(whole_reads) == 3
    asked(known, body(second))
    assert whole_reads[-1] == body(second)


@pytest.mark.parametrize("data", [b'{"messages":[]}', b'{"input":"Hello."}', b'{"messages":{}}', b"[]", b"{}"])
def test_a_body_without_a_list_of_messages_is_read_each_time(data, whole_reads):
    known = KnownConversations()
    for _ in range(2):
        try:
            known.normalized(data, RequestBody(data).members, ANTHROPIC, Policy(), NOTHING_ANSWERED, tenant=b"")
        except InputError:
            with pytest.raises(InputError):
                normalize(data, "anthropic")
    assert len(whole_reads) == 2
