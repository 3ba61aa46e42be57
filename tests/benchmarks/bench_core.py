"""The core: a whole history to a valid request, and one more turn on a long session.

    python tests/benchmarks/bench_core.py [--rounds 5] [--peers PYTHON]

The history is healthy and the same for all sides: 201 messages of an agent at work, about 105 KB. LiteLLM converts it
from OpenAI's chat shape, with the standard library's JSON around it as it is used, and validates nothing; Reknit reads
the same bytes, and the canonical ones, mends, writes and validates. Times are of the processor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import histories  # noqa: E402 - beside this file
import measure  # noqa: E402 - beside this file

import pipeline  # noqa: E402 - after the path

ROUNDS_OF_EIGHT = 25
HEAD = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1024,
    "tools": [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}],
}
LENGTHS = (20, 200, 2_000)
TURNS = 10
LONGEST_TURN = 60e-6
LONGEST_GROWTH = 2.0
LEAST_AGAINST_LITELLM = 5.0


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """A text block."""

    text: str


class Call(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call, its input left raw."""

    id: str
    name: str
    input: msgspec.Raw


class Result(msgspec.Struct, tag_field="type", tag="tool_result"):
    """A result."""

    tool_use_id: str
    content: str


class Message(msgspec.Struct):
    """A message of nothing but these."""

    role: str
    content: list[Text | Call | Result]


class Body(msgspec.Struct):
    """A request."""

    model: str
    max_tokens: int
    tools: msgspec.Raw
    messages: list[Message]


def bare_walk(data: bytes) -> Callable[[], object]:
    """The least that any Python could do: typed decode, one look at each block, encode."""
    decode, encode = msgspec.json.Decoder(Body).decode, msgspec.json.Encoder().encode

    def work() -> bytes:
        body = decode(data)
        waiting: set[str] = set()
        for message in body.messages:
            for block in message.content:
                kind = type(block)
                if kind is Call:
                    waiting.add(block.id)
                elif kind is Result:
                    waiting.remove(block.tool_use_id)
        return encode(body)

    return work


@contextmanager
def litellm(python: str, request: bytes) -> Iterator[tuple[str, Callable[[], float]] | None]:
    """LiteLLM's version and what measures it once; None where that Python has it not."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(request)
        file.flush()
        command = [python, str(HERE / "peer_litellm.py"), file.name]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as peer:
            assert peer.stdin is not None  # as asked for
            assert peer.stdout is not None  # as asked for
            into, out = peer.stdin, peer.stdout
            version = out.readline().strip()

            def once() -> float:
                into.write("once\n")
                into.flush()
                return float(out.readline())

            try:
                yield (version, once) if version else None
            finally:
                into.close()


def whole_history(options: argparse.Namespace) -> None:
    """201 messages, bytes to bytes."""
    history = histories.canonical(ROUNDS_OF_EIGHT)
    canonical = json.dumps(HEAD | {"messages": history}).encode()
    openai = json.dumps(HEAD | {"messages": histories.openai_chat(history)}).encode()
    for data in (canonical, openai):
        done = pipeline.normalize(data, to="anthropic")
        assert not done.fixes
        assert not done.violations
        assert len(json.loads(done.body)["messages"]) == len(history)
    sides: dict[str, Callable[[], float]] = {
        "canonical": lambda: measure.seconds_a_call(lambda: pipeline.normalize(canonical).body),
        "openai": lambda: measure.seconds_a_call(lambda: pipeline.normalize(openai).body),
        "walk": lambda: measure.seconds_a_call(bare_walk(canonical)),
        "json": lambda: measure.seconds_a_call(lambda: json.dumps(json.loads(canonical)).encode()),
    }
    with litellm(options.peers, openai) as peer:
        if peer is not None:
            sides["litellm"] = peer[1]
        took = measure.medians(sides, options.rounds)
    what = f"normalise + validate, {len(history)} messages"
    if peer is None:
        measure.say(f"LiteLLM: {options.peers} does not have it (see --peers)")
    else:
        for shape in ("canonical", "openai"):
            ratio = took["litellm"] / took[shape]
            measure.report(
                measure.Finding(
                    what=f"{what}, from {shape}",
                    ours=measure.duration(took[shape]),
                    theirs=f"LiteLLM {peer[0]} + json {measure.duration(took['litellm'])}",
                    ratio=f"{ratio:.2f} times as fast",
                    budget=f"at least {LEAST_AGAINST_LITELLM:g} times",
                    met=ratio >= LEAST_AGAINST_LITELLM,
                )
            )
    for side, name in (("walk", "msgspec decode, walk, encode"), ("json", "json.loads + json.dumps")):
        measure.report(
            measure.Finding(
                what=f"{what}, from canonical",
                ours=measure.duration(took["canonical"]),
                theirs=f"{name} {measure.duration(took[side])}",
                ratio=f"{took['canonical'] / took[side]:.2f} times as long",
            )
        )


def turn_seconds(length: int) -> float:
    """What one more user turn costs a session of about ``length`` messages, without the join of the body."""
    messages = [
        msgspec.json.encode(m) for m in histories.canonical((length + 2 * TURNS) // 8 + 1)[: length + 2 * TURNS]
    ]
    session = pipeline.Session(
        targets=["anthropic"], tools=HEAD["tools"], model=HEAD["model"], params={"max_tokens": 9}
    )
    for message in messages[:length]:
        session.append(message)
    session.request("anthropic").sha256  # noqa: B018 - the digest is computed on access
    took = 0.0
    for at in range(length, length + 2 * TURNS, 2):
        # An agent asks for a request after a user turn only; the assistant's comes in between.
        began = time.process_time()
        session.append(messages[at])
        done = session.request("anthropic")
        digest = done.sha256
        took += time.process_time() - began
        assert digest
        assert not done.rejected
        session.append(messages[at + 1])
    return took / TURNS


def one_more_turn(options: argparse.Namespace) -> None:
    """The same turn on sessions of three lengths."""
    sides = {str(length): lambda length=length: turn_seconds(length) for length in LENGTHS}
    took = measure.medians(sides, options.rounds * 3)
    short, middle, long = (took[str(length)] for length in LENGTHS)
    measure.report(
        measure.Finding(
            what="one more turn, 200 messages: mend, render, validate, digest",
            ours=measure.duration(middle),
            theirs=f"20 messages {measure.duration(short)}",
            ratio=f"{middle / short:.2f} times as long",
            budget=f"under {measure.duration(LONGEST_TURN)}",
            met=middle < LONGEST_TURN,
        )
    )
    measure.report(
        measure.Finding(
            what="one more turn, 2,000 messages",
            ours=measure.duration(long),
            theirs=f"200 messages {measure.duration(middle)}",
            ratio=f"{long / middle:.2f} times as long",
            budget=f"under {LONGEST_GROWTH:g} times",
            met=long / middle < LONGEST_GROWTH,
        )
    )


def main() -> None:
    """Measure and tell."""
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    whole_history(options)
    one_more_turn(options)


if __name__ == "__main__":
    main()
