"""The hosts and URL paths at which providers take requests to a model, and the target of each.

Sources: the API references of the providers; for Vertex and Bedrock the paths that their SDKs build. Other paths
(models, tokens, files, batches) are no requests to a model.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

# The end of a path and its target.
_PATHS: Final = (
    (re.compile(r"/messages$"), "anthropic"),
    (re.compile(r"/publishers/anthropic/models/(?P<model>[^/:]+):(streamR|r)awPredict$"), "anthropic"),
    (re.compile(r"/model/(?P<model>[^/]+)/converse(-stream)?$"), "bedrock-converse"),
    (re.compile(r"/model/(?P<model>[^/]*anthropic[^/]*)/invoke(-with-response-stream)?$"), "anthropic"),
    (re.compile(r"/models/(?P<model>[^/:]+):(streamG|g)enerateContent$"), "gemini"),
    (re.compile(r"/chat/completions$"), "openai-chat"),
    (re.compile(r"/responses$"), "openai-responses"),
)
# Paths that answer with a stream whatever the body holds.
_STREAMS: Final = re.compile(
    r"(/converse-stream|/invoke-with-response-stream|:streamGenerateContent|:streamRawPredict)$"
)
_BEDROCK: Final = re.compile(r"/model/[^/]+/(converse(-stream)?|invoke(-with-response-stream)?|count-tokens)$")
# Platforms whose keys are bearer keys, whichever model a path names: Bedrock and Vertex.
_BEARER: Final = re.compile(r"/model/[^/]+/[^/]+$|/publishers/[^/]+/models/")
# Hosts of the providers, and the targets of the requests that they take.
_HOSTS: Final = (
    (re.compile(r"(^|\.)anthropic\.com$"), frozenset({"anthropic"})),
    (re.compile(r"(^|\.)(openai|azure)\.com$"), frozenset({"openai-chat", "openai-responses"})),
    (re.compile(r"(^|\.)googleapis\.com$"), frozenset({"gemini"})),
    (re.compile(r"(^|\.)amazonaws\.com$"), frozenset({"bedrock-converse"})),
)
# The target of chat requests to other hosts.
_ANY_LOOK_ALIKE: Final = "vllm"
_PORT: Final = re.compile(r":\d+$")


class Endpoint(Struct, frozen=True):
    """An endpoint for requests to a model. ``model`` is "" if the path names none."""

    target: str
    model: str = ""
    streams: bool = False


@lru_cache(maxsize=256)
def endpoint_of(path: str, host: str = "") -> Endpoint | None:
    """Return the endpoint of a URL's path, without its query; None for all other paths.

    Args:
        path: percent-encoded, as in the URL.
        host: of the URL; "" for an unknown one. Chat requests to a known host that is not OpenAI's have the target of
            the look-alike at that host, or ``vllm``.
    """
    for pattern, target in _PATHS:
        if found := pattern.search(path):
            model = unquote(found.groupdict().get("model", ""))
            imitates = target == "openai-chat" and host and target not in targets_of(host)
            named = _look_alike_at(host) or _ANY_LOOK_ALIKE if imitates else target
            return Endpoint(named, model, _STREAMS.search(path) is not None)
    return None


def is_at_bedrock(path: str) -> bool:
    """Return True for a path of Bedrock's runtime, whose errors have Bedrock's form for every model."""
    return _BEDROCK.search(path) is not None


def has_bearer_key(path: str) -> bool:
    """Return True for a path of a platform that takes its keys as ``Authorization: Bearer`` for every model."""
    return _BEARER.search(path) is not None


def targets_of(host: str) -> frozenset[str]:
    """Return the targets of the requests that a host, with or without a port, takes; none for an unknown host."""
    name = _PORT.sub("", host.lower())
    known = next((targets for pattern, targets in _HOSTS if pattern.search(name)), None)
    return known if known is not None else frozenset(filter(None, (_look_alike_at(host),)))


def _look_alike_at(host: str) -> str:
    """Return the target of a host that imitates OpenAI's Chat Completions, or ``""``."""
    from reknit.pipeline.registry import TARGETS  # noqa: PLC0415  settings import this; most commands need no target

    name = _PORT.sub("", host.lower())
    return next((target.name for target in TARGETS.values() if any(_is_at(name, each) for each in target.hosts)), "")


def _is_at(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")
