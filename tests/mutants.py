"""Find small changes to the core that no test notices: a seeded sample of mutants, run against the tests that cover
them.

``python tests/mutants.py [--sample 200] [--seed 1] [--keep FOLDER] [--group core|streams|engine]`` works with mutmut
on a copy of the last commit. It draws a sample from each group of modules, prints each survivor as a diff, and exits
with 3 if there are any. The first minutes are spent on finding which tests run which function; ``--keep`` keeps that
result and what is judged, so that a later run of the same groups continues from there. A function that no test runs
counts as survived. Tests that count stack frames, or compare functions by identity, cannot run on mutated code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from compare_builds import ROOT, say, unpacked

# Files of each group, those of the first group that matches: a provider's decoder belongs to the streams.
GROUPS = {
    "streams": ("pipeline/streams/*", "pipeline/providers/*/stream*"),
    "core": (
        "pipeline/history/*", "pipeline/session/*", "pipeline/rules/*", "pipeline/targets/*", "pipeline/providers/*",
    ),
    "engine": ("pipeline/engine/*", "pipeline/stages/*"),
}  # fmt: skip
# Tests whose failure kills a mutant of a group, by the second word of their file's name. Other tests, and those that
# take minutes or need an idle machine, only execute the code in passing.
TESTS = {
    "core": {
        "bad", "claude", "converse", "fix", "foreign", "gemini", "history", "ids", "json", "late", "look", "media",
        "mixed", "model", "odd", "openai", "policies", "prefix", "reader", "recovery", "responses", "rules", "second",
        "session", "settings", "state", "switching", "target", "tool", "transcript", "wrapped", "writers",
    },
    "streams": {"bad", "fix", "ids", "recovery", "responses", "stage", "state", "stream", "streams", "wrapped"},
    "engine": {"engine", "stage", "state"},
}  # fmt: skip
SLOW = ("test_rules_text_ends.py", "test_stage_headers.py", "test_engine_run_clock.py")
UNSUITED = "not depth and not every_action_and_every_state"
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:xdist", "-k", UNSUITED]
LEFT_OUT = "left-out.json"  # by function, the tests that mutmut cannot select
_UNSELECTABLE = re.compile(r"""["'\\\[\]]""")
# mutmut's exit codes: all tests passed, no test was found, no test runs the function.
SURVIVED = {0, 5, 33}
TIMED_OUT = {-24, 24, 36, 152, 255}


def prepare(folder: Path, groups: list[str]) -> None:
    """Unpack the last commit and configure there what is mutated and which tests judge it."""
    unpacked("HEAD", folder)
    # mutmut recognises a function by its module, derives the module from the path, and follows no link.
    for package in ("pipeline", "topics"):
        (folder / "reknit" / package).unlink()
        (folder / package).rename(folder / "reknit" / package)
        (folder / package).symlink_to(f"reknit/{package}")
    words = set().union(*(TESTS[group] for group in groups))
    judges = [path for path in sorted((ROOT / "tests/unit").glob("test_*.py")) if path.stem.split("_")[1] in words]
    settings = {
        "source_paths": ["reknit"],
        "only_mutate": [f"reknit/{files}" for group in groups for files in GROUPS[group]],
        "also_copy": ["topics", "pipeline", "docs"],
        "track_dependencies": False,
        "pytest_add_cli_args": OPTIONS,
        "pytest_add_cli_args_test_selection": [
            *(["tests/conformance"] if {"core", "streams"} & set(groups) else []),
            *(str(path.relative_to(ROOT)) for path in judges if path.name not in SLOW),
        ],
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", "[tool.mutmut]", *lines, ""]))


def leave_out_unselectable(folder: Path) -> None:
    """Take tests that pytest cannot select by their names out of the list of those that run a function.

    mutmut selects tests by name. pytest does not find a parameter with a quote, a backslash or a bracket in its name.
    ``survives`` runs them.
    """
    path = folder / "mutants/mutmut-stats.json"
    stats = json.loads(path.read_text(encoding="utf-8"))
    by_function, left_out = stats["tests_by_mangled_function_name"], {}
    for function, tests in by_function.items():
        unselectable = {test for test in tests if _UNSELECTABLE.search(test.partition("[")[2][:-1])}
        by_function[function] = [test for test in tests if test not in unselectable]
        left_out[function] = sorted({test.partition("[")[0] for test in unselectable})
    path.write_text(json.dumps(stats), encoding="utf-8")
    (folder / LEFT_OUT).write_text(json.dumps(left_out), encoding="utf-8")


def survives(folder: Path, name: str) -> bool:
    """Run the tests that mutmut could not select, with all their parameters; return True if they pass too."""
    left_out = json.loads((folder / LEFT_OUT).read_text(encoding="utf-8"))
    tests = left_out.get(name.partition("__mutmut_")[0])
    if not tests:
        return True
    command = [sys.executable, "-m", "pytest", "-x", "-q", *OPTIONS, *tests]
    env = {**os.environ, "REKNIT_CORPUS": "/nowhere", "MUTANT_UNDER_TEST": name, "PY_IGNORE_IMPORTMISMATCH": "1"}
    env["PYTHONPATH"] = str(folder / "mutants")
    return subprocess.run(command, cwd=folder / "mutants", env=env, capture_output=True, check=False).returncode == 0


def mutmut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", *arguments]
    env = {**os.environ, "REKNIT_CORPUS": "/nowhere"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def outcomes(folder: Path) -> dict[str, int | None]:
    """Return the exit code of each mutant's tests, None for those that have not run."""
    found = {}
    for path in sorted((folder / "mutants").rglob("*.meta")):
        found |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def group_of(name: str) -> str:
    """Return the group of the module that has a mutant."""
    path = name.replace(".", "/")
    return next(
        group for group, patterns in GROUPS.items() if any(fnmatch(path, f"reknit/{files}") for files in patterns)
    )


def drawn(names: list[str], group: str, size: int, seed: int) -> list[str]:
    """Return a sample of a group's mutants."""
    own = [name for name in names if group_of(name) == group]
    return random.Random(f"{group} {seed}").sample(own, min(size, len(own)))  # noqa: S311  not a secret


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", choices=GROUPS, help="default: all")
    parser.add_argument("--sample", type=int, default=200, help="mutants of each group")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="work here, and go on from what is there")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="mutants-"))
    groups = given.group or list(GROUPS)
    if not (folder / "mutants").exists():
        prepare(folder, groups)
        # mutmut has no command that only creates the mutants. Asking for a mutant that does not exist ends after
        # creating them.
        made = mutmut(folder, "run", "--max-children", "1", "none")
        if not (folder / "mutants/mutmut-stats.json").exists():
            sys.exit(made.stdout[-2000:] + made.stderr[-2000:])
        leave_out_unselectable(folder)
    names = sorted(outcomes(folder))
    sample = [name for group in groups for name in drawn(names, group, given.sample, given.seed)]
    ran = mutmut(folder, "run", "--max-children", "1", *sample)
    if ran.returncode:
        say(f"mutmut ended with {ran.returncode}: {ran.stderr[-300:]}")
    judged = {name: code for name, code in outcomes(folder).items() if name in set(sample) and code is not None}
    survived = [name for name, code in judged.items() if code in SURVIVED and survives(folder, name)]
    timed_out = sum(code in TIMED_OUT for code in judged.values())
    for name in survived:
        say(mutmut(folder, "show", name).stdout)
    say(f"{len(judged)} of {len(names)} mutants, {len(survived)} survived, {timed_out} timed out (in {folder})")
    return 3 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
