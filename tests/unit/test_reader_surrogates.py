r"""Halves of surrogate pairs are joined where they meet over two parts and replaced elsewhere, both recorded."""

import pytest
from msgspec import Raw
from reading import one

from pipeline.history.readers import read, read_message
from pipeline.model import Text, ToolResult, Unknown


def test_a_pair_split_over_two_parts_is_joined_in_the_first():
    turn, fixes = one(rb'{"role":"user","content":[{"type":"text","text":"a\ud83d"},{"type":"text","text":"\ude00b"}]}')
    assert turn.blocks == (Text(text="a\U0001f600"), Text(text="b"))
    assert fixes == [("surrogate_joined", "messages.0.content.1")]


def test_a_pair_split_over_two_parts_of_a_result_is_joined():
    turn, fixes = one(
        rb'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":'
        rb'[{"type":"text","text":"\uD83D"},{"type":"text","text":"\uDE00"}]}]}'
    )
    assert turn.blocks == (ToolResult(tool_use_id="a", content=[Text(text="\U0001f600"), Text(text="")]),)
    assert fixes == [("surrogate_joined", "messages.0.content.0")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb"a\ud83d", "a\ufffd"),
        (rb"\ude00a", "\ufffda"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud83d \\\ud83d", "\\ud83d \\\ufffd"),
    ],
)
def test_a_lone_half_is_replaced(text, expected):
    turn, fixes = one(b'{"role":"user","content":"%s"}' % text)
    assert turn.blocks == (Text(text=expected),)
    assert fixes == [("surrogate_replaced", "messages.0.content")]


def test_raw_values_keep_their_bytes_around_the_replacement():
    turn, fixes = one(
        rb'{"role":"assistant","content":['
        rb'{"type":"tool_use","id":"a","name":"f","input":{"x":  "\u00e9\ud83d", "n":1.0}},'
        rb'{"type":"odd","x":"\ud83d"}]}'
    )
    assert turn.blocks[0].input == Raw('{"x":  "\\u00e9\ufffd", "n":1.0}'.encode())
    assert turn.blocks[1] == Unknown(kind="odd", raw=Raw('{"type":"odd","x":"\ufffd"}'.encode()))
    assert fixes == [
        ("surrogate_replaced", "messages.0.content.0"),
        ("surrogate_replaced", "messages.0.content.1"),
    ]


def test_pairs_and_characters_that_look_like_our_masks_are_left_alone():
    turn, fixes = one(rb'{"role":"user","content":"\udb80\udc00 \ud83d\ude00 \ud83d"}')
    assert turn.blocks == (Text(text="\U000f0000 \U0001f600 \ufffd"),)
    assert len(fixes) == 1
    turn, _ = one('{"role":"user","content":"\U000f0000\U000f07ff\\ud83d"}')
    assert turn.blocks == (Text(text="\U000f0000\U000f07ff\ufffd"),)


def test_only_the_messages_concerned_are_touched():
    result = read(
        rb'{"system":"s\ud83d","messages":[{"role":"user","content":"a"},{"role":"user","content":"\ud83d"}]}'
    )
    assert result.conversation.system == "s\ufffd"
    assert [turn.blocks for turn in result.conversation.turns] == [(Text(text="a"),), (Text(text="\ufffd"),)]
    assert [(fix.code, fix.path, fix.lossless) for fix in result.fixes] == [
        ("surrogate_replaced", "system", False),
        ("surrogate_replaced", "messages.1.content", False),
    ]


def test_surrogates_in_python_strings_and_in_loose_utf8():
    parts = [{"type": "text", "text": "\ud83d"}, {"type": "text", "text": "\ude00"}]
    turn, fixes = one({"role": "user", "content": parts})
    assert turn.blocks[0] == Text(text="\U0001f600")
    assert fixes == [("surrogate_joined", "messages.0.content.1")]
    assert one('{"role":"user","content":"\ud83d"}')[0].blocks == (Text(text="\ufffd"),)
    assert one(b'{"role":"user","content":"\xed\xa0\xbd"}')[0].blocks == (Text(text="\ufffd"),)
    assert one(b'{"role":"user","content":"\xed\xa0\xbd\xed\xb8\x80"}')[0].blocks == (Text(text="\U0001f600"),)


def test_an_id_with_half_a_pair():
    turn, fixes = one(rb'{"role":"user","content":"a","id":"m\ud83d"}')
    assert turn.id == "m\ufffd"
    assert fixes == [("surrogate_replaced", "messages.0.id")]


def test_what_stands_for_a_half_is_never_shown():
    drop = r'{"role":"user","content":"a","x\ud83d":"\ud83d"}'
    alone = read_message(drop, index=1)[1]
    among = read('[{"role":"user","content":"\U000f0000"},' + drop + "]")
    assert [fix.path for fix in alone] == ["messages.1.x\ufffd"]
    assert list(among.fixes) == alone
