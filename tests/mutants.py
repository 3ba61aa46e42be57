"""Change the code in small ways and see whether a test notices: what survives is a promise that nothing holds.

    python tests/mutants.py --sample 1000 --seed 1 --out build/mutants.jsonl [--only PATH]
    python tests/mutants.py --again build/mutants.jsonl --out build/again.jsonl     # what survived, by all its tests

The sample is drawn from all places in ``PACKAGES``. First every test runs once under coverage (the map is kept beside
the results; delete it when tests have changed), so that a mutant is judged by the tests that execute its lines, the
quickest first, and no more of them than take ``--budget`` seconds. Mutants live in memory alone: a change inside a
function is made to the living function in a fork of a process that has collected the tests; any other is imported by a
fork that has imported no module of ours yet. Tests that start programs of their own do not see them. Hypothesis makes
fewer examples, and looks for no smaller ones. A mutant that hangs is a killed one.

Results are written as they come, one JSON object a line, and a run that is begun again goes on behind them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import importlib.abc
import importlib.util
import json
import math
import os
import random
import resource
import select
import signal
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from mutant_judges import (  # noqa: E402  found by now
    ALL_EXAMPLES,
    EXAMPLES,
    ROOT,
    Fail,
    Map,
    Plugin,
    draw_map,
    judges,
    one_by_one,
    read_map,
    run_tests,
)
from mutant_sites import sites  # noqa: E402  as above

PACKAGES = ("pipeline/history", "pipeline/session", "pipeline/streams/recovery", "pipeline/rules")
# Files whose tests judge what a fresh import changes: each one is collected anew.
MOST_FILES = 12
# Seconds of the processor that a mutant has beyond three times those of its tests, and seconds of the clock.
SLACK, SLACK_OF_IMPORT, MOST_SECONDS = 5, 30, 240
MEMORY = 4 << 30
KILLED, SURVIVED, HUNG, UNTESTED = "killed", "survived", "hung", "untested"
# No living function has the code that a mutant changes: it is imported then.
ELSEWHERE = "elsewhere"


class ElsewhereError(Exception):
    """A change can only be imported."""


@dataclass(frozen=True)
class Mutant:
    """A place in a module, by its number there."""

    path: str
    number: int
    line: int
    first: int
    last: int
    label: str
    inside: bool

    def code(self) -> types.CodeType:
        """The module with the change."""
        tree = ast.parse((ROOT / self.path).read_bytes())
        next(site for number, site in enumerate(sites(tree)) if number == self.number).apply()
        return compile(ast.fix_missing_locations(tree), str(ROOT / self.path), "exec", dont_inherit=True)


def population(only: Iterable[str]) -> list[Mutant]:
    """All mutants there are below these paths."""
    places = [ROOT / path for path in only]
    files = sorted({file for path in places for file in (path.rglob("*.py") if path.is_dir() else [path])})
    return [
        Mutant(str(file.relative_to(ROOT)), number, site.line, site.first, site.last, site.label, site.inside)
        for file in files
        for number, site in enumerate(sites(ast.parse(file.read_bytes())))
    ]


Run = Callable[[Mutant, list[str], Fail], None]


# -- judging --------------------------------------------------------------------------------------------------------


@dataclass
class Court:
    """What judges mutants: the map, the budget in seconds of each one, and the file for results."""

    map: Map
    budget: float
    out: Path
    thorough: bool = False

    def judges(self, mutant: Mutant) -> tuple[list[str], float]:
        """The tests for a mutant, and how long they take without it."""
        names: list[str] = []
        files: set[str] = set()
        left = math.inf if self.thorough else self.budget
        for name in self.map.of(mutant.path, range(mutant.first, mutant.last + 1) if mutant.inside else None):
            file, seconds = name.partition("::")[0], self.map.seconds[name]
            many = not (mutant.inside or self.thorough or file in files or len(files) < MOST_FILES)
            if seconds <= left and not many:
                names.append(name)
                files.add(file)
                left -= seconds
        return names, sum(self.map.seconds[name] for name in names)

    def judge(self, mutant: Mutant, run: Run) -> None:
        """Let a fork run the tests of a mutant, and write what came of it."""
        names, seconds = self.judges(mutant)
        began = time.monotonic()
        outcome, by = (UNTESTED, "") if not names else self._fork(mutant, names, seconds, run)
        told = vars(mutant) | {"outcome": outcome, "by": by, "tests": len(names)}
        with self.out.open("a") as out:
            out.write(json.dumps(told | {"seconds": round(time.monotonic() - began, 2)}) + "\n")

    def _fork(self, mutant: Mutant, names: list[str], seconds: float, run: Run) -> tuple[str, str]:
        end, begin = os.pipe()
        child = os.fork()
        if not child:
            limit = int(SLACK + 3 * seconds + (SLACK_OF_IMPORT if self.thorough or not mutant.inside else 0))
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (1, 2):
                os.dup2(nowhere, stream)

            def fail(name: str) -> None:
                os.write(begin, f"killed {name}".encode())
                os._exit(1)

            try:
                run(mutant, names, fail)
                os.write(begin, b"survived ")
            except ElsewhereError:
                os.write(begin, ELSEWHERE.encode())
            except BaseException as error:  # noqa: BLE001  whatever it is, the mutant brought it
                fail(repr(error)[:200])
            os._exit(0)
        os.close(begin)
        # Either it tells something, or the processor time it may take is over, or it sleeps.
        ready, _, _ = select.select([end], [], [], MOST_SECONDS * (4 if self.thorough else 1))
        told = os.read(end, 4096).decode() if ready else ""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(end)
        outcome, _, by = told.partition(" ")
        return outcome or HUNG, by


def judge_inside(court: Court, mutants: list[Mutant]) -> None:
    """Judge changes inside functions, each in a fork of a process that has collected all tests."""

    def loop(items: list[Any]) -> None:
        known = {item.nodeid: item for item in items}
        living: dict[str, list[types.FunctionType]] = defaultdict(list)
        caches: list[Any] = []
        for one in gc.get_objects():
            if isinstance(one, types.FunctionType):
                living[one.__code__.co_filename].append(one)
            elif isinstance(one, functools._lru_cache_wrapper) and (one.__module__ or "").startswith("pipeline."):
                caches.append(one)
        gc.freeze()

        def run(mutant: Mutant, names: list[str], fail: Fail) -> None:
            plugin.fail = fail
            for one in caches:
                one.cache_clear()
            if not exchange(mutant, living[str(ROOT / mutant.path)]):
                raise ElsewhereError
            one_by_one([known[name] for name in names if name in known])

        for mutant in mutants:
            court.judge(mutant, run)

    plugin = Plugin(court.map.seconds, loop, lambda name: say("fails without a mutant:", name))
    run_tests(judges(), plugin)


def exchange(mutant: Mutant, living: Iterable[types.FunctionType]) -> bool:
    """Give the living functions of a module the code of its mutant; whether any could be given it."""
    codes: dict[tuple[str, int], list[types.CodeType]] = defaultdict(list)
    for code in nested(mutant.code()):
        codes[code.co_qualname, code.co_firstlineno].append(code)
    changed = False
    for one in living:
        new = codes[one.__code__.co_qualname, one.__code__.co_firstlineno]
        if len(new) == 1 and new[0] != one.__code__:
            one.__code__, changed = new[0], True
    return changed


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code and all codes within it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from nested(one)


class Importer(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module as its mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self.code, self.path = mutant.code(), str(ROOT / mutant.path)
        self.name = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        folder = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=folder
        )

    def get_source(self, fullname: str) -> str:
        return Path(self.path).read_text()

    def get_code(self, fullname: str) -> types.CodeType:
        return self.code


def judge_import(court: Court, mutants: list[Mutant]) -> None:
    """Judge any change, each by a fork that imports everything anew."""

    def run(mutant: Mutant, names: list[str], fail: Fail) -> None:
        sys.meta_path.insert(0, Importer(mutant))
        files = sorted({name.partition("::")[0] for name in names})
        run_tests(files, Plugin(set(names), one_by_one, fail, ALL_EXAMPLES if court.thorough else EXAMPLES))

    for mutant in mutants:
        court.judge(mutant, run)


def in_fork(work: Callable[[], None]) -> None:
    """Do something in a process of its own, so that what it imports does not stay."""
    child = os.fork()
    if not child:
        work()
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(os.waitstatus_to_exitcode(status))


def preload() -> None:
    """Import what is not ours once."""
    for name in (
        "pytest",
        "hypothesis",
        "hypothesis.strategies",
        "msgspec",
        "faust",
        "jsonschema",
        "yaml",
        "cramjam",
        "anthropic",
        "openai",
        "google.genai",
        "botocore.session",
        "prometheus_client",
        "structlog",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    """Draw, judge, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of tests for a mutant")
    parser.add_argument("--only", action="append", help="a file or folder; several may be named")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--again", type=Path, help="results whose survivors are judged by every test")
    given = parser.parse_args()
    os.chdir(ROOT)
    given.out = given.out.resolve()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    preload()
    map_file = (given.again or given.out).with_suffix(".map")
    if not map_file.exists():
        in_fork(lambda: draw_map(map_file, given.only or PACKAGES))
    found = read_map(map_file)
    there = population(given.only or PACKAGES)
    drawn = random.Random(given.seed).sample(there, min(given.sample, len(there)))  # noqa: S311  a seeded sample
    if given.again:
        again = {(one["path"], one["number"]) for one in results(given.again) if one["outcome"] == SURVIVED}
        drawn = [mutant for mutant in there if (mutant.path, mutant.number) in again]
    court = Court(found, given.budget, given.out, thorough=given.again is not None)
    done = finished(given.out)
    left = [mutant for mutant in drawn if (mutant.path, mutant.number) not in done]
    inside = [mutant for mutant in left if mutant.inside and not given.again]
    in_fork(lambda: judge_inside(court, inside))
    done = finished(given.out)
    judge_import(court, [mutant for mutant in left if (mutant.path, mutant.number) not in done])
    tell(results(given.out), len(there))


def say(*words: str) -> None:
    """Write a line of the report."""
    sys.stdout.write(" ".join(words) + "\n")


def results(file: Path) -> list[dict[str, Any]]:
    """What was written so far; of one mutant, the last."""
    lines = file.read_text().splitlines() if file.exists() else []
    return list({(one["path"], one["number"]): one for one in map(json.loads, lines)}.values())


def finished(file: Path) -> set[tuple[str, int]]:
    """The mutants of which it is known what becomes of them."""
    return {(one["path"], one["number"]) for one in results(file) if one["outcome"] != ELSEWHERE}


def tell(found: list[dict[str, Any]], there: int) -> None:
    """Print the table, and what survived."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        package = next(name for name in (*PACKAGES, "") if one["path"].startswith(name))
        table[package][one["outcome"]] += 1
    say(f"{len(found)} of {there} mutants")
    for package, counts in sorted(table.items()):
        outcomes = [f"{name} {counts[name]}" for name in (KILLED, HUNG, SURVIVED, UNTESTED)]
        say(f"  {package or 'elsewhere':28}", "  ".join(outcomes))
    for one in sorted(found, key=lambda one: (one["path"], one["line"])):
        if one["outcome"] in {SURVIVED, UNTESTED}:
            say(f"{one['path']}:{one['line']}: {one['outcome']}: {one['label']}")


if __name__ == "__main__":
    main()
