"""A failed schedule for a reader: the plan, each step with its time and process, the logs, and the broken rule."""

from __future__ import annotations

from simulation.plans import Settings, dump
from simulation.world import run

# Lines of steps before the failure that are shown.
MOST_STEPS = 400


def report(plan):
    """Run a plan and return its report as lines."""
    steps = []
    finished, violation = run(plan, lambda now, words: steps.append(f"{now:9.3f}  {words}"))
    default = Settings()
    settings = {
        name: value
        for name in Settings.__struct_fields__
        if (value := getattr(plan.settings, name)) != getattr(default, name)
    }
    yield f"seed {plan.seed}; settings that are not the simplest: {settings}"
    for fault in plan.faults:
        yield f"fault: {fault}"
    for number, row in enumerate(plan.rows):
        yield f"record {number}: {row.topic} {row.partition} {row.key}={row.value}{' (aborted)' if row.aborted else ''}"
    yield "steps: seconds, process, event"
    if len(steps) > MOST_STEPS:
        yield f"          ({len(steps) - MOST_STEPS} earlier steps are not shown)"
    yield from steps[-MOST_STEPS:]
    yield from contents(finished.logs)
    yield f"plan: {dump(plan).decode()}"
    yield f"broken rule: {violation}" if violation else "no rule is broken"


def contents(logs):
    for (topic, number), log in sorted(logs.items()):
        yield f"log {topic} {number}, last stable offset {log.lso}"
        for entry in log.entries:
            status = "" if entry.piece is None else f"  {entry.piece.status}, producer {entry.piece.pid}"
            value = f"={entry.value[:24]!r}" if entry.value else ""
            what = "marker" if entry.marker else f"{entry.key!r}{value}"
            yield f"  {entry.offset:4d}  {entry.time:9.3f}  {what}{status}"
