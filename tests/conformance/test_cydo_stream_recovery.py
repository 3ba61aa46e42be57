"""The recovery cases of CyDo (PR #6), as they hold here.

Each vector has Reknit's complete items. ``source_items`` are the source's; if Reknit's differ by more than ids and
additional fields, ``why`` states the reason in one sentence. A vector with a ``why`` must differ and one without must
not, so no reason outlives its difference.
"""

import msgspec
import pytest
from reader_results import vectors

from reknit.pipeline.streams.session import Recovery
from reknit.topics.reducer import reduce

each_vector = pytest.mark.parametrize("vector", vectors("cydo_stream_recovery"), ids=lambda vector: vector["name"])
# Fields that the source does not have.
OURS = {"at", "expanded", "origin", "seq", "unseen"}


def recovered(lines, size=1):
    recovery = Recovery("claude-cli", records=False)
    items = []
    for first in range(0, len(lines), size):
        items += recovery.feed("\n".join(lines[first : first + size]).encode())
    return items + recovery.end_run("end of input")


def as_json(items):
    return msgspec.json.decode(msgspec.json.encode(items))


def with_mapped_ids(items):
    """The source uses ``cc-block-0`` again in every message: number ids by their starts instead."""
    names = {}
    mapped = []
    started = 0
    for item in items:
        kept = {name: value for name, value in item.items() if name not in OURS}
        item_id = kept.get("item_id", "")
        if item_id.startswith("cc-"):
            if kept["type"] == "item/started":
                names[item_id] = f"#{started}"
                started += 1
            kept["item_id"] = names[item_id]
        mapped.append(kept)
    return mapped


@each_vector
def test_items_are_exactly_these(vector):
    assert as_json(recovered(vector["lines"])) == vector["items"]


@each_vector
def test_items_differ_from_the_source_only_for_a_reason(vector):
    same = with_mapped_ids(vector["items"]) == with_mapped_ids(vector["source_items"])
    assert same == ("why" not in vector)


@each_vector
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_any_batching_ends_with_this_view(vector, size):
    view = reduce(recovered(vector["lines"], size))
    blocks = [
        {"type": entry.item_type, "text": entry.text, "parent": entry.parent, "incomplete": entry.incomplete}
        for entry in view.entries
        if entry.item_type != "user_message"
    ]
    assert [{name: value for name, value in block.items() if value} for block in blocks] == vector["view"]
    assert [result.unseen for result in view.results.values()] == vector["unseen"]
    assert [result.expanded for result in view.results.values()] == vector["expanded"]
