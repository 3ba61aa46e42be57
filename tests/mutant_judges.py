"""Who judges mutants: the tests that execute the lines of each one, found by running all of them once."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What tests the edge, or texts and layouts, says nothing about these packages that others do not say sooner.
JUDGES = ("tests/unit", "tests/conformance", "tests/property", "tests/corpus")
NO_JUDGES = (
    *("test_cli", "test_compare", "test_config", "test_demo", "test_docs", "test_engine", "test_house", "test_readme"),
    *("test_explain", "test_public_name", "test_sdk_types", "test_text", "test_topics", "test_upstream"),
)
# Of one function with more cases than that, about so many are judges.
MOST_CASES = 200
EXAMPLES, ALL_EXAMPLES = 25, 1000
OPTIONS = ["-q", "-p", "no:cacheprovider", "--tb=no", "--assert=plain", "-o", "addopts=--import-mode=importlib"]

Loop = Callable[[list[Any]], None]
Fail = Callable[[str], None]


@dataclass
class Map:
    """How long each test took, and for each line of a file which of them execute it: the bits of a number.

    The first test is the lowest bit.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, int]] = field(default_factory=dict)

    def of(self, path: str, executed: range | None) -> list[str]:
        """The tests that execute these lines, or anything of the module or its folder, in the order to run them."""
        lines = self.lines.get(path, {})
        bits = 0
        if executed is not None:
            for line in executed:
                bits |= lines.get(line, 0)
        else:
            folder = str(Path(path).parent)
            near = [lines] if lines else [found for other, found in self.lines.items() if other.startswith(folder)]
            bits = functools.reduce(int.__or__, (line for found in near for line in found.values()), 0)
        kinds: dict[str, list[str]] = defaultdict(list)
        for name in [name for at, name in enumerate(self.seconds) if bits >> at & 1]:
            kinds[name.partition("[")[0]].append(name)
        turns = [
            ((self.seconds[name] + 0.01) * (turn + 1), name)
            for names in kinds.values()
            for turn, name in enumerate(sorted(names, key=self.seconds.__getitem__))
        ]
        return [name for _, name in sorted(turns)]


def draw_map(file: Path, packages: Iterable[str]) -> None:
    """Run every judge once, properties with few examples, and keep what of these packages each one executes."""
    import coverage
    from coverage.numbits import numbits_to_nums

    data = file.with_suffix(".coverage")
    data.unlink(missing_ok=True)
    places = [place for name in packages for place in (f"{ROOT}/{name}", f"{ROOT}/{name}/**")]
    cover = coverage.Coverage(str(data), include=places, config_file=False)
    seconds: dict[str, float] = {}

    def loop(items: list[Any]) -> None:
        cover.start()
        for item, after in zip(items, [*items[1:], None], strict=True):
            cover.switch_context(item.nodeid)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            # Tracing makes it slower about as much as a property with few examples is quicker.
            seconds[item.nodeid] = time.process_time() - began
        cover.stop()

    unfit: list[str] = []
    run_tests(judges(), Plugin(None, loop, unfit.append, examples=EXAMPLES // 3))
    cover.save()
    for name in unfit:
        sys.stdout.write(f"fails without a mutant and judges none: {name}\n")
        seconds.pop(name, None)
    at = {name: number for number, name in enumerate(seconds)}
    lines: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    with contextlib.closing(sqlite3.connect(data)) as database:  # the schema is documented; test by test takes minutes
        rows = database.execute(
            "select path, context, numbits from line_bits"
            " join file on file.id = file_id join context on context.id = context_id"
        )
        for path, name, numbits in rows:
            if name in at:
                of_file = lines[str(Path(path).relative_to(ROOT))]
                for line in numbits_to_nums(numbits):
                    of_file[line] |= 1 << at[name]
    file.write_bytes(pickle.dumps((seconds, {path: dict(of_file) for path, of_file in lines.items()})))


def read_map(file: Path) -> Map:
    """What ``draw_map`` has kept."""
    return Map(*pickle.loads(file.read_bytes()))  # noqa: S301  written by this program


def judges() -> list[str]:
    """The files of tests that may judge."""
    files = [file for folder in JUDGES for file in sorted((ROOT / folder).glob("test_*.py"))]
    return [str(file.relative_to(ROOT)) for file in files if not file.name.startswith(NO_JUDGES)]


# -- running tests --------------------------------------------------------------------------------------------------


class Plugin:
    """Runs what ``loop`` makes of the collected tests, and tells which of them fail."""

    def __init__(self, wanted: Container[str] | None, loop: Loop, fail: Fail, examples: int = EXAMPLES) -> None:
        self.wanted, self.loop, self.fail, self.examples = wanted, loop, fail, examples

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.wanted is None:
            cases = Counter(item.nodeid.partition("[")[0] for item in items)
            chance = random.Random(0)  # noqa: S311  the same cases in every run
            items[:] = [item for item in items if chance.random() * cases[item.nodeid.partition("[")[0]] < MOST_CASES]
        else:
            items[:] = [item for item in items if item.nodeid in self.wanted]
        for item in items:
            fewer_examples(getattr(item, "function", None), self.examples)

    def pytest_runtestloop(self, session: Any) -> bool:
        if session.testsfailed:
            self.fail("collection")
        self.loop(session.items)
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid)


def fewer_examples(function: Any, most: int) -> None:
    """Let a property try a few examples, and none that are smaller."""
    from hypothesis import Phase, settings

    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is not None:
        function._hypothesis_internal_use_settings = settings(
            own, max_examples=min(own.max_examples, most), phases=[Phase.explicit, Phase.generate]
        )


def run_tests(files: Iterable[str], plugin: Plugin) -> None:
    """Collect files, and run of what is in them what the plugin wants."""
    import pytest

    code = pytest.main([*OPTIONS, *files], plugins=[plugin])
    if code:
        plugin.fail(f"pytest: {code!r}")


def one_by_one(items: list[Any]) -> None:
    """Run these tests."""
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
