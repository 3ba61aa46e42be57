"""Bad input: four times as much of it takes about four times as long, whatever is wrong with it.

    python tests/benchmarks/bench_growth.py [--rounds 3] [--targets anthropic]

Each kind of input is made in two sizes, one four times the other. Histories are normalised with their validation; what
is refused with a typed error is measured up to the refusal. Lines of streams are recovered. Times are of the processor.
"""

import base64
import gc
import json
import time
from contextlib import suppress
from functools import partial

import measure

# isort: split
from build import call, result, said, user

from reknit import pipeline
from reknit.pipeline.errors import InputError
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.streams.session import Recovery

MESSAGES = 10_000
MEGABYTES = 50
TIMES = 4
# Linear growth is 4 and quadratic growth 16; caches make work on the large size up to twice as slow.
MOST = 8.0
# The allocator maps blocks above 32 MB again for each use, which makes work on them slower once more, and no further.
MOST_MAPPED = 12.0

KINDS = {}


def kind(what, most, unit, budget=MOST):
    """Enter a kind of input; ``most`` is its larger size, in ``unit``."""

    def enter(made):
        KINDS[what] = made, most, unit, budget
        return made

    return enter


def dumped(messages):
    return json.dumps(list(messages)).encode()


@kind("neighbours of one role", MESSAGES, "messages")
def neighbours(size):
    """Nothing but users, who are all joined into one."""
    return dumped(user(f"line {at}") for at in range(size))


@kind("calls without results", MESSAGES, "messages")
def unanswered(size):
    """A call in every second message, and never a result."""
    return dumped(said(call(f"c{at}")) if at % 2 else user("go on") for at in range(size))


@kind("results without calls", MESSAGES, "messages")
def orphans(size):
    """A result in every second message, and never a call."""
    return dumped(user(result(f"c{at}")) if at % 2 else said("well") for at in range(size))


@kind("late results", MESSAGES, "messages")
def late(size):
    """First all the calls, then all their results, in the opposite order."""
    half = size // 2
    calls = [user("q"), *(said(call(f"c{at}")) for at in range(half))]
    return dumped([*calls, *(user(result(f"c{at}")) for at in reversed(range(half)))])


@kind("one id in every round", MESSAGES, "messages")
def one_id(size):
    """Each round calls with the same id, and answers it."""
    turns = (said(call("call_0")) if at % 2 else user(result("call_0")) for at in range(1, size))
    return dumped([user("q"), *turns])


@kind("ids that are rewritten into one another", MESSAGES, "messages")
def cycles(size):
    """Illegal ids whose legal forms are other calls' ids, round after round."""
    ids = ("a.b", "a:b", "a_b", "a b")
    turns = (said(call(ids[at // 2 % 4])) if at % 2 else user(result(ids[(at - 1) // 2 % 4])) for at in range(1, size))
    return dumped([user("q"), *turns])


@kind("calls in one message", MESSAGES, "calls")
def parallel(size):
    """One message of calls, one of their results in the opposite order."""
    calls = said(*(call(f"c{at}") for at in range(size)))
    return dumped([user("q"), calls, user(*(result(f"c{at}") for at in reversed(range(size))))])


@kind("one call repeated in one message", MESSAGES, "calls")
def repeated(size):
    """The same id over and over in one message, no two calls alike."""
    calls = ({**call("same"), "input": {"at": at}} for at in range(size))
    return dumped([user("q"), said(*calls), user(*(result("same", str(at)) for at in range(size)))])


@kind("blank texts", MESSAGES, "messages")
def blank(size):
    """Nothing to say, in turns."""
    return dumped((said if at % 2 else user)(" ", "") for at in range(size))


@kind("system messages in the middle", MESSAGES, "messages")
def systems(size):
    """A system message after every turn."""
    roles = ("user", "system", "assistant", "system")
    return dumped({"role": roles[at % 4], "content": f"line {at}"} for at in range(size))


@kind("blocks of unknown types", MESSAGES, "messages")
def unknown(size):
    """A type that no provider has."""
    return dumped((said if at % 2 else user)("text", {"type": f"kind_{at % 9}", "x": 1}) for at in range(size))


@kind("lone surrogates", MESSAGES, "messages")
def surrogates(size):
    """Half a pair in every message."""
    return dumped((said if at % 2 else user)(f"half \ud83d of {at}") for at in range(size))


@kind("base64 in one image", MEGABYTES, "MB", MOST_MAPPED)
def media(size):
    """One image that is too large for every provider."""
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1" + bytes(size * 750_000)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    return dumped([user("look", {"type": "image", "source": source})])


@kind("nesting", 480, "levels")
def nested(size):
    """A tool input as deep as is read, in 200 messages."""
    deep = json.loads('{"a":' * size + "1" + "}" * size)
    turns = ((said({**call(f"c{at}"), "input": deep}), user(result(f"c{at}"))) for at in range(100))
    return dumped([user("q"), *(message for pair in turns for message in pair)])


@kind("nesting that is refused", 40_000, "levels")
def too_deep(size):
    """A tool input deeper than is read."""
    return b'[{"role":"user","content":' + b"[" * size + b"]" * size + b"}]"


# Lines of a stream that are not JSON, repetitions of these; each begins like a line that can be repaired.
LINES = {
    "objects that begin": b'{"type":"system"',
    "objects that follow one another": b'{"type":"system"}',
    "events within one another": b'{"a":{"type":"rate_limit_event",',
    "brackets and blanks": b"{" + b" " * 50,
    "escapes": b'"\\',
}


def normalised(data, target):
    with suppress(InputError):
        pipeline.normalize(data, to=target).unjudged  # noqa: B018 - joined on access


def recovered(data, source):
    """Recover a run of one line."""
    recovery = Recovery(source)
    recovery.feed(data)
    recovery.end_run("exit")


def seconds(work, data, name):
    """Return the seconds for the work on some data."""
    gc.collect()
    began = time.process_time()
    work(data, name)
    return time.process_time() - began


def growth(what, target, rounds):
    made, most, unit, budget = KINDS[what]
    told = f"{what}, for {target}: {most:,} {unit}"
    compare(told, partial(seconds, normalised), (made(most), made(most // TIMES)), target, rounds=rounds, budget=budget)


def growth_of_line(what, source, rounds):
    line = LINES[what] * (1_000_000 // len(LINES[what]))
    compare(f"{source}, a line of {what}", partial(seconds, recovered), (line * TIMES, line), source, rounds=rounds)


def compare(what, work, data, name, *, rounds, budget=MOST):
    """Compare the larger of two data with the smaller one."""
    large, small = data
    work(small, name)
    sides = {"small": lambda: work(small, name), "large": lambda: work(large, name)}
    took = measure.medians(sides, rounds)
    ratio = took["large"] / took["small"]
    measure.report(
        what=f"{what} ({len(large) / 1e6:.1f} MB)",
        ours=measure.duration(took["large"]),
        theirs=f"a quarter {measure.duration(took['small'])}",
        ratio=f"{ratio:.2f} times as long for {TIMES} times as much",
        budget=f"under {budget:g} times",
        met=ratio < budget,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), default=["anthropic"])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    options = parser.parse_args()
    for target in options.targets:
        for what in options.kinds:
            growth(what, target, options.rounds)
    for what in LINES:
        growth_of_line(what, "claude-cli", options.rounds)


if __name__ == "__main__":
    main()
