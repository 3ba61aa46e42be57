"""The parts of every provider's rules: rules, violations, and the fold that finds them.

A rule set is written from a provider's observed refusals, never from the writers, and shares no code with them, so that
each cross-checks the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct

Severity: TypeAlias = Literal["hard", "model", "soft"]


class Violation(Struct, frozen=True):
    """One broken rule: ``path`` is exact and in Reknit's notation, ``message`` is the provider's.

    ``hard`` fails a validation. ``model`` means that only some model families have the rule and that this model is not
    known; a model that is known to have it gives ``hard``. ``soft`` warns.
    """

    rule: str
    path: str
    message: str
    severity: Severity


class Rule(Struct, frozen=True, kw_only=True):
    """One entry of the catalogue.

    ``message`` is the provider's text with ``{names}`` in place of indexes and ids. A ``model`` rule depends on a
    ``fact`` about model families (``Family``), and ``families`` names those that are known to have it. ``unchecked``
    says why a body alone cannot show a violation; such a rule is listed so that its error text can be explained, and is
    never reported. ``by_sender`` marks a member that the sender of the body may still add; where no sender follows, a
    violation is treated as hard.
    """

    id: str
    target: str
    summary: str
    message: str
    severity: Severity
    repair: str
    source: str
    families: tuple[str, ...] = ()
    unchecked: str = ""
    by_sender: bool = False
    fact: str = ""

    def broken(self, path: str, severity: Severity | None = None, **values: object) -> Violation:
        """Report a breach at ``path``; ``values`` fill the message's names, ``at`` being the path unless given."""
        message = self.message.format(**{"at": path, **values})
        return Violation(self.id, _encodable(path), _encodable(message), severity or self.severity)


def _encodable(text: str) -> str:
    """Escape the lone surrogates that an id or a key of a bad body may bring into a report."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class Family(Struct, frozen=True):
    """Known properties of the models of one family.

    The fields of a subclass are its facts, each named after something that a request may hold: True if the family was
    seen to take it, False if it was seen to refuse it, None if that is unknown.
    """

    name: str


class Catalogue:
    """One target's rules by id, in the order in which they were entered; facts are those of its ``families``."""

    def __init__(self, target: str, families: Iterable[Family] = ()) -> None:
        self.target = target
        self.families = tuple(families)
        self.rules: dict[str, Rule] = {}

    def rule(
        self,
        rule_id: str,
        severity: Severity,
        message: str,
        *,
        summary: str,
        repair: str,
        source: str,
        fact: str = "",
        families: tuple[str, ...] = (),
        unchecked: str = "",
        by_sender: bool = False,
    ) -> Rule:
        """Enter a rule; one of severity ``model`` has its ``fact``, or names its ``families`` itself."""
        refusing = (family.name for family in self.families if fact and getattr(family, fact) is False)
        made = Rule(
            id=rule_id,
            target=self.target,
            summary=summary,
            message=message,
            severity=severity,
            repair=repair,
            source=source,
            families=families or tuple(dict.fromkeys(refusing)),
            unchecked=unchecked,
            by_sender=by_sender,
            fact=fact,
        )
        self.rules[rule_id] = made
        return made


State = TypeVar("State")


class RuleSet(Protocol[State]):
    """The rules of one target, as a fold over the messages of a request.

    States are values: a state may be stepped from again and again, and in different directions. The whole body gives
    the same violations as ``judge_head``, ``judge_messages`` for any grouping of its messages, and ``judge_end``.
    Nothing here raises for what a body holds.
    """

    target: str

    def judge_head(self, head: bytes, model: str | None = None) -> tuple[State, list[Violation]]:
        """Judge a request without its messages: ``head`` is the JSON object less that key.

        ``model`` selects the model-dependent rules; None takes the one that the head names.
        """

    def judge_messages(self, state: State, messages: bytes) -> tuple[State, list[Violation]]:
        """Judge more messages: their JSON joined by ``,``, without brackets, as in the body."""

    def judge_end(self, state: State) -> list[Violation]:
        """Say what only the end of the request shows. The state stays usable."""

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        """Judge a whole body."""


@runtime_checkable
class KnowsBetas(Protocol):
    """A rule set whose verdicts depend on a header that is sent with the body."""

    def with_betas(self, betas: Iterable[str]) -> RuleSet[Any]:
        """Return the same rules for bodies that are sent with these values of ``anthropic-beta``."""


class Seen(Struct, frozen=True):
    """A set of strings that grows without changing its earlier versions.

    Layers of falling size, merged like the carries of a binary counter: adding ``k`` strings to ``n`` costs about
    ``k * log(n)`` over a session, looking one up at most ``log(n)``.
    """

    layers: tuple[frozenset[str], ...] = ()

    def __contains__(self, item: str) -> bool:
        for layer in self.layers:  # noqa: SIM110 - a generator costs more than the look-ups
            if item in layer:
                return True
        return False

    def has_any(self, items: Collection[str]) -> bool:
        """Return True if one of the strings is in the set."""
        return not all(layer.isdisjoint(items) for layer in self.layers)

    def plus(self, items: Iterable[str]) -> Seen:
        top = frozenset(items)
        if not top:
            return self
        layers = self.layers
        while layers and len(layers[-1]) <= len(top):
            top |= layers[-1]
            layers = layers[:-1]
        return Seen((*layers, top))


NONE_SEEN = Seen()


class Judged(Struct, frozen=True):
    """The state of a body that was judged whole: nothing is left to know."""


class WholeBody(ABC):
    """The fold of a target that takes one text: its head is the whole body, and earlier turns are text in it."""

    def judge_head(self, head: bytes, model: str | None = None) -> tuple[Judged, list[Violation]]:
        return Judged(), self.validate(head, model)

    def judge_messages(self, state: Judged, messages: bytes) -> tuple[Judged, list[Violation]]:
        del messages
        return state, []

    def judge_end(self, state: Judged) -> list[Violation]:
        del state
        return []

    @abstractmethod
    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        """Judge the body."""

    # A session's text grows by pieces that stay as they are, and need not be read again for each request.

    def inert(self, piece: bytes) -> bool:
        """Return True if a piece inside a text cannot violate a rule, alone or joined with other such pieces.

        A rule set that cannot decide returns False, and all of each text is read.
        """
        del piece
        return False

    def judge_ends(self, opening: bytes, inner: int, ending: bytes) -> list[Violation] | None:
        """Judge a body from which ``inner`` bytes of inert pieces have been left out between its ends.

        Returns the result of ``validate`` for the whole body; None if only the whole body can be judged.
        """
        del opening, inner, ending
        return None
