"""A conformance kit: checks the promises of Reknit's targets on a custom target or function.

``Kit`` checks a target by its name: one of Reknit's or a registered one (``reknit.pipeline.registry``). ``CallableKit``
checks any function from a history to a request body. Histories can have any origin: ``broken_histories()`` and
``healthy_histories()`` are a small set, and ``reknit.pipeline.testing.strategies`` generates any number of them with
hypothesis. A broken promise raises ``ConformanceError``, which names the difference and its place.

``Case`` is a history with expected results, as a team writes its own; ``run_case`` checks that too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.explain import FIX_EXAMPLES, written_out
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import Normalized
from reknit.pipeline.testing.kit import CallableKit, Kit
from reknit.pipeline.testing.promises import ConformanceError, bytes_differ, lists_differ, values_differ

__all__ = [
    "CallableKit",
    "Case",
    "CaseResult",
    "ConformanceError",
    "Kit",
    "Sample",
    "broken_histories",
    "healthy_histories",
    "read_case",
    "run_case",
]

# An example longer than this shows a limit on size; it would only make the checks slow.
_LONGEST = 20_000


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """One case: a history, its targets, and the expected results.

    The history is ``history`` (a list of messages, a document, or a transcript as text), or ``messages`` with
    ``system``, ``tools``, ``model`` and ``params``. ``to`` is a target or several. Expectations are optional:
    ``expect`` is the body (a string is compared byte for byte, anything else as JSON), ``fixes`` the codes in any
    order, each as often as it occurs, ``violations`` the ids of broken rules, or objects that each match one (``rule``,
    ``path``, ``message``, ``severity``); soft ones need not be named. If violations are expected, the body may be
    refused.
    """

    to: str | list[str]
    history: Any = None
    messages: list[Any] | None = None
    name: str = ""
    source: str = "auto"
    policy: dict[str, Any] = {}
    system: Any = None
    tools: list[Any] | None = None
    model: str | None = None
    params: dict[str, Any] | None = None
    expect: Raw | UnsetType = UNSET
    fixes: list[str] | UnsetType = UNSET
    violations: list[str | dict[str, str]] | UnsetType = UNSET

    @property
    def targets(self) -> list[str]:
        return [self.to] if isinstance(self.to, str) else self.to

    @property
    def given(self) -> Any:  # noqa: ANN401  any JSON
        return self.history if self.messages is None else self.messages

    @property
    def setting(self) -> dict[str, Any]:
        beside = {"system": self.system, "tools": self.tools, "model": self.model, "params": self.params}
        return {key: value for key, value in beside.items() if value is not None}


class _Written(Struct):
    messages: list[Raw]


class CaseResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a case for one target; it passed if there are no failures.

    ``failures`` name the promise (``expected`` for the case's own expectations), the place and the difference.
    """

    name: str
    target: str
    passed: bool
    fixes: list[str] = []
    violations: list[Violation] = []
    failures: list[dict[str, str]] = []


def read_case(line: bytes) -> Case:
    """A case from its JSON.

    Raises:
        InputError: not a case; the message names the key.
    """
    try:
        case = msgspec.json.decode(line, type=Case)
        if case.messages is not None:
            # Some targets take a call's input as the text that it was written as, blanks included.
            case = structs.replace(case, messages=msgspec.json.decode(line, type=_Written).messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not_a_case", str(error)) from None
    if (case.history is None) == (case.messages is None):
        raise InputError("not_a_case", "a case has either `history` or `messages`")
    if not case.targets:
        raise InputError("not_a_case", "a case goes to at least one target", path="to")
    if case.expect is not UNSET and len(case.targets) > 1:
        raise InputError("not_a_case", "one target's body is expected, and the case has several", path="expect")
    unknown = [code for code in case.fixes or () if code not in FIXES]
    if unknown:
        raise InputError("unknown_code", f"no fix is called {', '.join(unknown)}", path="fixes")
    return case


def run_case(case: Case, target: str, name: str = "") -> CaseResult:
    """Run a case for one of its targets; ``name`` is used for a case without one.

    Raises:
        InputError: the history cannot be used.
        UnknownTargetError: the target or the shape does not exist.
        PolicyError: the policy is not valid.
    """
    kit = Kit(target, case.policy, source=case.source, setting=case.setting)
    done = kit.normalize(case.given)
    failures = [*_broken_promises(kit, case), *_unmet(case, done)]
    return CaseResult(
        name=case.name or name,
        target=target,
        passed=not failures,
        fixes=[fix.code for fix in done.fixes],
        violations=done.violations,
        failures=[{"promise": breach.promise, "where": breach.where, "what": breach.what} for breach in failures],
    )


def _broken_promises(kit: Kit, case: Case) -> Iterator[ConformanceError]:
    # A refusal that is expected is no breach.
    checks = [] if case.violations else [kit.valid]
    for check in (*checks, kit.accounted, kit.idempotent, kit.incremental, kit.folded):
        try:
            check(case.given)
        except ConformanceError as breach:
            yield breach


def _unmet(case: Case, done: Normalized) -> Iterator[ConformanceError]:
    if case.expect is not UNSET:
        yield from _other_body(bytes(case.expect), done)
    if case.fixes is not UNSET:
        differs = lists_differ((fix.code for fix in done.fixes), case.fixes)
        if differs:
            yield ConformanceError("expected", done.target, "fixes", differs)
    if case.violations is not UNSET:
        yield from _other_violations(case.violations, done)


def _other_body(expect: bytes, done: Normalized) -> Iterator[ConformanceError]:
    wanted = json.loads(expect)
    if wanted is None or done.body is None:
        if (wanted is None) != (done.body is None):
            found = "was refused" if done.body is None else "was not refused"
            yield ConformanceError("expected", done.target, "body", f"the body {found}")
    elif isinstance(wanted, str):
        differs = bytes_differ(done.body, wanted.encode())
        if differs:
            yield ConformanceError("expected", done.target, "body", differs)
    else:
        place = values_differ(_decoded(done.body), wanted)
        if place:
            yield ConformanceError("expected", done.target, place[0] or "body", place[1])


def _decoded(body: bytes) -> Any:  # noqa: ANN401  any JSON
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def _other_violations(wanted: Sequence[str | dict[str, str]], done: Normalized) -> Iterator[ConformanceError]:
    left = list(done.violations)
    for want in wanted:
        asked = {"rule": want} if isinstance(want, str) else want
        match = next((found for found in left if _matches(found, asked)), None)
        if match is None:
            yield ConformanceError("expected", done.target, "violations", f"missing {want!r}")
        else:
            left.remove(match)
    for found in left:
        if found.severity != "soft":
            yield ConformanceError("expected", done.target, found.path, f"unexpected {found.rule}: {found.message}")


def _matches(found: Violation, asked: dict[str, str]) -> bool:
    return all(getattr(found, key, None) == value for key, value in asked.items())


class Sample(Struct, frozen=True):
    """A history with a name: a list of messages, or a document with ``messages`` and its other members."""

    name: str
    history: Any


def broken_histories() -> Iterator[Sample]:
    """Histories that providers refuse, one for each fix; the name is the fix's code."""
    for example in FIX_EXAMPLES.values():
        if example.source != "auto":
            continue
        history = written_out(example.history)
        text = history if isinstance(history, str) else json.dumps(history)
        if len(text) <= _LONGEST and text.lstrip().startswith(("[", "{")):
            yield Sample(example.code, json.loads(text))


def healthy_histories() -> Iterator[Sample]:
    """Return histories that need no repair, in the canonical shape."""
    yield Sample("one message", [_user("Read the README.")])
    yield Sample("a conversation", [_user("Hello."), _says("Hello."), _user("Go on.")])
    called, answered = _call("toolu_01", "README.md"), _result("toolu_01", "Hello")
    yield Sample("a call", [_user("Read."), called, answered])
    yield Sample("a call and what followed", [_user("Read."), called, answered, _says("It says hello."), _user("So?")])
    both = {"role": "assistant", "content": [*called["content"], *_call("toolu_02", "LICENSE")["content"]]}
    results = {"role": "user", "content": [*answered["content"], *_result("toolu_02", "Apache")["content"]]}
    yield Sample("two calls at once", [_user("Read both."), both, results, _says("Read."), _user("Thanks.")])


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def _call(id_: str, path: str) -> dict[str, Any]:
    block = {"type": "tool_use", "id": id_, "name": "read_file", "input": {"path": path}}
    return {"role": "assistant", "content": [block]}


def _result(id_: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": text}]}
