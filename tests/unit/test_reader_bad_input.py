"""Unusable input is rejected with a typed error that names the place; no other exception is raised."""

import json
import pickle
import sys

import pytest
from msgspec import Raw
from reader_results import one, refusal

from reknit.pipeline.errors import InputError, InternalError, PolicyError, ReknitError, StreamError, UnknownTargetError
from reknit.pipeline.history.readers.shapes import SHAPES, read, read_message
from reknit.pipeline.model import Text, ToolResult, Unknown


@pytest.mark.parametrize(
    ("data", "code", "path"),
    [
        (b"", "empty", ""),
        (b" \n\t ", "empty", ""),
        (b"\xef\xbb\xbf", "empty", ""),
        (b"{", "not_json", ""),
        (b"hello", "not_json", ""),
        (b"[] []", "not_json", ""),
        (b'[{"role":"user","content":NaN}]', "not_json", ""),
        (b'[{"role":"user","content":"\xff"}]', "not_utf8", ""),
        (b'[{"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{"x":"\xff"}}]}]', "not_utf8", ""),
        (b'{"messages":[],"system":[{"type":"text","text":"\xff"}]}', "not_utf8", ""),
        (b"7", "wrong_type", ""),
        (b"null", "wrong_type", ""),
        (b"{}", "no_messages", ""),
        (b'{"messages":null}', "wrong_type", "messages"),
        (b'{"messages":"hi"}', "wrong_type", "messages"),
        (b'{"messages":[null]}', "wrong_type", "messages.0"),
        (b'["hi"]', "wrong_type", "messages.0"),
        (b"[[]]", "wrong_type", "messages.0"),
        (b"[{}]", "unknown_shape", "messages.0"),
        (b'[{"type":"hologram","output":"x"}]', "unknown_shape", "messages.0"),
        (b'[{"role":"user","content":"a"},{"role":5,"content":"x"}]', "wrong_type", "messages.1.role"),
        (b'[{"role":"narrator","content":"x"}]', "unknown_role", "messages.0.role"),
        (b'[{"role":"user","content":[null]}]', "wrong_type", "messages.0.content.0"),
        (b'[{"role":"user","content":[{"type":"text","text":5}]}]', "wrong_type", "messages.0.content.0.text"),
        (b'[{"role":"user","content":"x","id":1.5}]', "wrong_type", "messages.0.id"),
        (b'[{"role":"assistant","tool_calls":7}]', "wrong_type", "messages.0.tool_calls"),
        (b'[{"role":"assistant","tool_calls":["x"]}]', "wrong_type", "messages.0.tool_calls.0"),
        (b'{"messages":[],"system":5}', "wrong_type", "system"),
        (b'{"messages":[],"model":5}', "wrong_type", "model"),
        (b'{"messages":[],"tools":{}}', "wrong_type", "tools"),
        (b'{"messages":[],"tools":[5]}', "wrong_type", "tools.0"),
        (b'{"messages":[],"tools":[{"a":1,"b":2}]}', "wrong_type", "tools.0"),
        (b'{"messages":[],"params":[]}', "wrong_type", "params"),
        (object(), "not_json", ""),
        ([{"role": "user", "content": float("nan")}], "not_json", ""),
        ([{"role": "user", "content": float("inf"), "x": None}], "not_json", ""),
        ([{"role": "user", "content": "\ud83d", "x": float("nan")}], "not_json", ""),
        ([{"role": "user", "content": "\ud83d", "x": 1j}], "not_json", ""),
        ([{("a", "b"): 1}], "not_json", ""),
    ],
)
def test_unusable_input(data, code, path):
    assert refusal(read, data) == (code, path)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 100_000,
        b'{"messages":' + b'{"a":' * 100_000,
        b'[{"role":"user","content":' + b"[" * 2_000 + b"]" * 2_000 + b"}]",
        b'{"messages":[],"params":{"x":' + b"[" * 600 + b"]" * 600 + b"}}",
        b'{"type":"user","uuid":"a","message":' + b'{"a":' * 600 + b"1" + b"}" * 600 + b"}\n{}",
    ],
)
def test_deep_nesting_is_rejected_without_recursion(data):
    assert refusal(read, data)[0] == "nested_too_deeply"


def call(depth, *, fast):
    """Return a message whose call's input nests so that the whole message nests ``depth`` levels."""
    levels = depth - 4
    extra = b"" if fast else b',"x":1'
    nested = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
    return b'{"role":"assistant"%s,"content":[{"type":"tool_use","id":"a","name":"f","input":%s}]}' % (extra, nested)


@pytest.mark.parametrize("fast", [True, False])
def test_the_limit_is_500_levels_in_a_message(fast):
    turns, _ = read_message(call(500, fast=fast), index=0)
    assert turns[0].blocks[0].input == Raw(b'{"a":' + b"[" * 496 + b"]" * 496 + b"}")
    with pytest.raises(InputError) as caught:
        read_message(call(501, fast=fast), index=3)
    assert (caught.value.code, caught.value.rule, caught.value.path) == ("nested_too_deeply", "nesting", "messages.3")


def test_brackets_in_strings_do_not_nest():
    text = "[{" * 5_000 + '\\"'
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": text}}
    assert read([{"role": "assistant", "content": [call]}]).fixes == ()


def test_deep_arguments_are_rejected():
    arguments = '{"a":' + "[" * 600 + "]" * 600 + "}"
    message = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}]}
    assert refusal(read, [message]) == ("nested_too_deeply", "messages.0.tool_calls.0.function.arguments")


def test_python_objects_that_contain_themselves_are_rejected():
    ring = []
    ring.append(ring)
    assert refusal(read, ring) == ("nested_too_deeply", "messages.0")
    assert refusal(read, {"messages": [{"role": "user", "content": "x"}, ring]}) == ("nested_too_deeply", "messages.1")
    deep = json.loads("[" * 900 + "]" * 900)
    assert refusal(read, [{"role": "user", "content": "\ud83d"}, [deep, deep]]) == ("nested_too_deeply", "messages.1")
    message = {"role": "user", "content": ring}
    assert refusal(read_message, message, index=3) == ("nested_too_deeply", "messages.3")


def test_a_nearly_exhausted_stack_is_a_typed_error_too():
    data = b"[" * 490 + b"]" * 490

    def dive(levels):
        return dive(levels - 1) if levels else read(data)

    depth = sys.getrecursionlimit() - 400
    with pytest.raises(InputError):
        dive(depth)


def test_a_byte_order_mark_is_not_part_of_the_input():
    result = read(b'\xef\xbb\xbf [{"role":"user","content":"x"}] \n')
    assert result.conversation.turns[0].blocks == (Text(text="x"),)


def test_the_last_of_duplicate_keys_counts():
    turns, fixes = read_message(b'{"role":"user","content":"a","content":"b"}', index=0)
    assert (turns[0].blocks, fixes) == ((Text(text="b"),), [])
    turns, _ = read_message(b'{"role":"user","content":"a","x":1,"content":"b"}', index=0)
    assert turns[0].blocks == (Text(text="b"),)


def test_bytes_strings_and_objects_are_read_alike():
    history = [{"role": "user", "content": "é"}]
    text = json.dumps(history, ensure_ascii=False)
    assert read(text) == read(text.encode()) == read(history) == read(bytearray(text.encode()))


def test_sources_have_names():
    assert {"anthropic", "claude-code", "gemini", "gemini-chat"} <= set(SHAPES)
    with pytest.raises(UnknownTargetError) as caught:
        read([], source="nonsense")
    assert caught.value.code == "unknown_source"


def test_errors_state_whose_fault_it_is_and_survive_pickling():
    error = InputError("wrong_type", "expected a string, found null", path="messages.1.role", rule="R1")
    assert str(error) == "messages.1.role: expected a string, found null [wrong_type, rule R1]"
    assert str(PolicyError("bad_policy", "no such tail")) == "no such tail [bad_policy]"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  the test's own bytes
    said = (copy.code, copy.path, copy.rule, str(copy))
    assert (type(copy), *said) == (InputError, "wrong_type", "messages.1.role", "R1", str(error))
    faults = [kind.fault for kind in (InputError, PolicyError, UnknownTargetError, StreamError, InternalError)]
    assert faults == ["caller", "caller", "caller", "provider", "us"]
    with pytest.raises(TypeError):
        ReknitError("x", "y")


@pytest.mark.parametrize("redaction", [b"true", b"7"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_unreadable_redaction_never_lets_the_message_through(wrapped, redaction):
    message = b'"role":"user","content":"SECRET"'
    given = b'[{"message":{%b},"redactMessage":%b}]' if wrapped else b'[{%b,"redactMessage":%b}]'
    assert refusal(read, given % (message, redaction)) == ("wrong_type", "messages.0.redactMessage")


# Halves of surrogate pairs are joined where they meet over two parts and replaced elsewhere, both recorded.


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


def test_pairs_and_characters_that_look_like_the_masks_are_left_alone():
    turn, fixes = one(rb'{"role":"user","content":"\udb80\udc00 \ud83d\ude00 \ud83d"}')
    assert turn.blocks == (Text(text="\U000f0000 \U0001f600 \ufffd"),)
    assert len(fixes) == 1
    turn, _ = one('{"role":"user","content":"\U000f0000\U000f07ff\\ud83d"}')
    assert turn.blocks == (Text(text="\U000f0000\U000f07ff\ufffd"),)


def test_only_the_affected_messages_are_changed():
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


def test_the_mask_of_a_half_is_never_shown():
    drop = r'{"role":"user","content":"a","x\ud83d":"\ud83d"}'
    alone = read_message(drop, index=1)[1]
    among = read('[{"role":"user","content":"\U000f0000"},' + drop + "]")
    assert [fix.path for fix in alone] == ["messages.1.x\ufffd"]
    assert list(among.fixes) == alone
