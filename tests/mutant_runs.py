"""Judge mutants in one process that has collected the tests: each mutant's tests run in a fork of it.

``python mutant_runs.py JOB COVERAGE OUTCOMES`` runs in the folder of the mutated code. JOB is a file of JSON with
``options`` and ``tests`` for pytest, and the names of ``mutants``. COVERAGE has the functions that each test runs, and
its duration; if the file does not exist, all tests run once, to make it. A line of JSON is appended to OUTCOMES for
each mutant: its name, and the test that killed it (null if it survived). A run of pytest for each mutant would take
longer to collect its tests than to run them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SURVIVED = None
TIMED_OUT = "timed out"
UNTESTED = "no test"
FAILED = "failed"  # in the coverage: the test fails without a mutant, and judges none
# A mutant can loop for ever, or take all memory. The margins are for a machine with other work.
MARGIN_SECONDS = 30
SLOWER = 10
COVERAGE_SECONDS = 3600
MEMORY_BYTES = 4 << 30
_POLL_SECONDS = 0.02

Coverage = dict[str, tuple[float, list[str]]]


def words(path: str) -> set[str]:
    return set(re.split(r"[\W_]+", path))


def ordered(items: list[pytest.Item], mutant: str) -> list[pytest.Item]:
    """Return tests in the order in which they probably fail.

    The first case of each test function comes before all other cases, and tests of files that are named like the
    module before the others.
    """
    module = words(mutant.rpartition(".")[0]) - {"reknit", "pipeline", "providers"}
    seen: set[tuple[Path, str]] = set()
    ranked = []
    for place, item in enumerate(items):
        function = (item.path, item.name.partition("[")[0])
        ranked.append((function in seen, -len(module & words(item.path.stem)), place))
        seen.add(function)
    return [items[place] for *_, place in sorted(ranked)]


def run_each(items: list[pytest.Item], ended: Callable[[pytest.Item, float, bool], bool]) -> None:
    """Run tests, and report the end of each with its seconds and whether it failed, until ``ended`` returns True."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        start, failed = time.monotonic(), item.session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if ended(item, time.monotonic() - start, item.session.testsfailed > failed):
            return


def in_fork(seconds: float, run: Callable[[], str]) -> str | None:
    """Return the result of a function in a child process, None if the child was ended before."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        limit = int(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        with os.fdopen(writing, "w") as pipe:
            pipe.write(run() + "\n")
        os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)
    end, found = time.monotonic() + 4 * seconds, b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while not os.waitpid(child, os.WNOHANG)[0]:
            found += pipe.read() or b""
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        found += pipe.read() or b""
    return found[:-1].decode() if found.endswith(b"\n") else None


def first_failure(items: list[pytest.Item], mutant: str) -> str:
    """Return the id of the first test that fails with a mutant, or nothing."""
    os.environ["MUTANT_UNDER_TEST"] = mutant
    failures: list[str] = []

    def ended(item: pytest.Item, _seconds: float, failed: bool) -> bool:  # noqa: FBT001  a callback
        failures.extend([item.nodeid] * failed)
        return failed

    run_each(items, ended)
    return "".join(failures)


def coverage(items: list[pytest.Item]) -> str:
    """Run all tests without a mutant; return as JSON the seconds of each and the functions that it runs."""
    from mutmut.mutation import trampoline

    os.environ["MUTANT_UNDER_TEST"] = "stats"
    ran: set[str] = set()
    trampoline.record_trampoline_hit = lambda name, caller=None: ran.add(name)
    found: Coverage = {}

    def ended(item: pytest.Item, seconds: float, failed: bool) -> bool:  # noqa: FBT001  a callback
        found[item.nodeid] = (seconds, [FAILED] if failed else sorted(ran))
        ran.clear()
        return False

    run_each(items, ended)
    return json.dumps(found)


class Judge:
    """A plugin that runs mutants in the place of tests."""

    def __init__(self, mutants: list[str], covered: Path, outcomes: Path) -> None:
        self.mutants = mutants
        self.covered = covered
        self.outcomes = outcomes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not self.covered.exists():
            found = in_fork(COVERAGE_SECONDS, lambda: coverage(session.items))
            if found is None:
                raise pytest.UsageError("the tests did not end without a mutant")
            self.covered.write_text(found, encoding="utf-8")
        covered: Coverage = json.loads(self.covered.read_text(encoding="utf-8"))
        for mutant in self.mutants:
            outcome = judged(session.items, mutant, covered)
            with self.outcomes.open("a", encoding="utf-8") as file:
                file.write(json.dumps([mutant, outcome]) + "\n")
        return True


def judged(items: list[pytest.Item], mutant: str, covered: Coverage) -> str | None:
    function = mutant.partition("__mutmut_")[0]
    running = [item for item in items if function in covered.get(item.nodeid, (0.0, []))[1]]
    if not running:
        return UNTESTED
    seconds = MARGIN_SECONDS + SLOWER * sum(covered[item.nodeid][0] for item in running)
    failure = in_fork(seconds, lambda: first_failure(ordered(running, mutant), mutant))
    return TIMED_OUT if failure is None else failure or SURVIVED


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return pytest.main(
        [*job["options"], *job["tests"]], plugins=[Judge(job["mutants"], Path(sys.argv[2]), Path(sys.argv[3]))]
    )


if __name__ == "__main__":
    sys.exit(main())
