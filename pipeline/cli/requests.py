"""Request bodies in an HTTP log of a platform, one in each line.

The same log gives the same records with the same ids (``reknit.pipeline.serve.mirrored``), so a feed that was
interrupted can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.endpoints import endpoint_of
from reknit.pipeline.serve.mirrored import Logged
from reknit.pipeline.stages.content import ROOTS
from reknit.topics.trace import CARRIED, trace_headers

# Members by which logs name each value; the first that exists counts.
_BODY: Final = ("body", "request.body", "request_body", "request.content", "request.postData.text", "request")
_URL: Final = ("url", "request.url", "uri", "request_uri", "path", "request.path", "x-envoy-original-path")
_HOST: Final = ("host", "request.host", "authority", "upstream_host")

# The base URL of a client; some platforms log it in place of a request's URL.
_BASE: Final = re.compile(r"/v1/?$")


class Places(Struct, frozen=True, kw_only=True):
    """Dotted names of a line's members, "" for the usual ones. ``target`` is the provider of all requests."""

    session: str = ""
    producer: str = ""
    target: str = ""


def read_line(line: bytes, places: Places) -> Logged:
    """Read one line of a log.

    Raises:
        InputError: the line or its body is no JSON object, or its provider is unknown.
    """
    try:
        logged = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not_json", f"a line is one JSON object: {error}") from error
    body = _body_of(logged)
    url = urlsplit(str(_first(logged, _URL) or ""))
    target, model = _whose(url.path, url.netloc or str(_first(logged, _HOST) or ""), body)
    if not (places.target or target):
        raise InputError(
            "provider_unknown", f"no provider has the endpoint {url.path or 'without a path'}: give --target"
        )
    return Logged(
        target=places.target or target,
        body=body,
        session=_named(logged, places.session),
        producer=_named(logged, places.producer),
        model=model,
        trace=trace_headers(
            {name: str(value) for name in CARRIED if (value := _first(logged, _places_of(name))) is not None}
        ),
    )


def _places_of(header: str) -> tuple[str, ...]:
    """Return the places where logs have a header of a request."""
    return f"headers.{header}", f"request.headers.{header}", header


def _body_of(logged: dict[str, Any]) -> dict[str, Raw]:
    bodies = [_at(logged, place) for place in _BODY]
    if any(root in logged for root in ROOTS):
        bodies = [logged]  # the line is the body
    for found in bodies:
        if isinstance(found, (str, dict)):
            try:
                given = found.encode() if isinstance(found, str) else msgspec.json.encode(found)
                body = msgspec.json.decode(given, type=dict[str, Raw])
            except (msgspec.DecodeError, UnicodeError):
                continue
            if any(root in body for root in ROOTS):
                return body
    raise InputError("no_body", "no request body with messages, contents or an input")


def _whose(path: str, host: str, body: Mapping[str, Raw]) -> tuple[str, str]:
    if "messages" in body and _BASE.search(path):
        path = "/chat/completions"
    endpoint = endpoint_of(path, host)
    if endpoint is not None:
        return endpoint.target, endpoint.model
    if path:
        return "", ""
    return ("gemini" if "contents" in body else "openai-responses" if "input" in body else ""), ""


def _first(logged: Mapping[str, Any], places: Sequence[str]) -> object:
    return next((found for place in places if (found := _at(logged, place)) is not None), None)


def _named(logged: Mapping[str, Any], place: str) -> str:
    found = _at(logged, place) if place else None
    return "" if found is None else str(found)


def _at(logged: object, place: str) -> Any:  # noqa: ANN401  whatever the log holds
    """Return the value at a dotted name; the case of header names does not matter."""
    found = logged
    for name in place.split("."):
        if isinstance(found, str) and found.startswith("{"):
            try:
                found = msgspec.json.decode(found)
            except msgspec.DecodeError:
                return None
        if isinstance(found, list):  # headers as HAR and others have them
            found = {each.get("name", each.get("key")): each.get("value") for each in found if isinstance(each, dict)}
        if not isinstance(found, dict):
            return None
        found = found.get(name, next((value for key, value in found.items() if str(key).lower() == name.lower()), None))
    return found
