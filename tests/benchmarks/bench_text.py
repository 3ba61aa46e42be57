"""The text filters: recorded text in large and small pieces, and how hostile text grows.

    python tests/benchmarks/bench_text.py [--rounds 5]

The text is what agents and models said in recorded transcripts (``REKNIT_CORPUS``, else ``../shared/corpus``; without
it, what the bundled fleet's models say). The budget is for all filters in a row, in pieces of 64 KiB. Deltas are those
of recorded streams, or pieces of 20 characters without a corpus. Hostile text is fed at two lengths, whole and in
pieces of 16 characters: where time grows with the text and not with its square, twice the text takes twice as long.
Times are of the processor.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from functools import partial
from pathlib import Path

import measure
import msgspec

from reknit.pipeline.providers.cascade.stream.speech import OutputFilter
from reknit.pipeline.text.identity import IdentityRewriter
from reknit.pipeline.text.redaction import Redactor
from reknit.pipeline.text.tool_calls import ToolCallParser

HERE = Path(__file__).resolve().parent

CORPUS = Path(os.environ.get("REKNIT_CORPUS", HERE.parents[2] / "shared" / "corpus"))
MODEL = "claude-opus-4-7"
LEAST_RATE = 20.0
# A square would be 4.
MOST_GROWTH = 3.0
PIECE = 1 << 16
FILTERS = {
    "redaction": Redactor,
    "identity": lambda: IdentityRewriter(MODEL),
    "tool calls": ToolCallParser,
    "all three": lambda: OutputFilter(MODEL),
}
LENGTH = 250_000
HOSTILE = {
    "<": "<",
    "/": "/",
    "\\": "\\",
    "{": "{",
    '{"name"': '{"name"',
    '{"name":': '{"name":',
    '{"name":"': '{"name":"',
    "<tool_call>": "<tool_call>",
    "<tool_call>{": "<tool_call>{",
    "<tool_call> ": "<tool_call>" + " " * 30,
    "<tool_result ": "<tool_result ",
    "</tool_call": "</tool_call",
    "half calls": '<tool_call>{"name":"A","arguments":{}}',
    "half a root": "/home/user/projects/workspace-",
    "long ids": "/home/user/projects/workspace-" + "a" * 65,
    "roots": " /opt/windsurf/bin",
    "half phrases": "I am Windsurf's ",
    "phrases": "I am Cascade, made by Windsurf. ",
    "cascade": "cascade ",
    "my name is": "my name is ",
    "`": "`",
    "```": "```\n",
    "half a fence": "\n   ``",
    "blanks": " ",
    "one word": "a",
    "escapes": '{"\\"',
}


class Row(msgspec.Struct):
    """One line of a transcript; what is said is in its message, anywhere."""

    message: msgspec.Raw | None = None


class Stream(msgspec.Struct):
    """One recorded interaction."""

    stream: list[str] | None = None
    stream_format: str | None = None


class Delta(msgspec.Struct):
    """The part of a content delta that is text."""

    text: str = ""


class Event(msgspec.Struct):
    """One event of a recorded stream."""

    type: str = ""
    delta: Delta | None = None


def texts_in(value):
    """Every text in a JSON value that is long enough to be one."""
    if isinstance(value, str) and len(value) > 20:
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from texts_in(member)
    elif isinstance(value, list):
        for member in value:
            yield from texts_in(member)


def recorded_text():
    rows = msgspec.json.Decoder(Row)
    found = []
    for path in sorted((CORPUS / "claude-code-sessions").glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            try:
                message = rows.decode(line).message
            except msgspec.DecodeError:  # damaged lines are what some of the transcripts are for
                continue
            found += texts_in(msgspec.json.decode(message)) if message else ()
    return "\n\n".join(found) or fleet_text()


def fleet_text():
    """Texts of the models in the bundled fleet, repeated."""
    from recorded import runs  # needs a broker's client, which nothing else here does

    lines = [line for run in runs("recorded") for line in run]
    return "\n\n".join(text for line in lines for text in texts_in(msgspec.json.decode(line))) * 20


def recorded_deltas(text):
    """The unchanged text deltas of recorded streams."""
    path = CORPUS / "anthropic.jsonl.gz"
    if not path.is_file():
        return pieces(text, 20)
    events = msgspec.json.Decoder(Event)
    found = []
    for line in gzip.decompress(path.read_bytes()).splitlines():
        try:
            row = msgspec.json.decode(line, type=Stream)
            found += (
                event.delta.text
                for event in (events.decode(data) for data in row.stream or () if data.startswith("{"))
                if event.delta and event.delta.text
            )
        except msgspec.DecodeError:  # streams of other formats
            continue
    return found


def pieces(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


def seconds(make, fed):
    """How long a new filter takes for these pieces."""
    one = make()
    feed, flush = one.feed, one.flush  # type: ignore[attr-defined]  # all filters have them
    began = time.process_time()
    for piece in fed:
        feed(piece)
    flush()
    return time.process_time() - began


def recorded(rounds):
    text = recorded_text()
    size = len(text.encode("utf-8", "surrogatepass")) / 1e6
    measure.say(f"recorded text: {size:.2f} MB")
    for piece in (PIECE, 4_096, 256):
        fed = pieces(text, piece)
        sides = {name: partial(seconds, make, fed) for name, make in FILTERS.items()}
        took = measure.medians(sides, rounds)
        rates = {name: size / took[name] for name in FILTERS}
        if piece == PIECE:
            each = ", ".join(f"{name} {rates[name]:.0f}" for name in FILTERS if name != "all three")
            rate = rates["all three"]
            measure.report(
                what="text filters, all three, recorded text",
                ours=f"{rate:.0f} MB/s",
                theirs=f"one by one: {each}",
                ratio=f"{rate / LEAST_RATE:.1f} times the budget",
                budget=f"at least {LEAST_RATE:.0f} MB/s",
                met=rate >= LEAST_RATE,
            )
        else:
            measure.say(f"pieces of {piece}: " + ", ".join(f"{name} {rate:.1f} MB/s" for name, rate in rates.items()))
    small(recorded_deltas(text), rounds)


def small(deltas, rounds):
    """The cost of one delta of a recorded stream."""
    mean = sum(map(len, deltas)) / len(deltas)
    sides = {name: partial(seconds, make, deltas) for name, make in FILTERS.items()}
    took = measure.medians(sides, rounds)
    each = ", ".join(f"{name} {measure.duration(took[name] / len(deltas))}" for name in FILTERS)
    measure.say(f"{len(deltas)} recorded deltas of {mean:.0f} characters on average, one delta: {each}")


def hostile(rounds):
    """How time grows when hostile text grows to twice its length."""
    worst, slowest = ("", 0.0), ("", float("inf"))
    for name, unit in HOSTILE.items():
        short = (unit * (LENGTH // len(unit) + 1))[:LENGTH]
        sides = {
            f"{length}{size}": partial(seconds, FILTERS["all three"], pieces(text, size))
            for length, text in (("short", short), ("long", short * 2))
            for size in (LENGTH * 2, 16)
        }
        took = measure.medians(sides, rounds)
        growth = [took[f"long{size}"] / took[f"short{size}"] for size in (LENGTH * 2, 16)]
        rates = [2 * LENGTH / took[f"long{size}"] / 1e6 for size in (LENGTH * 2, 16)]
        measure.say(
            f"{name:14} whole {rates[0]:7.1f} MB/s, growth {growth[0]:.2f};"
            f"  in pieces of 16 {rates[1]:5.2f} MB/s, growth {growth[1]:.2f}"
        )
        worst = max(worst, (name, max(growth)), key=lambda pair: pair[1])
        slowest = min(slowest, (name, rates[0]), key=lambda pair: pair[1])
    measure.report(
        what="text filters, hostile text of twice the length",
        ours=f"{worst[1]:.2f} times the time at worst ({worst[0]})",
        theirs="2 times the text",
        ratio=f"{slowest[1]:.1f} MB/s at the slowest ({slowest[0]})",
        budget=f"at most {MOST_GROWTH} times",
        met=worst[1] <= MOST_GROWTH,
    )


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    recorded(options.rounds)
    hostile(options.rounds)


if __name__ == "__main__":
    main()
