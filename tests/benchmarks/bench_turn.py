"""One more turn: the cost for a session to take it, and of its next request, for histories of any length.

    python tests/benchmarks/bench_turn.py [--rounds 15] [--targets anthropic gemini]

A user turn with a tool's result is appended to sessions of three lengths, and the request is repaired, rendered,
validated and digested; the body is not joined. A few turns precede it, because a worker is warm. Times are processor
times.
"""

import time

import histories
import measure
import msgspec

from reknit import pipeline
from reknit.pipeline.registry import TARGETS

LENGTHS = (20, 200, 2_000)
# Rounds of four user turns, three with a result: one that is not measured, then the measured ones.
WARM, TURNS = 4, 16
# Per target: the longest that a turn may take, where DESIGN has a budget.
LONGEST_TURN = {"anthropic": 60e-6}
LONGEST_GROWTH = 2.0
MODELS = {"gemini": "gemini-2.5-pro", "openai-chat": "gpt-4o", "openai-responses": "gpt-4o", "vllm": "qwen3"}
TOOLS = [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}]


def turn_seconds(target, length):
    """Return the seconds of one more user turn for a session of about ``length`` messages, without joining the body."""
    total = length + 2 * (WARM + TURNS)
    messages = [msgspec.json.encode(message) for message in histories.canonical(total // 8 + 1)[:total]]
    model = MODELS.get(target, "claude-sonnet-4-5")
    session = pipeline.Session(targets=[target], tools=TOOLS, model=model, params={"max_tokens": 1024})
    for message in messages[:length]:
        session.append(message)
    session.request(target).sha256  # noqa: B018 - the digest is computed on access
    took = 0.0
    for at in range(length, total, 2):
        # An agent asks for a request after a user turn only; the assistant's comes in between.
        began = time.process_time()
        session.append(messages[at])
        done = session.request(target)
        digest = done.sha256
        if at >= length + 2 * WARM:
            took += time.process_time() - began
        assert digest
        assert not done.rejected
        session.append(messages[at + 1])
    return took / TURNS


def one_more_turn(target, rounds):
    """The same turn on sessions of three lengths."""
    sides = {str(length): lambda length=length: turn_seconds(target, length) for length in LENGTHS}
    took = measure.medians(sides, rounds)
    short, middle, long = (took[str(length)] for length in LENGTHS)
    most = LONGEST_TURN.get(target)
    measure.report(
        what=f"one more turn for {target}, 200 messages: mend, render, validate, digest",
        ours=measure.duration(middle),
        theirs=f"20 messages {measure.duration(short)}",
        ratio=f"{middle / short:.2f} times as long",
        budget=f"under {measure.duration(most)}" if most else "",
        met=middle < most if most else None,
    )
    measure.report(
        what=f"one more turn for {target}, 2,000 messages",
        ours=measure.duration(long),
        theirs=f"200 messages {measure.duration(middle)}",
        ratio=f"{long / middle:.2f} times as long",
        budget=f"under {LONGEST_GROWTH:g} times" if most else "",
        met=long / middle < LONGEST_GROWTH if most else None,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), default=sorted(TARGETS))
    options = parser.parse_args()
    for target in options.targets:
        one_more_turn(target, options.rounds)


if __name__ == "__main__":
    main()
