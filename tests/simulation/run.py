"""Run seeded fault schedules of the engine: ``make simulate ARGS="--seeds 10000"``.

The first failure is shrunk and printed, and the exit code is 1. ``--show PLAN`` prints the report of a stored plan.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.jobs import JOBS
from simulation.plans import dump, load, plan_of
from simulation.report import report
from simulation.shrink import Shrinker
from simulation.world import run

# Each line is a plan that failed once, in its shrunk form.
STORED = Path(__file__).with_name("stored.jsonl")
# Every fifth schedule has at-least-once delivery.
AT_LEAST_ONCE_EVERY = 5
# Every sixth has the real stages, which take more time for each schedule. Two of twelve have a fault of the input.
SESSIONS_EVERY = 6
JOBS_OF_TWELVE = {0: "recreated", 6: "expired"}


def plans(first, count, delivery="both", job="both"):
    """Return the plans of consecutive seeds. ``first`` is a number or a prefix of seeds, such as a commit's id."""
    for number in range(count):
        seed = first + number if isinstance(first, int) else f"{first}-{number}"
        exactly_once = delivery == "exactly-once" or (delivery == "both" and number % AT_LEAST_ONCE_EVERY != 0)
        drawn = _job_of(number) if job == "both" else job
        # A record whose result was published and whose count was not, and that is then removed, is counted nowhere.
        yield plan_of(seed, exactly_once=exactly_once or drawn == "expired", job=drawn)


def _job_of(number):
    if number % SESSIONS_EVERY == SESSIONS_EVERY - 1:
        return "sessions"
    return JOBS_OF_TWELVE.get(number % 12, "counting")


def stored():
    return [load(line) for line in STORED.read_bytes().splitlines() if line]


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of schedules")
    parser.add_argument("--first", default="0", help="the first seed, or a prefix of all seeds")
    parser.add_argument("--delivery", choices=["both", "exactly-once", "at-least-once"], default="both")
    parser.add_argument("--job", choices=["both", *JOBS], default="both", help="the work of the stages")
    parser.add_argument("--digest", action="store_true", help="print a digest of each schedule")
    failures = parser.add_mutually_exclusive_group()
    failures.add_argument("--keep-going", action="store_true", help="only count failures")
    failures.add_argument("--no-shrink", action="store_true", help="end at the first failure, and do not shrink it")
    parser.add_argument("--show", type=Path, help="print the report of a plan in a file")
    return parser.parse_args()


def fail(plan, violation):
    say(f"seed {plan.seed}: {violation}; shrinking")
    shrinker = Shrinker(plan, violation.rule)
    for line in report(shrinker.shrink()):
        say(line)
    say(f"seed {plan.seed} failed; add the line after `plan:` to {STORED.name}")


def main():
    given = options()
    if given.show:
        say("\n".join(report(load(given.show.read_bytes()))))
        return 0
    first = int(given.first) if given.first.isdecimal() else given.first
    happened, failures, began = Counter(), 0, time.process_time()
    for plan in [*stored(), *plans(first, given.seeds, given.delivery, given.job)]:
        finished, violation = run(plan)
        happened.update(finished.happened)
        if given.digest:
            say(plan.seed, finished.digest)
        if violation is not None:
            failures += 1
            if given.keep_going or given.no_shrink:
                say(f"seed {plan.seed}: {violation}: {dump(plan.faults).decode()}")
            else:
                fail(plan, violation)
            if not given.keep_going:
                return 1
    seconds = time.process_time() - began
    say(f"{given.seeds} schedules, {failures} failed, {given.seeds / seconds * 60:.0f} per minute of processor time")
    say("; ".join(f"{name}: {count}" for name, count in sorted(happened.items(), key=str)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
