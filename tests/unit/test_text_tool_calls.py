"""Tool calls in text: recognized forms, text that is not a call, removed text, and the limits."""

import json

import pytest
from filter_runs import fed, in_halves, in_pieces, most_held, shown

from reknit.pipeline.text.jsontext import ToolCall
from reknit.pipeline.text.tool_calls import Removed, ToolCallParser

CALL = '{"name":"A","arguments":{"b":1}}'
TAGGED = f"<tool_call>{CALL}</tool_call>"
A = ToolCall("A", '{"b":1}')


def parsed(text, **options):
    return fed(ToolCallParser(**options), [text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TAGGED + TAGGED, [A, A]),
        (f"{TAGGED}\n{TAGGED}", [A, "\n", A]),
        (f"<tool_call>\n{CALL}\n</tool_call>", [A]),
        (f"<tool_call>```json\n{CALL}\n```</tool_call>", [A]),
        (f"<tool_call>{CALL}}}]</tool_call>", [A, Removed("}]", "beside_call")]),
        (f"<tool_call>{CALL}\n{CALL}</tool_call>", [A, A]),
        (f"<tool_call>{CALL}{TAGGED}", [A, A]),
        ('<tool_call>{"name":"A","arguments":null}</tool_call>', [ToolCall("A", "{}")]),
        ('<tool_call>{"name":"A","arguments":""}</tool_call>', [ToolCall("A", "{}")]),
        ('<tool_call>{"name":"A","arguments":"oops"}</tool_call>', [ToolCall("A", '"oops"')]),
        ('<tool_call>{"arguments":{"n":1.0},"name":"A"}</tool_call>', [ToolCall("A", '{"n":1.0}')]),
        (
            '<tool_call>{"name":"A","id":7,"arguments":{ "x" : [ 1 , 2 ] }}</tool_call>',
            [ToolCall("A", '{"x":[1,2]}'), Removed('{"id":7}', "beside_call")],
        ),
        (f"{CALL} then", [A, " then"]),
        (f"```json\n{CALL}\n```", ["```json\n", A, "\n```"]),
        ('{"name":"A","arguments":"{\\"b\\":1}"}', [A]),
        ('{"tool_code": "F()"}', [ToolCall("F", "{}")]),
        ('{"tool_code": "F(\\"x\\")"}', [ToolCall("F", '{"input":"x"}')]),
        ('{"tool_code": "F(a, 1)"}', [ToolCall("F", '{"input":"a, 1"}')]),
        ('{"tool_code":"ns.f({\\"s\\":\\"}\\"})"}', [ToolCall("ns.f", '{"s":"}"}')]),
        ('<tool_call>{"name":"A","arguments":{"e":"\ud83d\ude00\ud83d"}}</tool_call>',
         [ToolCall("A", '{"e":"\\ud83d\\ude00\ufffd"}')]),
    ],
)  # fmt: skip
def test_a_call_is_found(text, expected):
    assert parsed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "The <tool_call> tag begins a call, </tool_call> ends it.",
        "<tool_call>",
        "<tool_call>not json</tool_call>",
        "<tool_call>[1]</tool_call>",
        f"`{TAGGED}`",
        f"Write `{CALL}` to call.",
        '<tool_call>{"name":"A", oops}</tool_call>',
        '<tool_call>{"name":"A","arguments":{"b":1}</tool_call>',
        '<tool_call>{"name":7,"arguments":{}}</tool_call>',
        '<tool_call>{"name":"","arguments":{}}</tool_call>',
        '<tool_call>{"arguments":{}}</tool_call>',
        '<tool_call>{"name":"A","arguments":{"b":"a raw\nline break"}}</tool_call>',
        f"<tool_call>{CALL} and so on</tool_call>",
        f"<tool_call>{CALL}",
        '{"name":"reknit","version":"1.0"}',
        '{"name":"A","arguments":{},"description":"a schema"}',
        '{"name":"A","arguments":[1]}',
        '{ "name":"A","arguments":{}}',
        f"[{CALL}]",
        f"[{CALL},\n{CALL}]",
        f'{{"request":{CALL}}}',
        f'{{"request": {CALL}}}',
        '{"tool_code": "no call"}',
        '{"tool_code": "F(1)", "x": 2}',
        '{"name":"A","arguments":{}',
        "{" * 1_000,
        '{"name":' + "[" * 501 + "]" * 501 + "}",
        "\x00\x1b[31m\u2028\ud800",
    ],
)  # fmt: skip
def test_text_that_only_looks_like_a_call_stays(text):
    assert "".join(parsed(text)) == text


def test_a_call_after_prose_is_found():
    assert parsed(f"Use <tool_call> like so: {TAGGED}") == ["Use <tool_call> like so: ", A]
    assert parsed(f'{{"name" is a key. {CALL}') == ['{"name" is a key. ', A]
    assert parsed(f"<tool_call>{{oops {TAGGED}") == ["<tool_call>{oops ", A]


def test_with_tools_a_bare_call_must_name_one():
    other = '{"name":"Alice","arguments":{}}'
    assert parsed(f"{CALL} {other}", tools=["A"]) == [A, f" {other}"]
    assert parsed('{"tool_code": "B()"}', tools=["A"]) == ['{"tool_code": "B()"}']
    # A tag is explicit; an unknown name in it is for the caller to reject.
    assert parsed(f"<tool_call>{other}</tool_call>", tools=["A"]) == [ToolCall("Alice", "{}")]


@pytest.mark.parametrize("attributes", ["", ' tool_call_id="x"', ' tool_call_id="x" is_error="true"'])
def test_an_echoed_result_is_removed_whole(attributes):
    echo = f"<tool_result{attributes}>\nleaked {TAGGED} {CALL}\n</tool_result>"
    assert parsed(f"a{echo}b{TAGGED}") == ["a", Removed(echo, "echoed_result"), "b", A]


@pytest.mark.parametrize("text", ["<tool_results>x</tool_results>", "`<tool_result>` is a tag", "<tool_result <b>"])
def test_text_that_is_not_a_result_stays(text):
    assert "".join(parsed(text)) == text


def test_nothing_in_an_echo_becomes_a_call_wherever_it_is_cut():
    echo = f'<tool_result tool_call_id="x">\n{TAGGED}{CALL}<tool_call>{CALL}</tool_call>\n</tool_result>'
    for end in range(len(echo) + 1):
        text = echo[:end]
        whole = [Removed(text, "echoed_result")] if end == len(echo) else [text] * bool(end)
        assert parsed(text) == whole
        outputs = fed(ToolCallParser(), text)
        assert "".join(output if isinstance(output, str) else output.text for output in outputs) == text


def test_a_quoted_tag_is_prose_and_a_quoted_result_is_removed():
    assert parsed(f"`<tool_result>` tags hold results. {TAGGED}") == ["`<tool_result>` tags hold results. ", A]
    echo = f"<tool_result>\n{TAGGED}\n</tool_result>"
    assert parsed(f"`{echo}`") == ["`", Removed(echo, "echoed_result"), "`"]
    assert "".join(parsed(f"`<tool_result>\n{TAGGED}")) == f"`<tool_result>\n{TAGGED}"


def test_calls_are_numbered():
    parser = ToolCallParser()
    parser.feed(TAGGED + CALL + f"<tool_call>{CALL}")
    assert parser.calls == 2
    parser.feed("</tool_call>")
    assert parser.calls == 3


LONG = f'{{"name":"A","arguments":{{"t":"{"x" * 300} <tool_call>{{}} {CALL[:5]}"}}}}'
ECHO = f"<tool_result>{'x' * 300}{TAGGED}</tool_result>"


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("text", [f"<tool_call>{LONG}</tool_call>", LONG, ECHO], ids=["tagged", "bare", "a result"])
def test_an_overlong_call_is_text_up_to_its_end(text, size):
    *before, last = fed(ToolCallParser(limit=200), in_pieces(f"{text} {TAGGED}", size))
    assert ("".join(before), last) == (f"{text} ", A)


@pytest.mark.parametrize(
    "unit",
    [
        "<",
        "<tool_call>",
        "<tool_call>   ",
        "<tool_result ",
        "<tool_result>",
        '{"name":',
        '{"name":"',
        "{",
        CALL[:-1],
        "</",
    ],
)
def test_no_more_than_the_limit_is_held(unit):
    assert most_held(ToolCallParser(limit=500), (unit * 20_000)[:20_000]) <= 500 + 300


def test_state_can_be_loaded_into_another_parser():
    text = f'\ud83d <tool_call>```json\n{CALL}\n``` }}</tool_call> <tool_result a="b">{CALL}</tool_result>{CALL}<tool_'
    expected = parsed(text)
    assert [type(output) for output in expected] == [str, ToolCall, Removed, str, Removed, ToolCall, str]
    for outputs, other in in_halves(ToolCallParser, text):
        assert [output for output in outputs if not isinstance(output, str)] == [
            output for output in expected if not isinstance(output, str)
        ]
        assert (shown(outputs), other.calls) == ("\ud83d  <tool_", 2)


def test_ten_megabytes_in_one_line_and_a_million_pieces_are_fast():
    line = 'x <tool {"nam": "' * 600_000
    assert parsed(line) == [line]
    long = json.dumps({"name": "A", "arguments": {"text": '\\ " } <' * 800_000}})
    assert parsed(f"<tool_call>{long}</tool_call>", limit=1 << 24)[0].name == "A"
    outputs = fed(ToolCallParser(), f"say {TAGGED} " * 18_000)
    assert outputs.count(A) == 18_000
    assert shown(outputs) == "say  " * 18_000
