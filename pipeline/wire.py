"""The canonical blocks as JSON: what is only ours, the issuer and the wrapping of unknown blocks, stays behind."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, structs

from pipeline.model import Block, ToolResult, Unknown


def on_the_wire(block: Block) -> Any:  # noqa: ANN401  a block's struct, or raw JSON for an unknown one
    """What to encode for a block in Anthropic's shape."""
    if isinstance(block, Unknown):
        return block.raw
    if block.issuer is not UNSET:
        block = structs.replace(block, issuer=UNSET)
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        return structs.replace(block, content=[on_the_wire(part) for part in block.content])
    return block
