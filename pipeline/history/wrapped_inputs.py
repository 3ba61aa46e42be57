"""A call's input that is no object, as the only member of one.

Providers take only objects for inputs. A history holds any other value in the member ``_raw`` (``input_wrapped``). A
request declares a tool that accepts no object with the same member (``schema_wrapped``), so that the model calls it in
the form in which its earlier calls are shown. The items of a stream have the value (``call_unwrapped``).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

WRAPPER: Final = "_raw"
"""The only member of an input that was not an object."""

EMPTY: Final = Raw(b"{}")
_NOTHING: Final = (b"", b"null", b'""')
_members = msgspec.json.Decoder(dict[str, Raw]).decode


def wrapped_input(value: bytes | Raw) -> Raw:
    """The object that holds a JSON value."""
    return Raw(b'{"%b":%b}' % (WRAPPER.encode(), bytes(value)))


def object_input(value: bytes | Raw) -> Raw:
    """The object for an input of another type. Null and an empty text mean no arguments: an empty object."""
    return EMPTY if bytes(value).strip() in _NOTHING else wrapped_input(value)


def unwrapped_input(given: bytes | Raw) -> Raw | None:
    """The JSON value in an object with no other member; None for any other text.

    Only the input of a tool that accepts no object may be unwrapped: for another tool the object is the input.
    """
    try:
        members = _members(given)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Raw(bytes(members[WRAPPER])) if members.keys() == {WRAPPER} else None
