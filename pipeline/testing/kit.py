"""Checks the promises of one target, and those of any function that repairs, on any history."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.policy import Policy
from reknit.pipeline.registry import target_named
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import Normalized, Session, normalize
from reknit.pipeline.session.arguments import GivenPolicy, policy_from
from reknit.pipeline.session.fit import BEYOND_FIT
from reknit.pipeline.session.media import BEYOND_LIMITS
from reknit.pipeline.testing.promises import (
    ConformanceError,
    Promise,
    bytes_differ,
    check_ledger,
    check_marks,
    lists_differ,
    values_differ,
)
from reknit.pipeline.validation import validate

History: TypeAlias = Sequence[Any] | Mapping[str, Any] | bytes | str
"""A list of messages, a document that holds one with its other members, their JSON text, or a transcript."""


# Under which key a document has its messages: Reknit's own and most providers', OpenAI Responses', Gemini's.
_KEYS: Final = ("messages", "input", "contents")


class Given(Struct, frozen=True):
    """A history taken apart; a transcript has no ``messages``, only its ``text``. ``key`` is the messages' in JSON."""

    messages: list[Any]
    beside: dict[str, Any]
    text: bytes = b""
    key: str = "messages"

    @property
    def document(self) -> bytes:
        return self.text or self.upto(len(self.messages))

    @property
    def model(self) -> str | None:
        model = self.beside.get("model")
        return model if isinstance(model, str) else None

    def upto(self, count: int) -> bytes:
        messages = b",".join(map(encoded, self.messages[:count]))
        return encoded({**self.beside, self.key: []})[:-2] + messages + b"]}"


def take_apart(history: History, setting: Mapping[str, Any]) -> Given:
    """Take a history apart; ``setting`` has the members that the history itself does not have.

    Raises:
        InputError: neither a list of messages nor a document that holds one.
    """
    value: Any = history
    if isinstance(history, (bytes, str)):
        try:
            value = json.loads(history)
        except ValueError:
            return Given([], {}, history if isinstance(history, bytes) else history.encode())
    beside, key = dict(setting), _KEYS[0]
    if isinstance(value, Mapping):
        key = next((key for key in _KEYS if key in value), key)
        beside |= {name: part for name, part in value.items() if name != key}
        value = value.get(key)
    if not isinstance(value, Sequence) or isinstance(value, (bytes, str)):
        raise InputError("wrong_type", "expected a list of messages, or a document with messages")
    return Given(list(value), beside, key=key)


def encoded(value: object) -> bytes:
    """JSON with everything beyond ASCII escaped, so that a lone surrogate can be written as well; `Raw` as it is."""
    return bytes(value) if isinstance(value, Raw) else json.dumps(value, separators=(",", ":")).encode()


class Kit:
    """The promises of a target under a policy; each method checks one, ``check`` all that apply.

    ``target`` is a name; ``setting`` is sent with the messages of every request (``model``, ``system``, ``tools``,
    ``params``), ``source`` the shape of the histories. ``shape`` names the shape in which the target's body can be read
    as a history again (None: it cannot, and idempotence is not checked), and ``blocks`` counts the blocks in such a
    body; both default to the registry's values of the target. A history that is a transcript is checked whole, since it
    has no messages to append one by one.

    Raises:
        UnknownTargetError: the target does not exist.
        InputError: it is unknown whether the target's body can be read again.
        PolicyError: the policy is not valid.
    """

    def __init__(
        self,
        target: str = "anthropic",
        policy: GivenPolicy = None,
        *,
        source: str = "auto",
        shape: str | UnsetType | None = UNSET,
        blocks: Callable[[Any], int] | None = None,
        setting: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target_named(target)
        self.policy: Policy = policy_from(policy)
        self.source = source
        shape = self.target.shape if shape is UNSET else shape
        if shape is UNSET:
            raise InputError(
                "no_shape",
                f"whether a body of target {target!r} can be read again is not known: name its shape, or None, to"
                " register or here",
            )
        self.shape = shape
        self.setting = dict(setting or {})
        self._blocks = blocks or _counter(self.target.blocks)

    def normalize(self, history: History) -> Normalized:
        return self._normalized(take_apart(history, self.setting).document)

    def check(self, history: History) -> Normalized:
        """Every promise that applies to a history, healthy or not; the request it makes.

        Raises:
            ConformanceError: the first promise that does not hold.
        """
        done = self.valid(history)
        self.accounted(history)
        self.idempotent(history)
        self.incremental(history)
        self.folded(history)
        return done

    def valid(self, history: History) -> Normalized:
        """Check that the rules accept the body; return the request.

        A policy may ask for an end that the target refuses (``tail`` of ``reject`` or ``prefill``): then there is no
        body, and ``continue`` makes one. A history without content has no body under any policy.

        Raises:
            ConformanceError: a hard violation.
        """
        given = take_apart(history, self.setting)
        done = self._normalized(given.document)
        if done.body is None and not done.ids:
            return done
        if done.body is None:
            if self.policy.tail not in {"reject", "prefill"}:
                _refuse_hard(done.violations, self.target.name)
            _refuse_hard(self._normalized(given.document, tail="continue").violations, self.target.name)
            return done
        found = validate(done.body, self.target.name, done.judged_as) if done.body else []
        # A restored history has no end yet that could be judged.
        writer = self.target.writer
        exempt = writer.tail_rules | {writer.tail_rule} if self.policy.tail == "keep" else frozenset()
        _refuse_hard((violation for violation in found if violation.rule not in exempt), self.target.name)
        return done

    def accounted(self, history: History) -> None:
        """Check that every input block has one outcome, with a fix unless it was kept, and every output block a source.

        Raises:
            ConformanceError: a block without a line in the ledger, or a line without a fix.
        """
        given = take_apart(history, self.setting)
        done = self._normalized(given.document)
        turns = read(given.document, self.source).conversation.turns
        shown = self._blocks(msgspec.json.decode(done.body)) if self._blocks and done.body else None
        check_ledger(done, turns, shown)

    def marked(self, history: History, pattern: str = r"MARK-\w+") -> None:
        """Marks that were put into a history's blocks are in the body, or a fix names the block that lost one.

        Independent of the ledger: ``pattern`` is looked for in the bytes.

        Raises:
            ConformanceError: a block that lost a mark without a fix.
        """
        given = take_apart(history, self.setting)
        check_marks(self._normalized(given.document), given.messages, pattern)

    def idempotent(self, history: History) -> None:
        """Check that the body, read as a history and repaired again, is the same body without a fix.

        Raises:
            ConformanceError: a fix of the second time, or a byte that differs.
        """
        given = take_apart(history, self.setting)
        once = self._normalized(given.document)
        if self.shape is None or once.body is None:
            return
        body = msgspec.json.decode(once.body, type=dict[str, Raw])
        if given.model is not None:
            body["model"] = Raw(msgspec.json.encode(given.model))
        twice = normalize(msgspec.json.encode(body), to=self.target.name, source=self.shape, policy=self.policy)
        made = [fix for fix in twice.fixes if not fix.observed]
        self._no_difference("idempotent", "the second time", lists_differ(made, ()))
        self._no_difference("idempotent", "the second time", bytes_differ(twice.body, once.body))

    def incremental(self, history: History) -> None:
        """Check that after each message the session's request equals that of the history so far, byte for byte.

        The settled part of a request is the beginning of the next one's bytes, and never shrinks; a request that begins
        differently says why (``prefix_reset``), and has no settled part.

        Raises:
            ConformanceError: the message after which something differs, and the difference.
        """
        given = take_apart(history, self.setting)
        head_fixes = read(given.upto(0), self.source).fixes
        before = None
        for count, step in enumerate(self._steps(given), start=1):
            where = f"after messages.{count - 1}"
            whole = self._normalized(given.upto(count))
            self._no_difference("incremental", where, bytes_differ(step.body, whole.body))
            digest = hashlib.sha256(step.unjudged).hexdigest()
            self._same_lists("sha256", where, [step.sha256, whole.sha256], [digest, digest])
            self._same_lists("fixes", where, [*head_fixes, *step.fixes], whole.fixes)
            for name in ("ledger", "ids", "violations"):
                self._same_lists(name, where, getattr(step, name), getattr(whole, name))
            if before is not None:
                self._settled(before, step, where)
            before = step

    def folded(self, history: History) -> None:
        """The rules, folded over a growing session, say what they say of its whole body.

        Raises:
            ConformanceError: a violation that only one of the two found.
        """
        given = take_apart(history, self.setting)
        done = None
        for step in self._steps(given):
            done = step
        if done is None or not done.body or self.policy.tail == "keep":
            return
        differs = lists_differ(done.violations, validate(done.body, self.target.name, done.judged_as))
        self._no_difference("folded", "", differs and f"violations, step by step against whole: {differs}")

    def healthy(self, history: History, allowed: Collection[str] = ()) -> Normalized:
        """Check that a history that needs no repair has no fix but the ``allowed`` ones, which the target always needs.

        Raises:
            ConformanceError: another fix, or a block that was not kept.
        """
        done = self.normalize(history)
        fixes = [fix for fix in done.fixes if fix.code not in allowed]
        self._no_difference("healthy", "", lists_differ(fixes, ()))
        changed = [entry for entry in done.ledger if entry.fate != "kept" and entry.code not in allowed]
        self._no_difference("healthy", "ledger", lists_differ(changed, ()))
        return done

    def _normalized(self, document: bytes, **changed: Any) -> Normalized:  # noqa: ANN401  fields of a policy
        policy = structs.replace(self.policy, **changed)
        return normalize(document, to=self.target.name, source=self.source, policy=policy)

    def _steps(self, given: Given) -> Iterator[Normalized]:
        """The request after each message, of a session that they are appended to one by one."""
        if not given.messages:
            return
        found = read(given.upto(0), self.source)
        head = found.conversation
        # By itself, a message does not show that its document names another shape.
        source = self.source if given.key == _KEYS[0] else found.shape
        session = Session(
            (self.target.name,),
            self.policy,
            system=head.system,
            tools=head.tools,
            model=head.model,
            params=head.params,
        )
        for message in given.messages:
            session.append(encoded(message), source)
            yield session.request()

    def _settled(self, before: Normalized, now: Normalized, where: str) -> None:
        if now.reset in {BEYOND_LIMITS, BEYOND_FIT}:
            # Media of settled turns became lines of text, or exchanges were cut: it is another one from here on.
            return
        if now.prefix_reset:
            # It has another head, or all repairs where the others lack some, and is a prefix of none.
            if now.prefix_bytes:
                raise ConformanceError("settled", now.target, where, f"{now.prefix_bytes} bytes after a reset")
            return
        shared = before.prefix_bytes
        self._no_difference("settled", where, bytes_differ(now.unjudged[:shared], before.unjudged[:shared]))
        if now.prefix_bytes < shared:
            raise ConformanceError("settled", now.target, where, f"{shared} bytes became {now.prefix_bytes}")

    def _same_lists(self, name: str, where: str, step: Sequence[object], whole: Sequence[object]) -> None:
        differs = lists_differ(step, whole)
        self._no_difference("incremental", where, differs and f"{name}, turn by turn against whole: {differs}")

    def _no_difference(self, promise: Promise, where: str, differs: str) -> None:
        if differs:
            raise ConformanceError(promise, self.target.name, where, differs)


def _refuse_hard(violations: Iterable[Violation], target: str) -> None:
    for violation in violations:
        if violation.severity == "hard":
            raise ConformanceError("valid", target, violation.path, f"{violation.message} [{violation.rule}]")


def _counter(blocks: tuple[str, str] | None) -> Callable[[Any], int] | None:
    if blocks is None:
        return None
    messages, content = blocks
    return lambda body: sum(1 if isinstance(said, str) else len(said) for said in _contents(body[messages], content))


def _contents(messages: Iterable[Any], content: str) -> Iterator[Any]:
    """The content of each message; ``""`` for one without, which counts for its other members."""
    return (message.get(content, "") for message in messages)


Mend: TypeAlias = Callable[[list[Any]], bytes | str | dict[str, Any]]
"""From a list of messages to a request body: its JSON, or the object."""


def _messages(body: Any) -> list[Any]:  # noqa: ANN401  a decoded body
    messages = body["messages"]
    assert isinstance(messages, list)  # noqa: S101  what has no list of messages is not read again by this
    return messages


class CallableKit:
    """The promises of a function that repairs histories; each method checks one, ``check`` all of a broken history.

    A broken promise raises `ConformanceError`, which names the difference.

    Bodies are judged by ``rules``, the rules of a target or a custom function. ``again`` extracts the history from a
    body, for the check that repairing it again changes nothing; None omits that check.
    """

    def __init__(
        self,
        mend: Mend,
        *,
        rules: str | Callable[[dict[str, Any]], list[Violation]] = "anthropic",
        model: str | None = None,
        again: Callable[[Any], list[Any]] | None = _messages,
    ) -> None:
        self._mend = mend
        self._rules = rules
        self._model = model
        self._again = again
        self.name = getattr(mend, "__name__", type(mend).__name__)

    def check(self, history: list[Any]) -> dict[str, Any]:
        """Every promise that applies to a history, healthy or not; the body it makes."""
        self.repeatable(history)
        self.idempotent(history)
        return self.valid(history)

    def valid(self, history: list[Any]) -> dict[str, Any]:
        """The rules accept the body."""
        body = self._body(history)
        found = validate(body, self._rules, self._model) if isinstance(self._rules, str) else self._rules(body)
        _refuse_hard(found, self.name)
        return body

    def repeatable(self, history: list[Any]) -> None:
        """The same history gives the same body, and is not changed by the call."""
        given = copy.deepcopy(history)
        once = _decoded(self._mend(given))
        self._same("repeatable", given, history, "the history was changed")
        self._same("repeatable", self._body(history), once, "the second call")

    def idempotent(self, history: list[Any]) -> None:
        """Check that the body's history, repaired again, gives the same body."""
        if self._again is not None:
            once = self._body(history)
            self._same("idempotent", self._body(self._again(once)), once, "the second time")

    def healthy(self, history: list[Any]) -> None:
        """Check that a history that needs no repair stays unchanged."""
        if self._again is not None:
            self._same("healthy", self._again(self._body(history)), history, "the history")

    def _body(self, history: list[Any]) -> dict[str, Any]:
        return _decoded(self._mend(copy.deepcopy(history)))

    def _same(self, promise: Promise, found: object, wanted: object, what: str) -> None:
        differs = values_differ(found, wanted)
        if differs:
            raise ConformanceError(promise, self.name, differs[0], f"{what}: {differs[1]}")


def _decoded(body: bytes | str | dict[str, Any]) -> dict[str, Any]:
    decoded = body if isinstance(body, dict) else json.loads(body)
    if not isinstance(decoded, dict):
        raise TypeError(f"a request body is a JSON object, not {type(decoded).__name__}")
    return decoded
