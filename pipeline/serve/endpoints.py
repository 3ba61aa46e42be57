"""The URL paths at which providers take requests to a model, and the target of each.

Sources: the API references of the providers; for Vertex and Bedrock the paths that their SDKs build. Other paths
(models, tokens, files, batches) are no requests to a model.
"""

from __future__ import annotations

import re
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
# Hosts whose chat requests OpenAI's rules judge; all other hosts are look-alikes.
_OPENAI: Final = re.compile(r"(^|\.)(openai\.com|azure\.com)(:\d+)?$")


class Endpoint(Struct, frozen=True):
    """An endpoint for requests to a model. ``model`` is "" if the path names none."""

    target: str
    model: str = ""
    streams: bool = False


def endpoint_of(path: str, host: str = "") -> Endpoint | None:
    """Return the endpoint of a URL's path, without its query; None for all other paths.

    Args:
        path: percent-encoded, as in the URL.
        host: of the URL. Chat requests to a known host that is not OpenAI's have the target ``vllm``.
    """
    for pattern, target in _PATHS:
        if found := pattern.search(path):
            model = unquote(found.groupdict().get("model", ""))
            imitates = target == "openai-chat" and host and not _OPENAI.search(host)
            return Endpoint("vllm" if imitates else target, model, _STREAMS.search(path) is not None)
    return None
