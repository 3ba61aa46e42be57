"""``POST /mend``: repair for programs in other languages. A body and its target in; body, fixes and violations out."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import normalize


class MendRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of a request.

    Attributes:
        body: a request body, a document with ``messages``, a list of messages, or the text of a transcript.
        target: judges the result.
        model: replaces the model of the body.
        source: the shape of the body, where it should not be detected.
        policy: as in ``[session.policy]``.
    """

    body: Raw
    target: str = "anthropic"
    model: str | None = None
    source: str = "auto"
    policy: dict[str, Any] = {}


class MendError(Struct, frozen=True):
    """Why a request could not be used: a code, a sentence, and the place or ""."""

    code: str
    message: str
    path: str = ""


class MendRefusal(Struct, frozen=True):
    """The JSON of an answer with status 400."""

    error: MendError


class MendResult(Struct, frozen=True):
    """The JSON of an answer.

    Attributes:
        body: the repaired body, a string for targets that take a text; the body as it was given if no value
            differs, and null if no repair makes it valid.
        is_changed: the body differs from the one that was given.
        fixes: every change.
        violations: the rules that the result breaks, in the provider's words.
    """

    body: Raw | None
    is_changed: bool = field(name="changed")
    fixes: list[Fix]
    violations: list[Violation]


_decode = msgspec.json.Decoder(MendRequest).decode


def mend(data: bytes) -> tuple[bool, bytes]:
    """Return True and the JSON of a result; False and the JSON of an error if the request cannot be used."""
    try:
        result = _result_of(_decode(data))
    except (ReknitError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return False, refusal_of(error)
    return True, msgspec.json.encode(result)


def refusal_of(error: Exception) -> bytes:
    """Return the JSON of an answer with status 400, for an error of Reknit or of decoding."""
    if isinstance(error, ReknitError):
        return msgspec.json.encode(MendRefusal(MendError(error.code, error.message, error.path)))
    code = "wrong_type" if isinstance(error, msgspec.ValidationError) else "not_json"
    return msgspec.json.encode(MendRefusal(MendError(code, str(error) or "not JSON that can be read")))


def _result_of(request: MendRequest) -> MendResult:
    given = bytes(request.body)
    if given.startswith(b'"'):
        given = msgspec.json.decode(given, type=str).encode()
    done = normalize(given, request.target, request.source, request.policy or None, model=request.model)
    if done.body is None:
        return MendResult(body=None, is_changed=False, fixes=done.fixes, violations=done.violations)
    body = msgspec.json.encode(done.body.decode()) if TARGETS[done.target].is_text else done.body
    # The same values keep their bytes: a provider's prompt cache is found by them.
    is_changed = msgspec.json.decode(body) != msgspec.json.decode(request.body)
    return MendResult(Raw(body) if is_changed else request.body, is_changed, done.fixes, done.violations)


def schemas() -> dict[str, Any]:
    """Return the JSON schemas (2020-12) of request and result."""
    (request, result, refusal), definitions = msgspec.json.schema_components(
        (MendRequest, MendResult, MendRefusal), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "POST /mend of reknit serve",
        "properties": {"request": request, "result": result, "refusal": refusal},
        "$defs": definitions,
    }
