"""The promise that every block is accounted for, checked on the outcome alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.history.pieces import Entry, block_path
from pipeline.model import Turn
from pipeline.session import Normalized
from pipeline.testing.breach import ConformanceError, lists_differ


def input_paths(turns: Sequence[Turn]) -> list[str]:
    return [block_path(turn, at) for turn in turns for at in range(len(turn.blocks))]


def check_ledger(done: Normalized, turns: Sequence[Turn], shown: int | None) -> None:
    """Each block of ``turns`` has one fate, each fate its fix, and each of ``shown`` output blocks a line.

    Raises:
        ConformanceError: what is not accounted for.
    """
    own = [entry for entry in done.ledger if entry.path and not _is_inner(entry.path)]
    differs = lists_differ((entry.path for entry in own), input_paths(turns))
    if differs:
        raise ConformanceError("accounted", done.target, "ledger", f"lines against input blocks: {differs}")
    # What is only observed has changed nothing, so it accounts for nothing.
    fixes = frozenset((fix.code, fix.path) for fix in done.fixes if not fix.observed)
    for entry in done.ledger:
        for fault in _faults(entry, fixes):
            raise ConformanceError("accounted", done.target, entry.path or entry.output, fault)
    if shown is None or done.body is None:
        return
    outputs = {entry.output for entry in done.ledger if entry.output not in {"", "system"}}
    if len(outputs) != shown:
        raise ConformanceError(
            "accounted", done.target, "body", f"{shown} blocks, but {len(outputs)} have a line in the ledger"
        )


def check_marks(done: Normalized, messages: Sequence[Any], pattern: str) -> None:
    """What ``pattern`` finds in a block is in the body as well, or a fix names the block.

    Raises:
        ConformanceError: the first block that lost a mark without a fix.
    """
    if done.body is None:
        return
    left = set(re.findall(pattern, done.body.decode()))
    named = {fix.path for fix in done.fixes if not fix.observed}
    for at, message in enumerate(messages):
        content = message.get("content")
        for place, block in enumerate(content if isinstance(content, list) else ()):
            path = f"messages.{at}.content.{place}"
            lost = set(re.findall(pattern, json.dumps(block))) - left
            if lost and path not in named:
                raise ConformanceError("accounted", done.target, path, f"lost {', '.join(sorted(lost))} without a fix")


def _is_inner(path: str) -> bool:
    """Whether a path leads into a block: ``messages.2.content.0.content.1``, ``messages.2.content.0.cache_control``."""
    return ".content." in path.partition(".content")[2] or path.endswith(".cache_control")


def _faults(entry: Entry, fixes: frozenset[tuple[str, str]]) -> Iterator[str]:
    if (entry.fate == "kept") != (entry.code == ""):
        yield f"fate {entry.fate!r} with code {entry.code!r}"
    if (entry.fate == "dropped") != (entry.output == ""):
        yield f"fate {entry.fate!r} with output {entry.output!r}"
    # What was synthesised may give way to what came later: then it is dropped, and has no place in the input either.
    if entry.path == "" and entry.fate not in {"synthesised", "dropped"}:
        yield f"fate {entry.fate!r} without a place in the input"
    if entry.fate == "synthesised" and entry.path:
        yield f"synthesised, but from {entry.path}"
    if entry.fate == "synthesised" and not any(code == entry.code for code, _ in fixes):
        yield f"synthesised by {entry.code!r}, of which there is no fix"
    if entry.fate not in {"kept", "synthesised"} and not _is_named(entry, fixes):
        yield f"{entry.fate} by {entry.code!r}, but no fix names it"


def _is_named(entry: Entry, fixes: frozenset[tuple[str, str]]) -> bool:
    # Reading names the very field that it mended; a block out of a result is named by the result's fix.
    return (entry.code, entry.path) in fixes or any(
        code == entry.code and _related(path, entry.path) for code, path in fixes
    )


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
