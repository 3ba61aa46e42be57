"""Checks of search results and of tool references in requests to Claude."""

from __future__ import annotations

from typing import Any

from mock_provider.received import Received, listed, members, values_in
from mock_provider.sentences import RefusedError


def check_searches(request: Received, messages: list[dict[str, Any]]) -> None:
    """Refuse search results whose pages the provider cannot read any more."""
    for at, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            if block["type"] != "web_search_tool_result":
                continue
            path = f"messages.{at}.content.{place}"
            for page in map(members, listed(block.get("content"))):
                value = page.get("encrypted_content")
                if value is None:
                    raise RefusedError("search_field", at=path)
                if (request.party.platform, "search", value) not in request.state.issued:
                    raise RefusedError("search", value, at=path)


def check_references(request: Received, messages: list[dict[str, Any]]) -> None:
    """Refuse references to tools that are not declared; the tool search itself cannot be referred to."""
    tools = [members(tool) for tool in listed(request.body.get("tools"))]
    declared = {tool.get("name") for tool in tools if not str(tool.get("type")).startswith("tool_search_tool_")}
    places = [block for message in messages for block in values_in(message["content"])]
    for each in [*places, *tools]:
        if each.get("type") == "tool_reference" and each.get("tool_name") not in declared:
            raise RefusedError("tool_reference", name=each.get("tool_name"))
