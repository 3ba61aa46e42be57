"""The report of a run, and its faults."""

from __future__ import annotations

import datetime as dt
import platform
import re
import subprocess
from collections import Counter
from pathlib import Path

import gateway_topics
from msgspec import Struct, field
from soak.memory import WARM, growth

# Once the caches are full. Shorter runs fill them; conversations of 64 MiB by the gateway's estimate took 103 MiB.
_MOST_GROWTH_KIB = 12 * 1024
_MOST_FILLING_KIB = 128 * 1024
# Delivered records are deleted with their segment of 16 MiB; the last segment stays.
_MOST_LEFT = 32 * 2**20
_SHOWN = 15
# Names and numbers, which differ between faults of one kind.
_NAMES = re.compile(r"[0-9a-f]{32}|\d+|'")


class Counted(Struct):
    """The counts of a run.

    Attributes:
        kills: of the gateway.
        outages: of the broker.
        losses: exchanges that gateways counted as not, or not completely, published.
        mismatches: requests that the worker wrote differently from the gateway.
        seconds: by part of the run.
        journal_left: bytes of the journal at the end.
        stuck: the reason why the worker did not finish; "" if it did.
    """

    kills: int = 0
    outages: int = 0
    losses: Counter = field(default_factory=Counter)
    mismatches: float = 0
    seconds: dict[str, float] = field(default_factory=dict)
    journal_left: int = 0
    stuck: str = ""


def judge(options, load, counted, samples):
    """Return the faults of a run, without those of the topics."""
    found = [*load.wrong]
    if load.done < options.exchanges:
        found.append(f"only {load.done:,} of {options.exchanges:,} exchanges in {options.seconds:,.0f} s")
    if load.invalid:
        found.append(f"{len(load.invalid)} invalid bodies reached the provider")
    if load.refusals:
        found.append(f"{load.refusals:,} refusals that can be healed reached clients")
    # A refusal is forgotten only if the gateway was killed before it had the answer to the healed request.
    if load.refused_again > load.hit:
        found.append(f"{load.refused_again:,} signatures refused again, although only {load.hit:,} exchanges were hit")
    if counted.losses:
        found.append(f"not, or not completely, published: {dict(counted.losses)}")
    if counted.stuck:
        found.append(f"the worker did not finish: {counted.stuck}")
    if counted.mismatches:
        found.append(f"gateway_mismatch is {counted.mismatches:.0f}")
    if counted.journal_left > _MOST_LEFT:
        found.append(f"the journal still has {_mib(counted.journal_left)} at the end")
    memory = growth(samples)
    if memory is not None and memory.last - memory.first > (_MOST_GROWTH_KIB if memory.is_warm else _MOST_FILLING_KIB):
        found.append(f"the memory grew from {memory.first:,.0f} to {memory.last:,.0f} KiB")
    return found


def text(load, counted, samples, topics, wrong):
    """Return the report."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    today, seconds = dt.datetime.now(dt.UTC).date(), counted.seconds
    ends = Counter(run.end for run in topics.runs.values())
    outcomes = {f"{kind} {status}xx": count for (kind, status), count in load.outcomes.items()}
    lines = [
        f"{today}, commit {commit}, Python {platform.python_version()}, {platform.system()}.",
        "",
        f"- exchanges: {load.done:,}, {load.done / seconds['load']:,.0f} a second; their clients saw: {_all(outcomes)}",
        f"- kills: {counted.kills}, during {load.hit:,} exchanges; outages: {counted.outages}",
        f"- refused signatures, which the gateway left out: {load.refused:,}; refused again: {load.refused_again:,}",
        f"- answers in the topics: {len(topics.runs):,}; ends: {_all(ends)}",
        f"- requests: {sum(map(len, topics.asked.values())):,} in the log, {sum(topics.reasons.values()):,} published",
        f"- sessions: {len(topics.asked):,}; gateway_mismatch {counted.mismatches:.0f}",
        f"- requests that the worker cannot compare (docs/serve.md): {len(topics.unjudged):,}",
        f"- of these published with another content: {gateway_topics.unequal(topics, load.exchanges):,}",
        f"- repeated records, which the worker dropped: {_all(topics.repeated) or 'none'}",
        f"- seconds: {', '.join(f'{name} {took:,.0f}' for name, took in seconds.items())}",
        *_memory(samples),
        f"- journal: at most {_mib(max(each.journal for each in samples))}, at the end {_mib(counted.journal_left)}",
        f"- memory of conversations on disk: {_mib(samples[-1].store)}",
        "",
        f"{len(wrong)} faults found." if wrong else "Each exchange is in the topics once and in order.",
        *(f"- {count:,} times: {words:.400}" for words, count in _kinds(wrong)),
    ]
    return "\n".join(lines) + "\n"


def _memory(samples):
    for life in dict.fromkeys(each.life for each in samples):
        of_life = [each for each in samples if each.life == life]
        kib = [each.kib for each in of_life]
        yield (
            f"- gateway process {life}: exchanges {of_life[0].done:,} to {of_life[-1].done:,}, resident "
            f"{kib[0]:,} KiB, at most {max(kib):,}, {kib[-1]:,} at the end"
        )
    memory = growth(samples)
    if memory is None:
        yield "- growth of memory: too few samples of the last process"
        return
    warm = f"after the first {WARM:,}" if memory.is_warm else "while its caches fill"
    yield (
        f"- growth of the last process, {memory.exchanges:,} exchanges {warm}: median {memory.first:,.0f} KiB in the "
        f"first quarter, {memory.last:,.0f} in the last; {memory.slope:+,.1f} KiB per 1,000 exchanges"
    )


def _kinds(wrong):
    """Return an example of each kind of fault, with how many there are, the most frequent first."""
    kinds = Counter(_NAMES.sub("", words) for words in wrong)
    examples = {_NAMES.sub("", words): words for words in reversed(wrong)}
    return [(examples[kind], count) for kind, count in kinds.most_common(_SHOWN)]


def _all(counts):
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))


def _mib(size):
    return f"{size / 2**20:,.1f} MiB"
