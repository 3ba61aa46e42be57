"""Typed errors: each says what went wrong, where, under which rule, and whose fault it is."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar, Literal, TypeAlias

Fault: TypeAlias = Literal["caller", "provider", "us"]


class ReknitError(Exception):
    """The base class of all errors of Reknit; only its subclasses are raised.

    Attributes:
        code: the error, in snake case; a bounded set, so it serves as a metric label.
        message: the expected and the found value, for a person.
        path: the place in the input, in the provider's notation (``messages.3.content.1``), or ``""``.
        rule: the id of the broken rule, if the error results from one.
        fault: the party at fault: the caller, the provider or Reknit.
    """

    fault: ClassVar[Fault]

    def __init__(self, code: str, message: str, *, path: str = "", rule: str | None = None) -> None:
        if type(self) is ReknitError:
            raise TypeError("ReknitError is abstract: raise one of its subclasses")
        # All four are the exception's arguments, so that it survives pickling between processes.
        super().__init__(code, message, path, rule)
        self.code = code
        self.message = message
        self.path = path
        self.rule = rule

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild through ``_rebuild``: the constructor takes its last two arguments by name."""
        return _rebuild, (type(self), *self.args)

    def __str__(self) -> str:
        """Read as ``path: message [code]``, with the rule after the code where there is one."""
        place = f"{self.path}: " if self.path else ""
        rule = f", rule {self.rule}" if self.rule is not None else ""
        return f"{place}{self.message} [{self.code}{rule}]"


def _rebuild(kind: type[ReknitError], code: str, message: str, path: str, rule: str | None) -> ReknitError:
    return kind(code, message, path=path, rule=rule)


def expected_one_of(choices: Iterable[str], given: str) -> str:
    """Return the message for an unknown name: the known ones, and the nearest of them."""
    listed = sorted(choices)
    near = get_close_matches(given, listed, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"expected one of {', '.join(listed)}, got {given!r}{hint}"


class InputError(ReknitError):
    """The input cannot be used as it is: not JSON, wrong types, nested too deeply, an unknown shape."""

    fault: ClassVar[Fault] = "caller"


class UnknownTargetError(InputError):
    """No target, source or rule set has the name that was asked for."""


class PolicyError(ReknitError):
    """A policy names an option that does not exist, or one that the target cannot honour."""

    fault: ClassVar[Fault] = "caller"


class BrokerError(ReknitError):
    """A Kafka cluster refuses a client or a request: its credentials, its rights, or its content."""

    fault: ClassVar[Fault] = "caller"


class BrokerDownError(BrokerError):
    """No broker answers, which may pass."""


class StreamError(ReknitError):
    """A provider's stream broke its own protocol."""

    fault: ClassVar[Fault] = "provider"


class InternalError(ReknitError):
    """An invariant of Reknit does not hold: a bug, to be reported."""

    fault: ClassVar[Fault] = "us"


# An error that wraps more causes than this says nothing new.
_MOST_CAUSES = 4


def error_name(error: BaseException) -> str:
    """Return the class of an error with its number, and the same of its causes: ``KafkaError from UnknownError[-1]``.

    The number is Kafka's code, or an operating system's error by its name (``OSError[ECONNREFUSED]``). Of an own error
    it is the code. The text of an error may quote content or a secret, so no log may hold it.
    """
    names = [_one_name(error)]
    # A deadline cancels what it waits for, so a TimeoutError has a CancelledError as its cause. That one says nothing.
    cause = error.__cause__
    while isinstance(cause, Exception) and len(names) < _MOST_CAUSES:
        names.append(_one_name(cause))
        cause = cause.__cause__
    return " from ".join(names)


def _one_name(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    if isinstance(error, ReknitError):
        number = error.code
    elif not isinstance(number, int):
        number = None
    elif isinstance(error, OSError):
        # Of an error of TLS, errno is OpenSSL's own number; its name is such as CERTIFICATE_VERIFY_FAILED.
        is_tls = type(error).__module__ == "ssl"
        known = getattr(error, "reason", None) if is_tls else errno.errorcode.get(number)
        number = known or number
    name = type(error).__name__
    return name if number is None else f"{name}[{number}]"
