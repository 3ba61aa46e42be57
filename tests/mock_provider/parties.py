"""The parties that a session can talk to: shape, platform, and who reads whose values."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Shape = Literal["messages", "converse", "responses", "gemini", "chat"]


class Party(Struct, frozen=True, kw_only=True):
    """One provider on one platform.

    Attributes:
        name: of the party.
        shape: of its requests.
        target: Reknit's name for the shape.
        platform: values are accepted on the platform that issued them.
        model: that sessions use.
        per_connection: item ids and encrypted content belong to one connection.
    """

    name: str
    shape: Shape
    target: str
    platform: str
    model: str
    per_connection: bool = False


PARTIES: Final = {
    party.name: party
    for party in (
        Party(name="ant", shape="messages", target="anthropic", platform="direct", model="claude-sonnet-4-20250514"),
        Party(name="vtx", shape="messages", target="anthropic", platform="vertex", model="claude-sonnet-4-20250514"),
        Party(
            name="bed",
            shape="converse",
            target="bedrock-converse",
            platform="bedrock",
            model="anthropic.claude-sonnet-4-5",
        ),
        Party(name="pfx", shape="messages", target="anthropic", platform="direct", model="claude-fable-5-1"),
        Party(name="oai", shape="responses", target="openai-responses", platform="openai", model="gpt-5.5"),
        Party(name="azr", shape="responses", target="openai-responses", platform="azure", model="gpt-5.5"),
        Party(
            name="cop",
            shape="responses",
            target="openai-responses",
            platform="copilot",
            model="gpt-5.5",
            per_connection=True,
        ),
        Party(name="gem", shape="gemini", target="gemini", platform="aistudio", model="gemini-3-pro-preview"),
        Party(name="gvx", shape="gemini", target="gemini", platform="vertex", model="gemini-3-pro-preview"),
        Party(name="dsk", shape="chat", target="openai-chat", platform="deepseek", model="deepseek-v4-pro"),
        Party(name="kim", shape="chat", target="openai-chat", platform="moonshot", model="kimi-k2.5"),
        Party(name="vll", shape="chat", target="vllm", platform="vllm", model="qwen3-vl-8b"),
    )
}
