"""Checks of files, caches and containers that a request names."""

from __future__ import annotations

from mock_provider.received import Received, members, values_in
from mock_provider.sentences import RefusedError


def check_uploads(request: Received) -> None:
    """Refuse the name of a file, a cache or a container that has expired."""
    gone = request.state.gone
    cache = request.body.get("cachedContent")
    if cache in gone:
        if request.party.platform == "vertex":
            raise RefusedError("cache_expired", cache, name=cache.rsplit("/", 1)[-1])
        raise RefusedError("cache", cache)
    for each in values_in(request.body):
        address = members(each.get("fileData")).get("fileUri")
        name = str(address).rsplit("/", 1)[-1]
        if address is not None and name in gone:
            raise RefusedError("gemini_file", name, name=name)
        if each.get("file_id") in gone:
            raise RefusedError("openai_file", each["file_id"], name=each["file_id"])
        if each.get("container_id") in gone or each.get("container") in [name for name in gone if name]:
            raise RefusedError("container", each.get("container_id") or "")
