"""Parts of the gateway: upstreams by path, errors in each provider's form, and the end of each provider's stream."""

import json
import struct
from zlib import crc32

import pytest
from look_alikes import CHAT_TARGETS
from multidict import CIMultiDict

from reknit.pipeline.errors import InputError
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.serve import headers
from reknit.pipeline.serve.endpoints import Endpoint, endpoint_of
from reknit.pipeline.serve.errors import error_body, error_event
from reknit.pipeline.serve.streams import StreamWatch, is_stream
from reknit.pipeline.serve.upstreams import DEFAULT_UPSTREAMS, Upstream, Upstreams

DEFAULT = Upstreams(DEFAULT_UPSTREAMS, TARGETS)
LOOKALIKE = Upstream(name="own", prefix="/own/v2", to="https://llm.example/base/", target="vllm")


# Upstreams.


@pytest.mark.parametrize(
    ("path", "is_anthropic", "url"),
    [
        ("/anthropic/v1/messages?beta=true", False, "https://api.anthropic.com/v1/messages?beta=true"),
        ("/openai/v1/models", False, "https://api.openai.com/v1/models"),
        (
            "/gemini/v1beta/models/g:generateContent?alt=sse",
            False,
            "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent?alt=sse",
        ),
        ("/anthropic", False, "https://api.anthropic.com"),
        ("/anthropic?x=1", False, "https://api.anthropic.com?x=1"),
        ("/v1/messages", False, "https://api.anthropic.com/v1/messages"),
        ("/v1/chat/completions", False, "https://api.openai.com/v1/chat/completions"),
        ("/v1/responses", False, "https://api.openai.com/v1/responses"),
        (
            "/v1beta/models/g:streamGenerateContent",
            False,
            "https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent",
        ),
        ("/v1/models", True, "https://api.anthropic.com/v1/models"),
        ("/v1/models", False, None),
        ("/anthropics/v1/messages/x", False, None),
        ("/model/m/converse", False, None),
        ("/", False, None),
    ],
)
def test_a_prefix_then_the_path_then_a_header_decides(path, is_anthropic, url):
    found = DEFAULT.find(path, is_anthropic=is_anthropic)
    assert (found and found.url) == url


def test_an_upstream_without_a_prefix_takes_every_path_if_it_is_the_only_one():
    only = Upstreams([Upstream(name="one", to="http://localhost:1/base")], TARGETS)
    assert only.find("/v1/anything").url == "http://localhost:1/base/v1/anything"


def test_the_longest_prefix_wins_and_the_target_of_a_look_alike_judges_its_chat_requests():
    upstreams = Upstreams(
        [*DEFAULT_UPSTREAMS, LOOKALIKE, Upstream(name="o", prefix="/own", to="https://o.example")], TARGETS
    )
    assert upstreams.find("/own/v2/chat/completions").url == "https://llm.example/base/chat/completions"
    assert upstreams.find("/own/v2/chat/completions").endpoint == Endpoint("vllm")
    assert upstreams.find("/own/v2/responses").endpoint == Endpoint("openai-responses")
    assert upstreams.find("/own/v1/chat/completions").upstream.name == "o"
    assert upstreams.find("/openai/v1/chat/completions").endpoint == Endpoint("openai-chat")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": "http://api.example"}, "https only"),
        ({"to": "https://user:key@api.example"}, "no base URL"),
        ({"to": "https://api.example?key=1"}, "no base URL"),
        ({"to": "ftp://api.example"}, "no base URL"),
        ({"to": "https://a.example", "prefix": "x"}, "`prefix`"),
        ({"to": "https://a.example", "prefix": "/x/"}, "`prefix`"),
        ({"to": "https://a.example", "target": "antropic"}, "did you mean anthropic"),
        ({"to": "https://a.example", "name": "own", "prefix": "/other"}, "the name 'own'"),
        ({"to": "https://a.example", "prefix": "/own/v2"}, "the prefix '/own/v2'"),
    ],
)
def test_an_upstream_that_cannot_be_used_is_refused(given, said):
    with pytest.raises(InputError, match="(?i)" + said.replace("?", r"\?")) as error:
        Upstreams([LOOKALIKE, Upstream(**{"name": "x", **given})], TARGETS)
    assert error.value.code == "serve_upstream"


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        (
            "/v1/projects/p/publishers/anthropic/models/c@1:streamRawPredict",
            Endpoint("anthropic", "c@1", streams=True),
        ),
        ("/model/us.anthropic.claude%3A0/invoke", Endpoint("anthropic", "us.anthropic.claude:0")),
        ("/model/arn%3Aaws%2Fx/converse-stream", Endpoint("bedrock-converse", "arn:aws/x", streams=True)),
        ("/v1/messages/count_tokens", None),
        ("/v1/messages/batches", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1beta/models/g:countTokens", None),
    ],
)
def test_paths_of_requests_to_a_model(path, endpoint):
    assert endpoint_of(path) == endpoint


# Headers.


def test_headers_of_a_connection_of_keys_and_of_a_changed_body_are_not_forwarded():
    given = CIMultiDict(
        [
            *[("Connection", "keep-alive, x-hop"), ("X-Hop", "1"), ("Transfer-Encoding", "chunked"), ("Host", "h")],
            *[("X-Reknit-Key", "k"), ("Content-Encoding", "gzip"), ("Content-Digest", "d"), ("Accept-Encoding", "br")],
            *[("Via", "1.0 other"), ("anthropic-beta", "a"), ("anthropic-beta", "b"), ("X-Api-Key", "theirs")],
        ]
    )
    unchanged = headers.to_upstream(given, is_changed=False, identity=False, key=None)
    assert list(unchanged.items()) == [
        *[("Content-Encoding", "gzip"), ("Content-Digest", "d"), ("Accept-Encoding", "br")],
        *[("anthropic-beta", "a"), ("anthropic-beta", "b"), ("X-Api-Key", "theirs"), ("via", "1.0 other, 1.1 reknit")],
    ]
    changed = headers.to_upstream(given, is_changed=True, identity=True, key=("authorization", "Bearer own"))
    assert sorted(changed.items()) == [
        *[("accept-encoding", "identity"), ("anthropic-beta", "a"), ("anthropic-beta", "b")],
        *[("authorization", "Bearer own"), ("via", "1.0 other, 1.1 reknit")],
    ]


# Errors.


@pytest.mark.parametrize(
    ("target", "status", "expected"),
    [
        ("anthropic", 502, {"type": "error", "error": {"type": "api_error", "message": "m"}}),
        ("anthropic", 503, {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}),
        ("openai-chat", 502, {"error": {"message": "m", "type": "server_error", "param": None, "code": None}}),
        ("vllm", 400, {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": None}}),
        ("", 404, {"error": {"message": "m", "type": "invalid_request_error", "param": None, "code": None}}),
        ("gemini", 413, {"error": {"code": 413, "message": "m", "status": "INVALID_ARGUMENT"}}),
        ("gemini", 504, {"error": {"code": 504, "message": "m", "status": "DEADLINE_EXCEEDED"}}),
        ("bedrock-converse", 400, {"message": "m"}),
    ],
)
def test_an_error_has_the_form_of_its_provider(target, status, expected):
    body, more = error_body(target, status, "m")
    assert json.loads(body) == expected
    assert more == ({"x-amzn-errortype": "ValidationException"} if target == "bedrock-converse" else {})


def events(*payloads):
    return [b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads]


def frame(kind, payload, message_type="event"):
    names = {":event-type": kind, ":content-type": "application/json", ":message-type": message_type}
    head = b"".join(
        bytes((len(name),)) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(head) + len(body), len(head))
    whole = prelude + struct.pack(">I", crc32(prelude)) + head + body
    return whole + struct.pack(">I", crc32(whole))


CHAT = events(
    {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}}],
    },
    {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
)
RESPONSE = {"id": "resp_1", "object": "response", "model": "gpt-5", "status": "in_progress", "output": []}
RESPONSES = events(
    {"type": "response.created", "sequence_number": 0, "response": RESPONSE},
    {"type": "response.in_progress", "sequence_number": 1, "response": RESPONSE},
    {"type": "response.completed", "sequence_number": 2, "response": {**RESPONSE, "status": "completed"}},
)
GEMINI = events(
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}}]},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "!"}]}, "finishReason": "STOP"}]},
)
CONVERSE = [
    frame("messageStart", {"role": "assistant"}),
    frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hi"}}),
    frame("messageStop", {"stopReason": "end_turn"}),
]
STREAMS = {
    **dict.fromkeys(CHAT_TARGETS, CHAT),
    "openai-responses": RESPONSES,
    "gemini": GEMINI,
    "bedrock-converse": CONVERSE,
}


def watched(target, pieces):
    watch = StreamWatch(target, is_in_frames=target == "bedrock-converse")
    for piece in pieces:
        watch.take(piece)
    return watch


@pytest.mark.parametrize("target", STREAMS)
def test_a_stream_is_whole_with_its_final_event_only(target):
    pieces = STREAMS[target]
    assert watched(target, pieces).ends_whole()
    assert not watched(target, pieces[:-1]).ends_whole()
    assert not watched(target, []).ends_whole()


@pytest.mark.parametrize("target", STREAMS)
def test_an_event_can_follow_between_two_events_only(target):
    whole = b"".join(STREAMS[target])
    ends = {len(b"".join(STREAMS[target][:count])) for count in range(len(STREAMS[target]) + 1)}
    for size in range(len(whole) + 1):
        # The piece boundaries of a network are arbitrary.
        pieces = [whole[at : min(at + 7, size)] for at in range(0, size, 7)]
        assert watched(target, pieces).is_at_boundary == (size in ends), size


@pytest.mark.parametrize("target", STREAMS)
def test_the_error_event_is_read_as_a_failure_by_the_decoder_of_its_stream(target):
    watch = watched(target, STREAMS[target][:-1])
    watch.take(error_event(target, "it broke", watch.first, watch.last))
    assert watch.ends_whole(), "an error event is an end"


def test_the_failed_response_has_the_announced_response_and_the_next_number():
    watch = watched("openai-responses", RESPONSES[:-1])
    event = error_event("openai-responses", "it broke", watch.first, watch.last)
    name, _, data = event.partition(b"\ndata: ")
    assert name == b"event: response.failed"
    assert json.loads(data) == {
        "type": "response.failed",
        "sequence_number": 2,
        "response": {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "it broke"}},
    }


@pytest.mark.parametrize("first", [b"", b"data: {", b"data: \xff\n\n", b"data: []\n\n", b'data: {"response": 1}\n\n'])
def test_a_failed_response_without_a_readable_beginning(first):
    data = error_event("openai-responses", "m", first, b"").partition(b"\ndata: ")[2]
    assert json.loads(data)["response"] == {"status": "failed", "error": {"code": "server_error", "message": "m"}}


def test_the_end_after_an_event_beyond_the_limit_is_not_judged():
    assert watched("openai-chat", [b"data: " + b"x" * (2**26), b"y"]).ends_whole()


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("text/event-stream; charset=utf-8", True),
        ("application/vnd.amazon.eventstream", True),
        ("application/json", False),
    ],
)
def test_content_types_of_streams(content_type, expected):
    assert is_stream(content_type) == expected
