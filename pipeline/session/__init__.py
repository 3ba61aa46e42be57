"""A session: one history under repair, and the requests for its targets. Also repairs a whole history in one call.

The cost of appending a turn does not depend on the length of the history. Settled messages are encoded once for each
target and kept as bytes. A request encodes the open end, judges it from the state at the settled boundary, and joins
the body only when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType, structs

from reknit.pipeline.errors import InputError, InternalError, UnknownTargetError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.healing.errors import Refusal, read_error
from reknit.pipeline.healing.memory import NO_MEMORY, Memory, Noted, TargetMemory
from reknit.pipeline.history.readers.extended import extends, replaced
from reknit.pipeline.history.readers.message import UNDECIDED, Decided
from reknit.pipeline.history.readers.shapes import TRANSCRIPTS, decided_in, grows, read, read_next
from reknit.pipeline.model import Role, ToolResult, Turn
from reknit.pipeline.policy import Policy
from reknit.pipeline.providers.base import Target
from reknit.pipeline.registry import target_named
from reknit.pipeline.session.arguments import GivenPolicy, GivenSystem, GivenTools, policy_from, setting_from
from reknit.pipeline.session.bindings import End, PrefixBindings, end_of
from reknit.pipeline.session.documents import GivenHistory, begin_document
from reknit.pipeline.session.fit import fit_for
from reknit.pipeline.session.healed import HEALED, heal_request
from reknit.pipeline.session.refusals import LIMITS, Refused, after_refusal, is_progress
from reknit.pipeline.session.request import Normalized
from reknit.pipeline.session.scaled import Scale, ScaledImages, check_scale, scaled_in
from reknit.pipeline.session.state import HEALING, LATE_RESULTS, LogEntry, decode_whole_log, encode_whole_log
from reknit.pipeline.session.tokens import CountTokens
from reknit.pipeline.session.working import WorkingHistory
from reknit.pipeline.targets import Setting
from reknit.pipeline.targets.wrapped_tools import wrapped_tools

__all__ = ["GivenHistory", "GivenMessage", "Normalized", "Session", "normalize"]

GivenMessage: TypeAlias = dict[str, Any] | bytes | str | Turn


class Session:
    """The state that the worker keeps for each session.

    ``targets`` are names of the registry. ``policy`` is a ``Policy``, a mapping of its fields (text such as ``"true"``
    is accepted) or None. ``system``, ``tools``, ``model`` and ``params`` are sent with the messages in every request.
    ``state_format`` is that of the state which ``head`` returns; below 3, late results are dropped, no reasoning is
    bound to its prefix, and no refusal is healed. ``count_tokens`` counts the tokens of a text for policy ``fit``, in
    place of the estimate; ``scale`` scales images for policy ``media = shrink``, which needs it
    (``reknit.media.scale``). A session that is loaded needs both again.

    Raises:
        UnknownTargetError: a target does not exist.
        PolicyError: the policy is not valid.
        InputError: the system prompt, the tools or the parameters are not valid.

    Example:
        >>> session = Session(["anthropic", "openai-chat"], model="claude-sonnet-4-5", params={"max_tokens": 64})
        >>> session.append({"role": "user", "content": "Hello."})
        []
        >>> session.request("anthropic").body
        b'{"model":"claude-sonnet-4-5","max_tokens":64,"messages":[{"role":"user","content":"Hello."}]}'
    """

    def __init__(
        self,
        targets: Sequence[str] = ("anthropic",),
        policy: GivenPolicy = None,
        *,
        system: GivenSystem = None,
        tools: GivenTools = (),
        model: str | None = None,
        params: Mapping[str, Any] | None = None,
        state_format: int = LATE_RESULTS,
        count_tokens: CountTokens | None = None,
        scale: Scale | None = None,
    ) -> None:
        setting, given = setting_from(system, tools, model, params), policy_from(policy)
        fit = fit_for(given, setting, count_tokens)
        self.scale = scale
        check_scale(given, scale)
        self._begin(WorkingHistory(_named(targets), given, setting, state_format=state_format, fit=fit))

    def _begin(self, work: WorkingHistory) -> None:
        self._at_work = work
        # The working history of the last configuration, and for each target why its prefix is new.
        self._configured: tuple[WorkingHistory, dict[str, str]] | None = None
        # The memory of refusals, by target.
        self._memory: Memory = dict(work.loaded_memory)
        # How often the history or its settings changed, and for each target at its last request.
        self._changes, self._asked = 0, dict[str, int]()
        self._last_role: Role | None = None
        self._has_grown = True

    @property
    def _work(self) -> WorkingHistory:
        """The working history, repaired for the last configuration.

        Rebuilding costs time proportional to the history, so it happens when the history is next used, however often
        the session is configured before.
        """
        if self._configured is not None:
            (new, reasons), old = self._configured, self._at_work
            stubs = old.bounds.stubs if new.policy.media == "stub" else {}
            log, bindings = old.archive.entries(), old.carried()
            self._work = new.again(log, old.count, reasons, old.decided, bindings=bindings, stubs=stubs)
        return self._at_work

    @_work.setter
    def _work(self, work: WorkingHistory) -> None:
        self._at_work, self._configured = work, None

    @property
    def _given(self) -> WorkingHistory:
        """The working history with the targets, the policy and the setting in force."""
        return self._at_work if self._configured is None else self._configured[0]

    @property
    def count(self) -> int:
        """The number of messages received."""
        return self._at_work.count

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets."""
        return self._given.names

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._given.policy

    @property
    def model(self) -> str | None:
        """The model that requests name."""
        return self._given.setting.model

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools, in their order."""
        return tuple(tool.name for tool in self._given.setting.tools)

    @property
    def wrapped_tools(self) -> frozenset[str]:
        """The names of the tools that accept no object, which requests declare in a wrapped form."""
        return wrapped_tools(self._given.setting.tools)

    @property
    def last_role(self) -> Role | None:
        """The role of the turn that was appended last to this object."""
        return self._last_role

    @property
    def has_grown(self) -> bool:
        """True if the last message had a turn; what a framework does not send to a model has none."""
        return self._has_grown

    @property
    def waiting(self) -> bool:
        """True if the conversation waits for the model.

        The last turn is the user's, and every call has a real result or user text follows the open call.
        """
        return self._work.waiting

    @property
    def interrupted(self) -> bool:
        """True if a call of the last exchange has no real result, so that the next turn interrupts it."""
        return self._work.interrupted

    def append(self, message: GivenMessage, source: str = "auto") -> list[Fix]:
        """Append a message, in any shape that the readers know; return the fixes that are now certain.

        Fixes of single targets, and those of the open end that a later turn may still undo, are in the requests.

        Raises:
            InputError: the message cannot be used; the session is unchanged.
        """
        work = self._work
        check_scale(work.policy, self.scale)
        turns, fixes, decided = _read_message(message, work.count, source, work.decided)
        if grows(source, decided):
            work, replacing = self._without_last(turns)
            fixes = [*replacing, *fixes]
        work.decided = decided
        work.count += 1
        self._changes += 1
        work.note_fixes(fixes)
        if self._memory and any(map(_speaks, turns)):
            self._memory = {name: each.spoken() for name, each in self._memory.items()}
        self._has_grown = bool(turns)
        self._last_role = turns[-1].role if turns else self._last_role
        return [*fixes, *work.take_turns(turns, self.scale)]

    def _without_last(self, turns: Sequence[Turn]) -> tuple[WorkingHistory, list[Fix]]:
        """Return the working history without its last message if these turns extend it, and the fix that says so.

        The message is part of the open end, so what has settled stays as it is.
        """
        work = self._work
        last = work.archive.last_turns()
        if not last or last[0].index != work.count - 1 or not extends(last, turns):
            return work, []
        count = work.count
        self._work = work = work.back(count - 1, self._resets())
        work.count = count
        return work, [replaced(last)]

    def is_extended_by(self, message: GivenMessage, source: str = "auto") -> bool:
        """Return True if a message that is appended would take the place of the last one, which it extends.

        The last message may also be one that a framework does not send, as a fragment of a later one.
        """
        work = self._work
        try:
            turns, _, decided = _read_message(message, work.count, source, work.decided)
        except InputError:
            return False
        last = work.archive.last_turns()
        is_last = bool(last) and last[0].index == work.count - 1
        return grows(source, decided) and (not is_last or extends(last, turns))

    def request(self, target: str | None = None, *, is_sent: bool = True) -> Normalized:
        """Return the request for one of the session's targets, by default the first.

        For a model whose reasoning is bound to its prefix, the request counts as sent: the next assistant turn answers
        it, and what it has stays. If it ``is_sent`` not, it is only to be looked at, and may hold reasoning that a
        request which is sent leaves out.

        Raises:
            UnknownTargetError: it is not one of the session's targets.
        """
        names = self.targets
        name = names[0] if target is None else target
        if name not in names:
            raise UnknownTargetError("unknown_target", f"the session has {', '.join(names)}, not {name!r}")
        if is_sent:
            self._asked[name] = self._changes
        return self._healed(self._work.request(name, is_sent=is_sent))

    def _healed(self, made: Normalized) -> Normalized:
        """Return a request without what its target's provider revoked."""
        memory, work = self._memory.get(made.target), self._work
        if memory is None or not memory.healings or work.policy.heal == "off":
            return made
        target, model = target_named(made.target), work.setting.model or ""
        ends = target.writer.tail_rules if work.policy.tail == "keep" else frozenset()
        policy = structs.replace(work.policy, media="reject", fit="off", summary="", mend={})
        return heal_request(
            made, memory, model, ends, lambda body: normalize(body, made.target, policy=policy, model=model or None)
        )

    # Refusals.

    def refused(
        self,
        target: str,
        *,
        status: int,
        error: bytes | str | dict[str, Any],
        request_id: str | None = None,
    ) -> Normalized | None:
        """Return a request without what the provider refused, or None if no change is known, or no more are allowed.

        The session remembers what was refused, so that later requests of the target do not have it either. Policy
        ``heal`` limits the healings of one user turn. A cause that may pass by itself is healed when it is reported a
        second time; report each attempt once.

        Args:
            target: the target whose last request was refused.
            status: of the answer.
            error: the body of the answer, or of an error event in a stream.
            request_id: of the request, for its fixes.

        Raises:
            UnknownTargetError: it is not one of the session's targets.
        """
        current = self.request(target, is_sent=False)
        sha256 = current.sha256 if self._asked.get(target) == self._changes else ""
        return self.refused_with(target, read_error(status, error), sha256=sha256, request_id=request_id or "")

    def refused_with(
        self, target: str, refusal: Refusal, *, sha256: str, request_id: str = "", report: str = ""
    ) -> Normalized | None:
        """Do the same for a request whose body has this digest, an older one too.

        ``report`` identifies the report: the same one again is not another attempt. Without it, each report is.
        """
        work = self._work
        limit = LIMITS[work.policy.heal] if work.state_format >= HEALING else 0
        if not limit:
            return None
        current, before = self.request(target, is_sent=False), self._memory
        known = before.get(target, NO_MEMORY)
        refused = Refused(
            refusal=refusal,
            sha256=sha256,
            request_id=request_id,
            report=report,
            model=work.setting.model or "",
            limit=limit,
        )
        after = after_refusal(known, current, refused)
        if after == known:
            return None
        self._memory = {**before, target: after}
        if after.count == known.count:
            return None
        learned = after.healings != known.healings
        if not is_progress(current if learned else None, self.request(target, is_sent=False), sha256):
            self._memory = before
            return None
        self._changes += 1
        sent = self.request(target)
        if not sent.unjudged.startswith(current.unjudged[: current.prefix_bytes]):
            sent.prefix_reset = sent.prefix_reset or HEALED
        return sent

    def forget_refusals(self) -> None:
        """Forget what providers refused."""
        self._memory = {}
        self._changes += 1

    def take_memory(self, target: str, memory: TargetMemory) -> None:
        """Replace the memory of a target's refusals by that of another program, which heals in place of the session."""
        if self._work.state_format >= HEALING and memory != self._memory.get(target, NO_MEMORY):
            self._memory = {**self._memory, target: memory}
            self._changes += 1

    @property
    def has_answered(self) -> bool:
        """True if the state can hold what ``take_answered`` takes; before format 3 that does nothing."""
        return self._at_work.state_format >= LATE_RESULTS

    def take_answered(self, answered: Mapping[int, bool]) -> list[Fix]:
        """Repair the history by what the model has answered of the requests of another program.

        That program sends in place of the session, so requests of the session do not count as sent.

        Args:
            answered: the number of messages in each request with an end, and whether the end was ``continued``; as of
                ``normalize_answered``.

        Returns:
            The fixes that are now certain.
        """
        if not self.has_answered:
            return []
        self._changes += 1
        return self._work.take_answered(answered)

    def note_end(self, end: End) -> None:
        """Note the end of a request that another program has sent with the messages so far, and that was accepted."""
        if self.has_answered:
            self._work.note_end(end)

    def healings(self, target: str) -> int:
        """Return the number of healings of a target's requests in this user turn."""
        return self._memory.get(target, NO_MEMORY).count

    @property
    def refusals(self) -> dict[str, tuple[Noted, ...]]:
        """The refusals that were healed, by target."""
        return {target: memory.healings for target, memory in self._memory.items() if memory.healings}

    def was_healed(self, request_id: str) -> bool:
        """Return True if a request was healed after its refusal."""
        return any(noted.request_id == request_id for each in self._memory.values() for noted in each.healings)

    def note_healed(self, target: str, request_id: str) -> None:
        """Note the id of the request that the last healing led to; "" if that is the next one."""
        memory = self._memory[target]
        self._memory[target] = memory.with_outcomes([*memory.outcomes, (request_id, memory.healings[-1].row)])

    def note_published(self, target: str, request_id: str) -> None:
        """Note the id of a published request: late refusals before it have led to it."""
        memory = self._memory.get(target, NO_MEMORY)
        if any(not waiting for waiting, _ in memory.outcomes):
            known = [(waiting or request_id, row) for waiting, row in memory.outcomes]
            self._memory[target] = memory.with_outcomes(known)

    def take_outcomes(self, request_id: str | None = None) -> list[tuple[str, str]]:
        """Return the target and the row of each healing whose outcome is now known: of this request, or of all."""
        found = []
        for target, memory in self._memory.items():
            known = [each for each in memory.outcomes if each[0] and request_id in (None, each[0])]
            if known:
                found += [(target, row) for _, row in known]
                self._memory[target] = memory.with_outcomes(each for each in memory.outcomes if each not in known)
        return found

    def note_requests(self) -> None:
        """Let the requests that are due now count as sent, where that matters, without their bodies being used."""
        for name in self._work.tracked:
            self._work.request(name)

    # Methods that start the session again from its log.

    def configure(
        self,
        *,
        targets: Sequence[str] | UnsetType = UNSET,
        policy: GivenPolicy | UnsetType = UNSET,
        system: GivenSystem | UnsetType = UNSET,
        tools: GivenTools | UnsetType = UNSET,
        model: str | UnsetType | None = UNSET,
        params: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> bool:
        """Change the given arguments and keep the others; return True if anything changed.

        The history is repaired and encoded again, and the next request of each target reports why its prefix is new.
        """
        old = self._given
        given = old.setting
        setting = setting_from(
            given.system if system is UNSET else system,
            given.tools if tools is UNSET else tools,
            given.model if model is UNSET else model,
            given.params if params is UNSET else params,
        )
        new_policy = old.policy if policy is UNSET else policy_from(policy)
        check_scale(new_policy, self.scale)
        new = WorkingHistory(
            old.targets if targets is UNSET else _named(targets),
            new_policy,
            setting,
            self._at_work.archive,
            state_format=self._at_work.state_format,
            bounds=self._at_work.bounds.again({}),
            fit=self._at_work.fit.again(new_policy, setting),
        )
        same = (new.policy, new.setting) == (old.policy, old.setting)
        if same and new.targets == old.targets:
            return False
        # A target that was configured before keeps its state, including a reason for a new prefix that it has not
        # reported yet.
        self._changes += 1
        kept = self._resets() if same else {}
        self._configured = new, {target.name: kept.get(target.name, "configured") for target in new.targets}
        return True

    def _resets(self) -> dict[str, str]:
        if self._configured is not None:
            return self._configured[1]
        return {name: part.reset for name, part in self._at_work.parts.items()}

    def replace(self, messages: Sequence[GivenMessage] | bytes, source: str = "auto") -> list[Fix]:
        """Replace the history; return the fixes that are certain.

        Raises:
            InputError: a message cannot be used; the session is unchanged.
        """
        entries: list[LogEntry] = []
        decided = UNDECIDED
        if isinstance(messages, bytes) or not any(isinstance(message, Turn) for message in messages):
            given = messages if isinstance(messages, bytes) else _listed(messages)
            found = read(given, source)
            entries = [list(found.fixes), *found.conversation.turns]
            count = found.received or max((turn.index for turn in found.conversation.turns), default=-1) + 1
            decided = decided_in(given) if source == "auto" and found.shape not in TRANSCRIPTS else decided
        else:
            count = len(messages)
            for index, message in enumerate(messages):
                turns, fixes, decided = _read_message(message, index, source, decided)
                entries += [fixes, *turns]
        return self._replace(list(self._with_scaled(entries)), count, decided)

    def _replace(
        self, entries: Sequence[LogEntry], count: int, decided: Decided, known: PrefixBindings | None = None
    ) -> list[Fix]:
        reasons, bindings = dict.fromkeys(self.targets, "replaced"), known or self._at_work.carried(entries)
        self._work = self._given.again(entries, count, reasons, decided, bindings=bindings)
        self._changes += 1
        self._memory = {name: each.spoken() for name, each in self._memory.items()}
        return self._work.fixes

    def _with_scaled(self, entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
        given, known = self._given, dict[str, Raw]()
        is_on = given.policy.media == "shrink" and given.bounds.is_on
        for entry in entries:
            if is_on and self.scale is not None and isinstance(entry, Turn):
                images = scaled_in(entry, self.scale, known)
                known.update(images)
                if images:
                    yield ScaledImages(entry.index, images)
            yield entry

    def rewind(self, to: str | int) -> None:
        """Go back: to the first ``to`` messages, or to the last message of the id ``to``, which stays.

        Raises:
            InputError: no such message.
        """
        count, least = (to, 0) if isinstance(to, int) else (self._work.archive.last_named(to) + 1, 1)
        if not least <= count <= self.count:
            raise InputError("unknown_message", f"no message {to!r} to go back to; the history has {self.count}")
        self._work = self._work.back(count, dict.fromkeys(self.targets, "rewound"))
        self._changes += 1

    # The log, as another session takes it up.

    @property
    def setting(self) -> Setting:
        """The system prompt, tools, model and parameters of every request."""
        return self._given.setting

    @property
    def turns(self) -> list[Turn]:
        """The turns that were read from the messages, oldest first."""
        return [entry for entry in self._work.archive.entries() if isinstance(entry, Turn)]

    def log(self) -> bytes:
        """The log as JSON: the turn that was read from each message, and the fixes of the reader."""
        work = self._work
        entries, memory = list(work.archive.entries()), self._memory or UNSET
        return encode_whole_log(work.count, entries, work.decided, work.carried().saved(), memory)

    def replace_by_log(self, log: bytes) -> list[Fix]:
        """Replace the history with that of a log; return the fixes that are certain.

        Raises:
            InputError: it is not a log; the session is unchanged.
        """
        count, entries, decided, bound, memory = decode_whole_log(log)
        # Without requests of its own, a session has answers only from another program.
        has_answers = bound is not UNSET and bool(bound.answered) and not bound.sent
        known = None if bound is UNSET else PrefixBindings(bound, keeps_answered=has_answers)
        fixes = self._replace(entries, count, decided, known)
        if memory is not UNSET and self._work.state_format >= HEALING:
            self._memory = self._memory | memory
        return fixes

    def keep_limits(self, *, on: bool) -> None:
        """Decide whether limits of media and of length are kept; state before format 3 has no place for them."""
        for work in (self._at_work, *(self._configured or ())[:1]):
            work.bounds.is_on = work.fit.is_on = on

    # State.

    def take_segments(self, *, flush: bool = False) -> list[tuple[int, bytes]]:
        """Return newly settled segments as ``(number, record)``, each once; write them before the head.

        Data that does not fill a segment stays in the head, unless ``flush`` is set.
        """
        return self._work.take_segments(flush=flush)

    @property
    def segments(self) -> list[int]:
        """The numbers of the segments that the head needs; all others may be deleted."""
        return [number for number, _ in self._work.archive.segments]

    @property
    def segment_count(self) -> int:
        return len(self._work.archive.segments)

    def has_segment(self, number: int) -> bool:
        return self._work.archive.has_segment(number)

    def head(self) -> bytes:
        """The rest of the state as a record; with the segments it makes the session again."""
        return self._work.head(self._memory)

    @classmethod
    def load(
        cls,
        head: bytes,
        segments: Iterable[bytes],
        state_format: int = LATE_RESULTS,
        count_tokens: CountTokens | None = None,
        scale: Scale | None = None,
    ) -> Session:
        """Restore a session from its records. It continues exactly as the saved one. Other segments are ignored.

        Raises:
            InternalError: the head cannot be read, or a segment is missing or has other content than was written.
        """
        try:
            work = WorkingHistory.load(head, segments, state_format, count_tokens)
        except _UNREADABLE as error:
            raise InternalError("state_unreadable", f"a session's state cannot be read: {error}") from error
        # A history that is made only to be thrown away would take a quarter of the time.
        session = cls.__new__(cls)
        session.scale = scale
        session._begin(work)  # noqa: SLF001  as __init__ does
        return session


# Errors that decoding a damaged record can raise, at any depth.
_UNREADABLE = (msgspec.MsgspecError, ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError,
               TypeError, ValueError)  # fmt: skip


def normalize(
    history: GivenHistory,
    to: str = "anthropic",
    source: str = "auto",
    policy: GivenPolicy = None,
    *,
    model: str | None = None,
    count_tokens: CountTokens | None = None,
    scale: Scale | None = None,
) -> Normalized:
    """Repair a history into a request that the target ``to`` accepts.

    ``history`` is a list of messages, a document with ``messages`` and optionally ``system``, ``tools``, ``model`` and
    ``params``, the JSON of either, or a transcript. ``source`` names its shape if it should not be detected. ``model``
    replaces the document's model. ``count_tokens`` and ``scale`` are those of a ``Session``.

    Raises:
        InputError: the input cannot be used.
        UnknownTargetError: the target or the shape does not exist.
        PolicyError: the policy is not valid.

    Example:
        >>> call = {"type": "tool_use", "id": "toolu_01", "name": "ls", "input": {}}
        >>> history = [{"role": "user", "content": "List the files."}, {"role": "assistant", "content": [call]}]
        >>> done = normalize([*history, {"role": "user", "content": "Are you still there?"}], model="claude-sonnet-4-5")
        >>> [(fix.code, fix.path, fix.lossless) for fix in done.fixes]
        [('result_synthesised', 'messages.2.content.0', False)]
    """
    work, _ = begin_document(
        history, target_named(to), source, policy_from(policy), model=model, count_tokens=count_tokens, scale=scale
    )
    return work.request(to)


def normalize_answered(
    history: GivenHistory,
    to: str,
    answered: Mapping[int, bool],
    policy: GivenPolicy = None,
    *,
    model: str | None = None,
    scale: Scale | None = None,
) -> tuple[Normalized, End]:
    """Do the same as ``normalize`` for a history that begins with sent requests; return the end of the request too.

    Args:
        history: as a whole.
        to: the target.
        answered: the number of messages in each earlier request with an end, and whether the end was ``continued``. If
            an assistant turn follows there, everything before it is repaired as in that request.
        policy: as of ``normalize``.
        model: as of ``normalize``.
        scale: as of ``normalize``.

    Raises:
        InputError: the input cannot be used.
    """
    work, _ = begin_document(
        history, target_named(to), "auto", policy_from(policy), model=model, scale=scale, answered=answered
    )
    made = work.request(to)
    return made, end_of(made.account)


def _speaks(turn: Turn) -> bool:
    """Return True if the user says something in a turn, besides results of tools."""
    return turn.role == "user" and any(not isinstance(block, ToolResult) for block in turn.blocks)


def _named(targets: Sequence[str]) -> tuple[Target, ...]:
    names = [targets] if isinstance(targets, str) else list(dict.fromkeys(targets))
    if not names:
        raise UnknownTargetError("unknown_target", "a session has at least one target")
    return tuple(target_named(name) for name in names)


def _read_message(
    message: GivenMessage, index: int, source: str, decided: Decided
) -> tuple[list[Turn], list[Fix], Decided]:
    if isinstance(message, Turn):
        return [msgspec.structs.replace(message, index=index)], [], decided
    return read_next(message, index=index, source=source, decided=decided)


def _listed(messages: Sequence[GivenMessage]) -> list[Any]:
    return [msgspec.json.decode(message) if isinstance(message, (bytes, str)) else message for message in messages]
