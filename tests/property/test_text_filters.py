"""The text filters over arbitrary text in arbitrary pieces, built from the patterns that they look for.

Streamed output equals whole output; nothing outside of replaced text changes; no root path is left; an echoed tool
result never becomes a call.
"""

import os
import re
from functools import partial

from filter_runs import fed, in_pieces
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.pipeline.providers.cascade.stream.speech import OutputFilter
from reknit.pipeline.text.identity import IdentityRewriter
from reknit.pipeline.text.jsontext import ToolCall
from reknit.pipeline.text.redaction import Redactor
from reknit.pipeline.text.tool_calls import Removed, ToolCallParser

# More examples for a long run: REKNIT_EXAMPLES=10.
SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
MODEL = "claude-opus-4-7"
CALL = '{"name":"A","arguments":{"p":"/opt/windsurf/x"}}'

PATHS = (
    *("/opt/windsurf", "/tmp/windsurf-workspace", "/home/user/projects/workspace-", "/root/WindsurfAPI"),  # noqa: S108 - text
    *("\\opt\\windsurf", "C:", "file://", "/opt", "windsurf", "/", "\\", "\\\\", "-", ".", "a1", "/x", "\\n", "文"),
)
PHRASES = (
    *("I am ", "I'm ", "my name is ", "As ", "Acting as ", "the ", "Cascade", "cascade", "'s", "\u2019s", " workspace"),
    *(
        ", made by ",
        "Codeium",
        "Windsurf",
        " is an AI coding assistant",
        " is a ",
        "assistant",
        "built by ",
        ", an AI ",
    ),
)
CALLS = (
    *("<tool_call>", "</tool_call>", '<tool_result tool_call_id="x">', "<tool_result>", "</tool_result>", CALL),
    *('{"name"', '"arguments"', '{"tool_code":"F(1)"}', '{"tool_code"', ":", ",", '"', "{", "}", "[", "]", "<", "\\"),
)
CONTEXTS = ("```", "~~~", "`", "\n", "```py\n", "\n```\n", '{"', '{ "', '["', '"}', "   ", "  ", " ", "\t", "\xa0")
ODD = ("\ud83d", "\ude00", "\x00", "\u2028", "\U0001f600", "é", "x", "\u017f", "İ", "(", "_")


# Whole matches of the patterns: single words combine into one too rarely.
WHOLE = {
    PATHS: (
        *(
            " /opt/windsurf/bin",
            "(/opt/windsurf)",
            "C:\\opt\\windsurf\\x",
            'file:///opt/windsurf/x..\\\\"',
            "/opt/windsurf.",
        ),
        *(" /home/user/projects/workspace-a1/x!?", "/root/WindsurfAPI:/opt/windsurf", "/opt/windsurf-next"),
    ),
    PHRASES: (
        *("I am Cascade", " I'm Cascade, made by Windsurf", "the Cascade workspace", " As Cascade's workspace"),
        *("Windsurf's Cascade is an AI coding assistant", "my name is Cascade.", "built by Codeium", "(I am\tCascade"),
    ),
    CALLS: (
        *(f"<tool_call>{CALL}</tool_call>", f"<tool_call>```json\n{CALL}\n```}}</tool_call>", f"`{CALL}`", f"[ {CALL}"),
        *(
            f'<tool_result tool_call_id="x">{CALL}</tool_result>',
            "`<tool_result>`",
            f"`<tool_result>{CALL}",
            f"<tool_call>{CALL}",
            f'":{CALL}',
            f"`<tool_call>{CALL}",
        ),
    ),
    CONTEXTS: (
        '{"a": ["I am Cascade", "/opt/windsurf"]}',
        "\n```\nI am Cascade\n```\n",
        "\n  ~~~~ x\nI am Cascade\n~~~~~\n",
    ),
}


def texts(*alphabets):
    """Text of whole words of the alphabets, of their pieces, and of anything."""
    words = st.sampled_from([word for alphabet in (*alphabets, ODD) for word in alphabet])
    whole = st.sampled_from([word for alphabet in alphabets for word in WHOLE[alphabet]])
    cut = st.builds(lambda word, end: word[:end], whole, st.integers(1, 30))
    # Lone surrogates too: a stream that cuts UTF-16 produces them.
    anything = st.text(st.characters(exclude_categories=[]), max_size=4)
    return st.lists(st.one_of(whole, words, cut, anything), max_size=16).map("".join)


ALL = texts(PATHS, PHRASES, CALLS, CONTEXTS)


@st.composite
def cut_up(draw, text):
    whole = draw(text)
    cuts = draw(
        st.one_of(st.just(list(range(1, len(whole)))), st.lists(st.integers(0, len(whole)), max_size=8).map(sorted))
    )
    return whole, [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def streamed(make, pieces, *, saved=False):
    """Return the output of a filter for pieces, optionally through its saved state."""
    one, outputs = make(), []
    for piece in pieces:
        outputs.append(one.feed(piece))
        if saved:
            state, one = one.save(), make()
            one.load(state)
    return [*outputs, one.flush()]


def joined_outputs(outputs):
    """Join neighbouring texts in outputs. Removed parts are kept apart, because their place among texts may differ."""
    shown, removed = [""], []
    for output in (one for some in outputs for one in some):
        if isinstance(output, Removed):
            removed.append(output)
        elif isinstance(output, str):
            shown[-1] += output
        else:
            shown += [output, ""]
    return shown, removed


@settings(max_examples=300 * SCALE)
@given(cut_up(texts(PATHS, CONTEXTS)), st.booleans())
def test_streamed_redaction_equals_whole(case, saved):
    text, pieces = case
    assert "".join(streamed(Redactor, pieces, saved=saved)) == Redactor().whole(text)


@settings(max_examples=400 * SCALE)
@given(cut_up(texts(PHRASES, CONTEXTS)), st.booleans())
def test_streamed_identity_equals_whole(case, saved):
    text, pieces = case
    make = partial(IdentityRewriter, MODEL)
    assert "".join(streamed(make, pieces, saved=saved)) == fed(make(), [text])


@settings(max_examples=400 * SCALE)
@given(cut_up(texts(CALLS, CONTEXTS)), st.booleans(), st.sampled_from([20, 60, 65_536]))
def test_streamed_parsing_equals_whole(case, saved, limit):
    text, pieces = case
    make = partial(ToolCallParser, limit=limit)
    assert joined_outputs(streamed(make, pieces, saved=saved)) == joined_outputs(streamed(make, [text]))


@settings(max_examples=400 * SCALE)
@given(cut_up(ALL), st.booleans())
def test_all_three_filters_streamed_equal_whole(case, saved):
    text, pieces = case
    make = partial(OutputFilter, MODEL, limit=100)
    assert joined_outputs(streamed(make, pieces, saved=saved)) == joined_outputs(streamed(make, [text]))


# An independent definition: a root between two boundaries. Lookbehind is one character, so the leading boundary is
# stricter here than in the filter, which knows more cases that are not a boundary.
LEFT_OVER = re.compile(
    r"(?:^|[\s\"'(=:,;<>`\[\]{}])"
    r"(?:/opt/windsurf|/tmp/windsurf-workspace|/home/user/projects/workspace-[A-Za-z0-9]{1,64}|/root/WindsurfAPI)"
    r"(?=[/\s\"'`<>)}\],*;:]|\Z)"
)


@settings(max_examples=300 * SCALE)
@given(texts(PATHS, CONTEXTS))
def test_no_root_path_is_left(text):
    redacted = Redactor().whole(text)
    assert LEFT_OVER.search(redacted) is None
    assert Redactor().whole(redacted) == redacted


@settings(max_examples=300 * SCALE)
@given(texts(PATHS, CONTEXTS))
def test_text_outside_of_a_replacement_is_unchanged(text):
    marker = "\u2042\u2051"  # not in any text here
    assert marker not in text
    kept = Redactor(marker=marker).whole(text).split(marker)
    # The kept parts are in the text in this order, and each gap between them contains a root path.
    found = re.fullmatch("(.+?)".join(map(re.escape, kept)), text, re.DOTALL)
    assert found
    assert all(re.search(r"[/\\](opt|tmp|home|root)[/\\]", token) for token in found.groups())
    assert not any(re.search(r"""[\s"'`<>)}\],*;]""", token) for token in found.groups())


@settings(max_examples=300 * SCALE)
@given(texts(PHRASES, CONTEXTS))
def test_without_phrases_nothing_is_renamed(text):
    shown = fed(IdentityRewriter("\u2042"), [text])
    if not re.search("cascade|codeium|windsurf", text, re.IGNORECASE | re.ASCII):
        assert shown == text
    # Lines stay separate: no phrase spans two lines.
    assert shown.count("\n") == text.count("\n")


@settings(max_examples=200 * SCALE)
@given(texts(PHRASES, PATHS), st.integers(3, 6), st.sampled_from("`~"))
def test_fenced_code_is_never_renamed(code, length, mark):
    code = code.replace("`", "").replace("~", "")
    fenced = f"{mark * length}\n{code}\n{mark * length}\n"
    rewriter = IdentityRewriter(MODEL)
    assert rewriter.feed(f"I am Cascade.\n{fenced}I am Cascade.") == f"I am {MODEL}.\n{fenced}I am {MODEL}."


@settings(max_examples=300 * SCALE)
@given(
    texts(CALLS, CONTEXTS), st.integers(0, 60), st.integers(0, 3), st.sampled_from(["", "`", "```\n", "[", "I see: "])
)
def test_tool_output_never_becomes_a_call(output, missing, size, before):
    output = output.replace("</tool_result>", "")  # as the target writes it, with the tag broken
    echo = f'{before}<tool_result tool_call_id="x">\n{output}\n</tool_result>'
    echo = echo[: max(1, len(echo) - missing)]
    parser = ToolCallParser(limit=100)
    outputs = fed(parser, in_pieces(echo, size or len(echo)))
    assert not any(isinstance(one, ToolCall) for one in outputs)
    assert parser.calls == 0


@settings(max_examples=300 * SCALE)
@given(texts(CALLS, CONTEXTS))
def test_text_and_removed_parts_are_the_whole_text_without_calls(text):
    outputs = fed(ToolCallParser(), [text])
    if not any(isinstance(output, ToolCall) for output in outputs):
        assert "".join(output if isinstance(output, str) else output.text for output in outputs) == text


@settings(max_examples=200 * SCALE)
@given(ALL)
def test_held_back_text_is_bounded(text):
    parser, redactor, rewriter = ToolCallParser(limit=50), Redactor(), IdentityRewriter(MODEL)
    for character in text:
        parser.feed(character)
        redactor.feed(character)
        rewriter.feed(character)
        assert len(parser._held) + parser._size <= 50 + 300
        assert len(redactor._now.held) <= 150
        assert len(rewriter._held) <= 70
