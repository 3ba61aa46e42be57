"""The generated checks that a block has nothing unusual on it."""

import inspect

import msgspec
import pytest
from msgspec import UNSET, Raw

from reknit.pipeline import model
from reknit.pipeline.history import valid_runs
from reknit.pipeline.history.pieces import TrackedBlock
from reknit.pipeline.history.unusual import unusual
from reknit.pipeline.providers.anthropic.writer.blocks import stays
from reknit.pipeline.targets.fitting import is_bare

RAW = Raw(b"[]")
ISSUER = model.Issuer("anthropic")
OWN = model.Own("anthropic", {"index": RAW})
MEMBERS = {
    "cache_control": RAW,
    "issuer": ISSUER,
    "own": OWN,
    "citations": RAW,
    "refusal": True,
    "structured": True,
    "caller": RAW,
    "incomplete": True,
    "signature": "s",
    "content": "done",
    "is_error": True,
}
BLOCKS = [
    model.Text(text="hi"),
    model.ToolUse(id="t", name="ls", input=Raw(b"{}")),
    model.ToolResult(tool_use_id="t"),
    model.Thinking(thinking="hm"),
    model.RedactedThinking(data="eA=="),
]


def optional(kind):
    return [field.name for field in msgspec.structs.fields(kind) if not field.required]


ONE_MEMBER_MORE = [(block, name) for block in BLOCKS for name in optional(type(block))]


@pytest.mark.parametrize(("block", "name"), ONE_MEMBER_MORE)
def test_every_optional_member_makes_a_block_unusual(block, name):
    is_unusual = unusual(type(block))
    assert is_unusual(block) is False
    assert is_unusual(msgspec.structs.replace(block, **{name: MEMBERS[name]})) is True
    assert unusual(type(block), name)(msgspec.structs.replace(block, **{name: MEMBERS[name]})) is False


def test_a_new_member_makes_a_block_unusual_by_default():
    class Text(model.Text, frozen=True, tag="text"):
        audio: Raw | msgspec.UnsetType = UNSET
        hidden: bool = False

    is_unusual = unusual(Text, *optional(model.Text))
    assert is_unusual(Text(text="hi")) is False
    assert is_unusual(Text(text="hi", audio=RAW)) is True
    assert is_unusual(Text(text="hi", hidden=True)) is True


@pytest.mark.parametrize("name", ["text", "citation"])
def test_only_an_optional_member_can_be_exempt(name):
    with pytest.raises(TypeError, match=f"^Text has no optional member {name}$"):
        unusual(model.Text, name)


def test_a_default_that_cannot_be_compared_by_identity_is_an_error():
    with pytest.raises(TypeError, match=r"^Own: the default of an optional member is neither UNSET nor False$"):
        unusual(model.Own, "members")


def test_the_generated_source_can_be_read():
    assert inspect.getsource(unusual(model.ToolResult, "content", "is_error")) == (
        "def unusual(block):  # ToolResult\n"
        "    return not (block.cache_control is block.issuer is block.own is UNSET)\n"
    )


# The members that each fast path looks at itself, or that its careful path writes like their absence.
LOOKED_AT = {
    "bare": {"issuer", "structured", "incomplete", "signature", "content", "is_error"},
    "stays": {"incomplete", "signature", "content", "is_error"},
    "plain text": set(),
}


@pytest.mark.parametrize(("block", "name"), ONE_MEMBER_MORE)
def test_each_fast_path_leaves_blocks_with_unusual_members_to_the_careful_path(block, name):
    signed = {"signature": "s"} if isinstance(block, model.Thinking) else {}
    more = msgspec.structs.replace(block, **signed | {name: MEMBERS[name]})
    assert is_bare(TrackedBlock(more, 0, "messages.0.content.0")) is (name in LOOKED_AT["bare"])
    # Citations that are none stay, callers too, and the issuer of reasoning is compared with the target.
    stay = {
        (model.Text, "citations"),
        (model.ToolUse, "caller"),
        (model.Thinking, "issuer"),
        (model.RedactedThinking, "issuer"),
    }
    assert stays(more) is (name in LOOKED_AT["stays"] or (type(block), name) in stay)
    if isinstance(more, model.Text):
        assert valid_runs._is_plain(more) is False
