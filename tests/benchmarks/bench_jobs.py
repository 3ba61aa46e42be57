"""Where the time of a normalization goes, job by job, for plain, rich and broken histories on each target.

    python tests/benchmarks/bench_jobs.py [--rounds 5]

Each row is one history of 201 messages on one target. The unit is a msgspec decode and encode of the same bytes into
plain values on the same machine, which makes rows of two machines comparable. The jobs are shares of that row's time,
by a profile: the own time of each function counts for the job of its module, and a built-in function for its caller's.
A profile makes short functions look more expensive than they are.
"""

from __future__ import annotations

import copy
import cProfile
import json
import pstats
from collections import Counter

import histories
import measure
import msgspec
from bench_core import HEAD, ROUNDS_OF_EIGHT

from reknit import pipeline

TARGETS = ("anthropic", "bedrock-converse", "openai-chat", "openai-responses", "gemini")
REPEATED = 10
# The job of a module, by a part of its path; the first that occurs decides.
JOBS = {
    "rules/": "judge",
    "stable_prefix": "digest",
    "valid_runs": "classify",
    "unusual": "classify",
    "history/readers": "decode",
    "/reader": "decode",
    "msgspec": "decode",
    "writer": "encode",
    "valid_run": "encode",
    "unchanged": "encode",
    "/wire": "encode",
    "targets/": "encode",
    "fixes": "account",
    "pieces": "account",
    "session/request": "account",
    "history/": "repair",
    "session/": "session",
}
# The list of messages, a model and the shape of the targets whose own histories have another shape than the others.
NATIVE = {
    "openai-responses": ("input", "gpt-5", histories.responses_items),
    "gemini": ("contents", "gemini-2.5-pro", histories.gemini_contents),
}
COLUMNS = [*dict.fromkeys(JOBS.values()), "other"]


def without_results(history, places):
    """Return a history without the first results of the rounds that begin at these places."""
    lost = {place + 2 for place in places}
    return [message for at, message in enumerate(history) if at not in lost]


def with_words_for_results(history, places):
    """Return a history in which the user says something instead of giving these results."""
    said = {"role": "user", "content": [{"type": "text", "text": "No, look at the other file first. " * 16}]}
    spoken_over = {place + 2 for place in places}
    return [said if at in spoken_over else message for at, message in enumerate(history)]


def without_one_of_several(history, places):
    """Return a history with parallel calls without the second of the results of each of these rounds."""
    made = histories.of_kind(history, "parallel calls")
    for place in places:
        del made[place + 2]["content"][1]
    return made


def with_stray_results(history, places):
    """Return a history in which results without a call precede these results."""
    made = copy.deepcopy(history)
    for place in places:
        stray = {"type": "tool_result", "tool_use_id": f"toolu_gone_{place}", "content": "nothing"}
        made[place + 2]["content"].insert(0, stray)
    return made


def documents(target):
    plain = histories.canonical(ROUNDS_OF_EIGHT)
    made = {"plain": plain} | {kind: histories.of_kind(plain, kind) for kind in histories.KINDS}
    made["own thinking"] = histories.issued(made["thinking"], target)
    rounds = range(0, len(plain) - 1, 8)
    made["one lost"] = without_results(plain, rounds[12:13])
    made["one stray"] = with_stray_results(plain, rounds[12:13])
    made["strays"] = with_stray_results(plain, rounds)
    made["broken"] = without_results(plain, rounds)
    made["spoken over"] = with_words_for_results(plain, rounds)
    made["part lost"] = without_one_of_several(plain, rounds)
    documents = {kind: HEAD | {"messages": messages} for kind, messages in made.items()}
    if target in NATIVE:
        root, model, written = NATIVE[target]
        documents["native"] = HEAD | {"model": model, root: written(plain)}
    return {kind: json.dumps(document).encode() for kind, document in documents.items()}


def job_of(path):
    return next((job for part, job in JOBS.items() if part in path), "other")


def shares(data, target):
    """Return the share of each job in the time of a normalization."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(REPEATED):
        pipeline.normalize(data, to=target)
    profile.disable()
    spent = Counter()
    for (path, _, name), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():
        if path != "~":
            spent[job_of(path)] += own
            continue
        # A built-in function: encoding and hashing have a job of their own, the rest is its callers'.
        job = "encode" if "encode" in name else "digest" if "hash" in name or "hexdigest" in name else ""
        for (caller, *_), (_, _, of_caller, _) in callers.items():
            spent[job or job_of(caller)] += of_caller
    whole = sum(spent.values())
    return {job: spent[job] / whole for job in COLUMNS}


def unit(data):
    """Decode and encode the same bytes with msgspec."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    return measure.seconds_a_call(lambda: encode(decode(data)))


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    head = "  ".join(f"{job:>8}" for job in COLUMNS)
    measure.say(f"{'history':14}  {'units':>6}  {'a byte':>6}  {head}")
    for target in TARGETS:
        measure.say(target)
        found = documents(target)
        plain_units = plain_bytes = 0
        for kind, data in found.items():
            pipeline.normalize(data, to=target)  # imports the target's modules
            sides = {
                "ours": lambda data=data, target=target: measure.seconds_a_call(
                    lambda: pipeline.normalize(data, to=target)
                ),
                "unit": lambda data=data: unit(data),
            }
            took = measure.medians(sides, options.rounds)
            units = took["ours"] / took["unit"]
            if kind == "plain":
                plain_units, plain_bytes = took["ours"], len(data)
            a_byte = took["ours"] / plain_units * plain_bytes / len(data)
            jobs = "  ".join(f"{share:8.0%}" for share in shares(data, target).values())
            measure.say(f"  {kind:12}  {units:6.1f}  {a_byte:6.2f}  {jobs}")


if __name__ == "__main__":
    main()
