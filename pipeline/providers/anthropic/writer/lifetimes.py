"""The order of cache breakpoints by lifetime: those of an hour come before those of five minutes (ANT-28b).

The API reads tools, then the system prompt, then messages. A breakpoint of an hour after one of five minutes gets the
shorter lifetime, which is the default.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

_KEY: Final = b'"cache_control"'
_HOUR: Final = "1h"
_encode = msgspec.json.Encoder().encode


def shortened(items: Raw, *, short: bool) -> tuple[Raw, list[int], bool]:
    """Return a list of tools or blocks in the right order, the indexes of those changed, and whether one is short.

    ``short`` is True if there was a short one before the list.
    """
    if _KEY not in bytes(items) or bytes(items)[:1] != b"[":
        return items, [], short
    changed: list[int] = []
    written: list[Any] = msgspec.json.decode(items, type=list[Raw])
    for at, item in enumerate(written):
        if _KEY not in bytes(item):
            continue
        block = msgspec.json.decode(item)
        fits, short = _fit(block, short=short)
        if not fits:
            changed.append(at)
            written[at] = block
    return (Raw(_encode(written)) if changed else items), changed, short


def shortened_message(message: bytes, *, short: bool) -> tuple[bytes, bool, bool]:
    """Return a message in the right order, whether it was changed, and whether there is a short one."""
    members = msgspec.json.decode(message, type=dict[str, Raw])
    content, changed, short = shortened(members.get("content", Raw(b"null")), short=short)
    return (_encode(members | {"content": content}) if changed else message), bool(changed), short


def _fit(block: Any, *, short: bool) -> tuple[bool, bool]:  # noqa: ANN401  any JSON
    """Shorten the breakpoints of a block, and of those inside it; return whether all stay, and whether one is short."""
    fits = True
    if not isinstance(block, dict):
        return fits, short
    mark = block.get("cache_control")
    if isinstance(mark, dict):
        if mark.get("ttl") == _HOUR and short:
            del mark["ttl"]
            fits = False
        short = short or mark.get("ttl") != _HOUR
    content = block.get("content")
    for inner in content if isinstance(content, list) else ():
        stays, short = _fit(inner, short=short)
        fits = fits and stays
    return fits, short
