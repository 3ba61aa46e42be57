"""Checks of chained responses, and the items that a chained request continues."""

from __future__ import annotations

from typing import Any

from mock_provider.received import Received, listed, members
from mock_provider.sentences import RefusedError


def check_chain(request: Received) -> list[dict[str, Any]]:
    """Return the items of the previous response; refuse a response that this caller cannot use."""
    previous = request.body.get("previous_response_id")
    if previous is None:
        return []
    if request.facts.zero_retention:
        raise RefusedError("retention")
    stored = request.state.responses.get(previous)
    if stored is None or stored.boundary != request.boundary or previous in request.state.gone:
        raise RefusedError("previous", previous, id=previous)
    return stored.items


def check_outputs(request: Received, chained: list[dict[str, Any]]) -> None:
    """Refuse an output whose call is neither in the request nor in what it is chained to.

    With the wording ``other_response``, the stored response is another one: then its calls alone count.
    """
    items = [*chained, *(members(item) for item in listed(request.body.get("input")))]
    known = chained if request.wording == "other_response" and chained else items
    calls = {item.get("call_id") for item in known if item.get("type") == "function_call"}
    for item in items:
        if item.get("type") == "function_call_output" and item.get("call_id") not in calls:
            raise RefusedError("output_alone", id=item.get("call_id"))
