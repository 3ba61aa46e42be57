"""The commands that need no broker: normalize, validate, recover, test, explain."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click
import msgspec
from msgspec import UNSET, Struct, UnsetType

from reknit import pipeline
from reknit.pipeline.cli import (
    Exit,
    colour_mode,
    describe,
    fail,
    read_input,
    say,
    stdin,
    worst,
    write_bytes,
    write_json,
)
from reknit.pipeline.cli.output import (
    ShownFixes,
    diff_text,
    show_fixes,
    show_violations,
    violation_line,
)
from reknit.pipeline.errors import InputError, PolicyError, ReknitError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.readers.shapes import SHAPES
from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.registry import SOURCES, TARGETS, find_source, target_named
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import Normalized
from reknit.pipeline.session.arguments import POLICY_OPTIONS, tools_from
from reknit.pipeline.session.scaled import Scale
from reknit.pipeline.streams.recovery.diagnosis import END_OF_INPUT
from reknit.pipeline.streams.recovery.likely import LOOKED_AT_BYTES, likely_source
from reknit.pipeline.streams.session import Recovery
from reknit.pipeline.targets.wrapped_tools import wrapped_tools
from reknit.topics.items import AgentUnrecognized

if TYPE_CHECKING:
    from reknit.pipeline.testing import CaseResult

FILE = click.argument("file", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
# Most bytes of one read.
_PIECE = 1 << 16
QUIET = click.option("-q", "--quiet", is_flag=True, help="Print no fixes and violations on stderr.")
LINES = click.option("--lines", is_flag=True, help="Read and write one document per line.")


# Choices of options.
TARGET_NAMES = ", ".join(sorted(TARGETS))
SOURCE_NAMES = ", ".join(sorted(SOURCES))
_POLICIES = "; ".join(
    [f"{name}={' or '.join(words) or 'VALUE'}" for name, words in POLICY_OPTIONS.items() if name != "mend"]
    + ["mend.CODE or mend.TARGET.CODE=on or observe"]
)


Form: TypeAlias = Literal["body", "report", "diff"]
"""What ``normalize`` prints for a history."""


@click.command("normalize")
@click.option(
    "--to", "target", default="anthropic", show_default=True, help=f"The target of the request: {TARGET_NAMES}."
)
@click.option(
    "--from", "shape", default="auto", show_default=True, help=f"The history's shape: auto, {', '.join(SHAPES)}."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="K=V",
    help=f"A choice between repairs: {_POLICIES}.",
)
@click.option("--model", help="The model, instead of the document's.")
@click.option(
    "--report", "--json", "report", is_flag=True, help="Print request, fixes and violations as one JSON object."
)
@click.option("--diff", is_flag=True, help="Print the difference between history and request, instead of the request.")
@QUIET
@LINES
@FILE
def normalize_command(
    target: str,
    shape: str,
    policies: Sequence[str],
    model: str | None,
    report: bool,
    diff: bool,
    quiet: bool,
    lines: bool,
    file: str,
) -> None:
    """Mend a history into a request that the target accepts.

    Reads {"messages": [...], "system"?, "tools"?, "model"?, "params"?}, a bare list or a transcript, and prints the
    request body. Each fix is a line on stderr: its place, the content before and after, and the provider's error that
    it avoids.
    """
    form: Form = "report" if report else "diff" if diff else "body"
    if diff and (report or lines):
        raise click.UsageError("--diff excludes --report and --lines")
    try:
        policy = _policy(policies)
        documents = _documents(read_input(file), lines=lines)
        scale = _scale() if policy.get("media") == "shrink" else None
        settled = partial(pipeline.normalize, to=target, source=shape, policy=policy, model=model, scale=scale)
        shown = None if quiet or report else ShownFixes()
        codes = [
            _normalize_one(settled, document, form=form, shown=shown, line=number if lines else None)
            for number, document in enumerate(documents, start=1)
        ]
        if shown is not None:
            shown.show_total()
    except ReknitError as error:
        fail(error)
    raise SystemExit(int(worst(codes)))


def _scale() -> Scale | None:
    from reknit.pipeline.scaling import scale_if_installed

    return scale_if_installed()


def _normalize_one(
    normalized: Callable[[bytes], Normalized],
    document: bytes,
    *,
    form: Form,
    shown: ShownFixes | None,
    line: int | None,
) -> Exit:
    """Print the result for one document, which is a whole input or has the number of its line."""
    before = "" if line is None else f"{line}: "
    try:
        done = normalized(document)
    except InputError as error:
        if line is None:
            raise
        # Every input line has its output line, so that both can be compared line by line.
        write_json(Report(error=describe(error)) if form == "report" else None)
        say(f"{before}reknit: {error}")
        return Exit.UNUSABLE
    if form == "report":
        write_json(reported(done))
    elif done.body is None:
        if line is not None:
            write_json(None)
    elif form == "body":
        write_bytes(done.body if done.body.endswith(b"\n") else done.body + b"\n")
    else:
        write_bytes(diff_text(document, done).encode())
    if shown is not None:
        show_violations(done.violations, before=before)
        shown.show_request(done, document, before=before)
    if done.body is None:
        return Exit.REJECTED
    return Exit.MENDED if done.fix_count else Exit.CLEAN


class Report(Struct, frozen=True):
    """The result for a history. ``request`` is a JSON object; for targets that take a text, it is that text."""

    request: msgspec.Raw | str | None = None
    fixes: list[Fix] = []
    violations: list[Violation] = []
    error: dict[str, str] | UnsetType = UNSET


def reported(done: Normalized) -> Report:
    text = TARGETS[done.target].is_text
    request = None if done.body is None else done.body.decode() if text else msgspec.Raw(done.body)
    return Report(request, done.fixes, done.violations)


def _documents(data: bytes, *, lines: bool) -> list[bytes]:
    if not lines:
        return [data]
    return [line for line in data.split(b"\n") if line.strip()]


def _policy(pairs: Sequence[str]) -> dict[str, str]:
    policy = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise PolicyError("policy_syntax", f"--policy takes NAME=VALUE, not {pair!r}")
        # Names of targets contain dashes.
        inside, dot, option = name.strip().rpartition(".")
        policy[inside + dot + option.replace("-", "_")] = value.strip()
    return policy


@click.command("validate")
@click.option(
    "--target", default="anthropic", show_default=True, help=f"The target whose rules are applied: {TARGET_NAMES}."
)
@click.option("--model", default=None, help="The model, if the body does not name it.")
@click.option("--beta", "betas", multiple=True, help="A value of the request's anthropic-beta header.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on a terminal too.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code has the result.")
@LINES
@FILE
def validate_command(
    target: str, model: str | None, betas: tuple[str, ...], as_json: bool, quiet: bool, lines: bool, file: str
) -> None:
    """Judge a request body by its provider's rules, in the provider's words.

    Prints one violation per line: rule, path, message, severity; with --lines also the number of the input line. On a
    terminal it is a line of text, elsewhere JSON.
    """
    codes = []
    is_text = sys.stdout.isatty() and not as_json
    for number, body in enumerate(_documents(read_input(file), lines=lines), start=1):
        try:
            found = pipeline.validate(body, target=target, model=model, betas=betas)
        except ReknitError as error:
            fail(error)
        codes.append(_judged(body, found, prompt=target_named(target).is_prompt))
        for violation in () if quiet else found:
            record: dict[str, Any] = msgspec.to_builtins(violation)
            if is_text:
                click.echo(f"{number}: " * lines + violation_line(violation), color=colour_mode())
            else:
                write_json({"line": number, **record} if lines else record)
    raise SystemExit(int(worst(codes)))


def _judged(body: bytes, found: Sequence[Violation], *, prompt: bool) -> Exit:
    if not prompt:
        try:
            msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError):
            say("reknit: the body is not a JSON object")
            return Exit.UNUSABLE
    return Exit.REJECTED if any(violation.severity == "hard" for violation in found) else Exit.CLEAN


@click.command("recover")
@click.option(
    "--from",
    "source",
    default="claude-cli",
    show_default=True,
    help=f"The source of the events: {SOURCE_NAMES}.",
)
@click.option("--model", help="The model's name in the items of a source of text only (cascade).")
@click.option(
    "--transcript",
    type=click.Path(exists=True, dir_okay=False),
    help="The run's transcript by gemini-cli or claude-cli. Items that it does not contain are withdrawn.",
)
@click.option(
    "--tools",
    type=click.Path(exists=True, dir_okay=False),
    help="JSON of the tools that Reknit received, or of a document with them. The input of a call to one that "
    "accepts no object is taken out of the member `_raw`.",
)
@QUIET
@FILE
def recover_command(
    source: str, model: str | None, transcript: str | None, tools: str | None, quiet: bool, file: str
) -> None:
    """Turn raw provider events into items, one per line, as they arrive.

    Exits with 3 if an item was promoted, retracted or left incomplete, if text of the source was changed, or if the
    source does not know some of the events. Each fix is a line on stderr. Ctrl-C ends the run: open items are
    left incomplete. Exits with 2 if the source knows none of the events. Empty input has no items and is clean.
    """
    mended = False
    recognised = unrecognised = 0
    recovery_fixes: list[Fix] = []
    begins = bytearray()
    encoder = msgspec.json.Encoder()
    try:
        if transcript is not None and not find_source(source).transcript:
            raise InputError("no_transcript", f"of {source} no transcript is read")
        recovery = Recovery(source)
        recovery.speak(OutputFilters(model=model))
        recovery.unwrap(frozenset() if tools is None else _wrapped_tools(Path(tools)))
        for items in _recovered(recovery, file, transcript, begins):
            recovery.take_finished()
            recovery_fixes += recovery.take_fixes()
            mended = mended or any(_is_mend(item) for item in items)
            unknown = sum(isinstance(item, AgentUnrecognized) for item in items)
            recognised, unrecognised = recognised + len(items) - unknown, unrecognised + unknown
            write_bytes(b"".join(encoder.encode(item) + b"\n" for item in items))
    except ReknitError as error:
        fail(error)
    if not quiet:
        show_fixes(recovery_fixes)
    if unrecognised:
        found = likely_source(bytes(begins), source)
        hint = f"; the input looks like {found}: --from {found}" if found else "; --from names another source"
        if not recognised:
            say(f"reknit: nothing here reads as events of {source}{hint}")
            raise SystemExit(int(Exit.UNUSABLE))
        say(f"reknit: {unrecognised} events are not events of {source} and became agent/unrecognized{hint}")
    raise SystemExit(int(Exit.MENDED if mended or recovery_fixes or unrecognised else Exit.CLEAN))


def _wrapped_tools(file: Path) -> frozenset[str]:
    """The tools in a file that accept no object."""
    try:
        given = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError("not_json", f"the tools are not JSON: {error}", path="tools") from error
    found = given.get("tools", []) if isinstance(given, dict) else given
    if not isinstance(found, list):
        raise InputError("wrong_type", "expected a list of tools, or a document with one", path="tools")
    return wrapped_tools(tools_from(found))


def _recovered(
    recovery: Recovery, file: str, transcript: str | None, begins: bytearray
) -> Iterator[Sequence[msgspec.Struct]]:
    """Yield items as input arrives; ``begins`` gets the first bytes of the input."""
    place = stdin().fileno() if file == "-" else file
    with open(place, "rb", buffering=0, closefd=file != "-") as events, _ctrl_c() as pressed:
        interrupted = False
        while not interrupted:
            ready = _ready(pressed, events.fileno())
            interrupted = pressed in ready
            # Read the available bytes only, since a pipe may still be written; also those from before Ctrl-C.
            data = events.read(_PIECE) if events.fileno() in ready else b""
            if data:
                begins += data[: max(0, LOOKED_AT_BYTES - len(begins))]
                yield recovery.feed(data, framing="bytes")
            elif not interrupted:
                break
        if transcript is not None:
            yield recovery.feed_transcript(Path(transcript).read_bytes())
        yield recovery.end_run("interrupted" if interrupted else END_OF_INPUT)


@contextmanager
def _ctrl_c() -> Iterator[int]:
    """Yield a descriptor that becomes readable on Ctrl-C; -1 if this is not the main thread.

    So Ctrl-C ends the wait for input and interrupts no work. A second Ctrl-C does.
    """
    usual = signal.getsignal(signal.SIGINT)
    if os.name != "posix" or usual is not signal.default_int_handler:
        yield -1
        return
    pressed, woken = os.pipe()
    os.set_blocking(woken, False)
    before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda number, _: signal.signal(number, usual))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, usual)
        signal.set_wakeup_fd(before)
        os.close(pressed)
        os.close(woken)


def _ready(pressed: int, events: int) -> list[int]:
    """Wait for input or Ctrl-C; return the readable descriptors."""
    return [events] if pressed < 0 else select.select([pressed, events], [], [])[0]


def _is_mend(item: Any) -> bool:  # noqa: ANN401  the item union
    promoted = getattr(item, "origin", "stream") == "promoted"
    return promoted or bool(getattr(item, "incomplete", False)) or item.__struct_config__.tag == "item/retracted"


@click.command("test")
@click.option(
    "--load",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="A module that is imported first, to register your targets.",
)
@click.argument("cases", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def test_command(modules: tuple[str, ...], cases: str) -> None:
    """Check histories of your own: CASES.jsonl has one case per line, - is stdin.

    A case is {"name"?, "history" or "messages", "to": target or targets, "from"?, "policy"?, "system"?, "tools"?,
    "model"?, "params"?, "expect"?: body, "fixes"?: [codes], "violations"?: [rules]}. In every case the request must be
    valid, account for every block, need no repair the second time, and be the same turn by turn.

    Prints one line per case and target: name, target, passed, fixes, violations, failures. Exits with 0 if all passed,
    4 if one failed, 2 if one cannot be used.
    """
    try:
        _load(modules)
    except ReknitError as error:
        fail(error)
    lines = enumerate(read_input(cases).split(b"\n"), start=1)
    codes = [code for number, line in lines if line.strip() for code in _run(number, line)]
    count = {code: codes.count(code) for code in (Exit.CLEAN, Exit.REJECTED, Exit.UNUSABLE)}
    say(f"{count[Exit.CLEAN]} passed, {count[Exit.REJECTED]} failed, {count[Exit.UNUSABLE]} cannot be used")
    if not codes:
        say("reknit: there are no cases")
        raise SystemExit(int(Exit.UNUSABLE))
    raise SystemExit(int(worst(codes)))


def _load(modules: tuple[str, ...]) -> None:
    """Import modules by name; the working directory is searched last."""
    if modules:
        sys.path.append("")
    for name in modules:
        try:
            import_module(name)
        except ImportError as error:
            raise InputError("cannot_load", f"module {name!r} cannot be imported: {error}") from error


def _run(number: int, line: bytes) -> Iterator[Exit]:
    from reknit.pipeline.testing import read_case, run_case

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
            yield _print_result(result)


def _print_result(result: CaseResult) -> Exit:
    write_json(result)
    for failure in result.failures:
        place = f" at {failure['where']}" if failure["where"] else ""
        say(f"failed: {result.name} ({result.target}): {failure['promise']}{place}: {failure['what']}")
    return Exit.CLEAN if result.passed else Exit.REJECTED


def _unusable(name: str, target: str, error: ReknitError) -> Exit:
    write_json({"name": name, "target": target, "passed": False, "error": describe(error)})
    say(f"reknit: {name}: {error}")
    return Exit.UNUSABLE


@click.command("explain")
@click.argument("code", required=False)
@click.option("--list", "all_codes", is_flag=True, help="List all codes, as without CODE.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", type=click.Path(file_okay=False), help="Write all pages as Markdown into this directory.")
def explain_command(code: str | None, all_codes: bool, as_json: bool, write: str | None) -> None:
    """Explain a fix or a rule, with an example.

    CODE is a fix code (result_moved) or the id of a rule (ANT-07). Exits with 2 for an unknown code.
    """
    from reknit.pipeline.explain import explain, summaries
    from reknit.pipeline.explain.page_text import listing, plain

    if write is not None:
        _write_pages(Path(write))
        return
    if code is None or all_codes:
        write_json(summaries()) if as_json else write_bytes(listing(summaries()).encode())
        return
    try:
        page = explain(code)
    except InputError as error:
        fail(error)
    write_json(page) if as_json else write_bytes(plain(page).encode())


def _write_pages(directory: Path) -> None:
    """Write the pages, and delete those of targets that no longer exist."""
    pages = all_pages()
    for stale in set((directory / "rules").glob("*.md")) - {directory / place for place in pages}:
        stale.unlink()
    for place, text in pages.items():
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        (directory / place).write_text(text, encoding="utf-8")


def all_pages() -> dict[str, str]:
    """Return the pages to write, by their path under docs/."""
    from reknit.pipeline.cli.config import page  # it imports Kafka clients, which other explanations do not need
    from reknit.pipeline.explain.documents import documents
    from reknit.pipeline.explain.reference import reference_pages

    return {**documents(), "configuration.md": page(), **reference_pages()}
