"""Session items of the OpenAI Agents SDK that another model than OpenAI's wrote: Responses items with provider data.

Such an item has a false id. The encrypted content of its reasoning holds the signatures of the thinking blocks; the
blocks are in the provider data. The model's name begins with the provider and a slash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import Framework, Item, Members, Reading, is_list, is_object, word
from reknit.pipeline.history.pieces import GEMINI, RESPONSES
from reknit.pipeline.history.readers.fields import Fields, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Issuer, Thinking, Turn
from reknit.pipeline.providers.openai_responses.reader import ITEM_TYPES

_FAKE: Final = "__fake_id__"
_DATA: Final = "provider_data"


def _decides(members: Members) -> bool:
    is_item = word(members, "type") in ITEM_TYPES or word(members, "type") == "message"
    return is_item and (is_object(members, _DATA) or word(members, "id") == _FAKE)


def _fits(members: Members) -> bool:
    return word(members, "type") in ITEM_TYPES or "role" in members


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        members = fields.members()
        data = as_object(members[_DATA], fields.at(_DATA)) if is_object(members, _DATA) else {}
        provider, _, model = word(data, "model").rpartition("/")
        issuer = parts.issuer_of(provider.rpartition("/")[2], model)
        is_foreign = word(members, "id") == _FAKE or (issuer is not None and issuer.provider != RESPONSES)
        if is_foreign and word(members, "type") == "reasoning":
            reading.add("assistant", _thinking(fields, data, issuer), item)
            fields.clear()
            continue
        kept = {name: value for name, value in members.items() if name != _DATA}
        if word(members, "id") == _FAKE:
            del kept["id"]
        reading.read_as(
            "openai-responses", Item(Fields(Raw(msgspec.json.encode(kept)), fields.path, fields.notes), item.index)
        )
        if (signature := word(data, "thought_signature")) and issuer is not None and issuer.provider == GEMINI:
            reading.turns[-1] = _sealed(reading.turns[-1], parts.standard_base64(signature), issuer)


def _sealed(turn: Turn, signature: str, issuer: Issuer) -> Turn:
    """Return the turn of a call after its Gemini signature."""
    seal = Thinking(thinking="", signature=signature, issuer=issuer)
    paths = turn.paths or ()
    return replace(turn, blocks=(seal, *turn.blocks), paths=(f"{turn.place}.{_DATA}.thought_signature", *paths))


def _thinking(fields: Fields, data: Members, issuer: Issuer | None) -> list[Placed]:
    if is_list(data, "thinking_blocks"):
        given = Fields(Raw(msgspec.json.encode(data)), fields.at(_DATA), fields.notes)
        return parts.thinking_blocks(given, "thinking_blocks", issuer)
    placed: list[Placed] = []
    texts = fields.objects("content") or fields.objects("summary")
    signatures = parts.value_text(fields.peek("encrypted_content")).split("\n")
    for at, part in enumerate(texts):
        if part is not None and starts_with(part.get("text", Raw(b"null")), b'"'):
            # If their numbers are equal, the signatures are in the order of the texts.
            signature = signatures[at] if len(signatures) == len(texts) else ""
            placed.append((parts.thinking(word(part, "text"), signature, issuer), fields.path))
    return placed


FRAMEWORK: Final = Framework(
    name="openai-agents",
    title="OpenAI Agents SDK",
    forms="session items of models that are not OpenAI's",
    tried="openai-agents 0.24.0",
    decides=_decides,
    fits=_fits,
    read=_read,
)
