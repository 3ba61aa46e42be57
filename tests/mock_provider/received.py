"""A request as a provider reads it, and the parts that all checks use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mock_provider.facts import Facts
from mock_provider.parties import Party
from mock_provider.state import State
from msgspec import Struct


class Received(Struct, kw_only=True):
    """One request.

    Attributes:
        party: that received it.
        state: of the provider.
        facts: of the model.
        organisation: of the credential.
        connection: that it came over.
        body: the request, changed by nothing.
        dropped: places of reasoning that the provider leaves out without an error, with the reason.
        wording: that a script selects where a provider has several.
    """

    party: Party
    state: State
    facts: Facts
    organisation: str
    connection: str
    body: dict[str, Any]
    dropped: dict[str, str]
    wording: str = ""

    @property
    def boundary(self) -> str:
        """Return who can read the values that this party issues to this caller."""
        if self.party.platform in ("openai", "direct", "vertex", "bedrock"):
            return self.party.platform
        if self.party.per_connection:
            return f"{self.party.platform}:{self.connection}"
        return f"{self.party.platform}:{self.organisation}"


def members(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def values_in(value: object) -> Iterator[dict[str, Any]]:
    """Yield an object and all objects within it."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from values_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from values_in(each)
