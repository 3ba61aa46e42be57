"""``reknit test``: a team's own histories, checked against what they expect or at least against every promise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module

import click

from pipeline.cli import Exit, describe, fail, read_input, say, worst, write_json
from pipeline.errors import InputError, ReknitError
from pipeline.testing import CaseResult, read_case, run_case


@click.command("test")
@click.option("--load", "modules", multiple=True, metavar="MODULE", help="Import it first: it registers your targets.")
@click.argument("cases", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def test_command(modules: tuple[str, ...], cases: str) -> None:
    """Check histories of your own: CASES.jsonl has one case a line, - is stdin.

    A case is {"name"?, "history" or "messages", "to": target or targets, "from"?, "policy"?, "system"?, "tools"?,
    "model"?, "params"?, "expect"?: body, "fixes"?: [codes], "violations"?: [rules]}. Whatever it expects, the request
    must be valid, account for every block, need no mending the second time, and be the same turn by turn.

    Prints one line a case and target: name, target, passed, fixes, violations, failures. Ends with 0 where all passed,
    4 where one failed, 2 where one cannot be used.
    """
    try:
        _load(modules)
    except ReknitError as error:
        fail(error)
    codes = [code for number, line in _lines(read_input(cases)) for code in _run(number, line)]
    count = {code: codes.count(code) for code in (Exit.CLEAN, Exit.REJECTED, Exit.UNUSABLE)}
    say(f"{count[Exit.CLEAN]} passed, {count[Exit.REJECTED]} failed, {count[Exit.UNUSABLE]} cannot be used")
    if not codes:
        say("reknit: there are no cases")
        raise SystemExit(int(Exit.UNUSABLE))
    raise SystemExit(int(worst(codes)))


def _load(modules: tuple[str, ...]) -> None:
    """Import modules by name; those in the working directory are found as well, behind all others."""
    if modules:
        sys.path.append("")
    for name in modules:
        try:
            import_module(name)
        except ImportError as error:
            raise InputError("cannot_load", f"module {name!r} cannot be imported: {error}") from error


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _run(number: int, line: bytes) -> Iterator[Exit]:
    name = f"line {number}"
    try:
        case = read_case(line)
    except ReknitError as error:
        yield _unusable(name, "", error)
        return
    for target in case.targets:
        try:
            result = run_case(case, target, name)
        except ReknitError as error:
            yield _unusable(case.name or name, target, error)
        else:
            yield _tell_result(result)


def _tell_result(result: CaseResult) -> Exit:
    write_json(result)
    for failure in result.failures:
        place = f" at {failure['where']}" if failure["where"] else ""
        say(f"failed: {result.name} ({result.target}): {failure['promise']}{place}: {failure['what']}")
    return Exit.CLEAN if result.passed else Exit.REJECTED


def _unusable(name: str, target: str, error: ReknitError) -> Exit:
    write_json({"name": name, "target": target, "passed": False, "error": describe(error)})
    say(f"reknit: {name}: {error}")
    return Exit.UNUSABLE
