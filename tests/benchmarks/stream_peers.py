"""The peers' side of bench_streams, run by a Python that has them: streams in, one measurement a line out.

    python tests/benchmarks/stream_peers.py PEER STREAMS.json

The file holds the streams, each a list of events, which are strings of SSE. Each peer goes its own way from those bytes
to the finished message: the SDKs read a response of their HTTP library, whose body comes record by record, decode SSE
with their own decoder, build their own events and accumulate them, without a client's request; LiteLLM, which
accumulates chunks that it has decoded already, gets them decoded. Some streams are too much for some peers, so the
first line written is the peer's version and the numbers of those that it takes, as JSON. After that, for each line on
stdin, a list of such numbers and how many events make a record, the answer is the seconds that one pass over those
streams takes.
"""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # prices are of no interest here, and not to be fetched

from measure import seconds_a_call

Records = list[bytes]


def anthropic():
    """The SDK's message stream."""
    from anthropic import NOT_GIVEN, Anthropic, Stream
    from anthropic.lib.streaming import MessageStream
    from anthropic.types import RawMessageStreamEvent

    client, answer = Anthropic(api_key="none"), _answers(Stream)

    def work(data):
        raw = Stream(cast_to=RawMessageStreamEvent, response=answer(data), client=client)
        return MessageStream(raw, output_format=NOT_GIVEN).get_final_message()

    return work


def openai_chat():
    """The SDK's accumulator of chunks."""
    from openai import OpenAI, Stream
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    client, answer = OpenAI(api_key="none"), _answers(Stream)

    def work(data):
        state = ChatCompletionStreamState()
        for chunk in Stream(cast_to=ChatCompletionChunk, response=answer(data), client=client):
            state.handle_chunk(chunk)
        return state.get_final_completion()

    return work


def openai_responses():
    """The SDK's accumulator of events."""
    from openai import OpenAI, Stream, omit
    from openai.lib.streaming.responses._responses import ResponseStreamState
    from openai.types.responses import ResponseStreamEvent

    client, answer = OpenAI(api_key="none"), _answers(Stream)

    def work(data):
        state = ResponseStreamState(input_tools=omit, text_format=omit)
        raw = Stream(cast_to=ResponseStreamEvent, response=answer(data), client=client)
        for event in raw:
            state.handle_event(event)
        return state._completed_response

    return work


def _answers(stream):
    """Returns a function that makes a response of the HTTP library that the SDK uses."""
    names = stream.__init__.__globals__  # type: ignore[misc]  # of its module
    library = names.get("httpx") or names["httpx2"]
    headers = {"content-type": "text/event-stream"}
    return lambda data: library.Response(
        200, headers=headers, content=iter(data), request=library.Request("POST", "http://x")
    )


def litellm():
    """Its chunk builder."""
    from litellm import ModelResponseStream, stream_chunk_builder

    def work(data):
        lines = [
            line[6:]
            for record in data
            for line in record.split(b"\n")
            if line[:6] == b"data: " and line[6:12] != b"[DONE]"
        ]
        return stream_chunk_builder([ModelResponseStream(**json.loads(line)) for line in lines])

    return work


PEERS = {
    "Anthropic SDK": ("anthropic", anthropic),
    "OpenAI SDK, chat": ("openai", openai_chat),
    "OpenAI SDK, responses": ("openai", openai_responses),
    "LiteLLM chunk builder": ("litellm", litellm),
}


def main():
    package, make = PEERS[sys.argv[1]]
    work = make()
    streams = [[event.encode() for event in stream] for stream in json.loads(Path(sys.argv[2]).read_bytes())]
    taken = []
    for number, stream in enumerate(streams):
        try:
            if work(stream) is not None:
                taken.append(number)
        except Exception:  # noqa: BLE001, S112 - whatever it cannot do, it is not measured on
            continue
    _say({"version": version(package), "taken": taken})
    for line in sys.stdin:
        numbers, batch = json.loads(line)
        chosen = [
            [b"".join(streams[number][at : at + batch]) for at in range(0, len(streams[number]), batch)]
            for number in numbers
        ]
        _say(seconds_a_call(lambda chosen=chosen: [work(stream) for stream in chosen]))  # type: ignore[misc]  # a default


def _say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
