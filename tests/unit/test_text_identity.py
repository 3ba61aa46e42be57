"""Identity: phrases that are rewritten to the model's name, text that stays, and places where nothing is rewritten."""

from functools import partial

import pytest
from filter_runs import fed, in_halves, most_held

from reknit.pipeline.text.identity import IdentityRewriter

MODEL = "claude-opus-4-7"


def renamed(text, model=MODEL):
    return fed(IdentityRewriter(model), [text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm Cascade.", "I'm claude-x."),
        ("My name is CASCADE", "My name is claude-x"),
        ("I am Windsurf's Cascade", "I am claude-x"),
        ("Codeium\u2019s Cascade, made by Windsurf, helps", "claude-x, made by Anthropic, helps"),
        ("As Cascade, made by Codeium, I", "As claude-x, made by Anthropic, I"),
        ("Acting as Cascade I", "Acting as claude-x I"),
        ("Cascade, an AI coding assistant, can", "claude-x, an AI assistant, can"),
        ("cascade is an assistant", "claude-x is an AI assistant"),
        ("Created BY windsurf", "Created BY Anthropic"),
        ("In Cascade\u2019s workspace", "In the workspace"),
        ("THE CASCADE WORKSPACE", "THE WORKSPACE"),
        ("你好I am Cascade吗", "你好I am claude-x吗"),
        ("Windsurf'I am Cascade", "Windsurf'I am claude-x"),
        ("I  am\tCascade", "I  am\tclaude-x"),
        ("I\u2019m Cascade", "I\u2019m claude-x"),
        (
            "I am Cascade, an AI coding assistant made by Windsurf.",
            "I am claude-x, an AI coding assistant made by Anthropic.",
        ),
        (
            "I\u2019m Cascade, a coding assistant built by Codeium",
            "I\u2019m claude-x, a coding assistant built by Anthropic",
        ),
        ("I am Cascade, an AI coding assistant made by you.", "I am claude-x, an AI coding assistant made by you."),
        ("As Cascade, I see", "As claude-x, I see"),
        ("As Cascade I'd", "As claude-x I'd"),
        ("As Cascade", "As claude-x"),
    ],
)
def test_a_phrase_is_rewritten_to_the_models_name(text, expected):
    assert renamed(text, "claude-x") == fed(IdentityRewriter("claude-x"), text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a cascade of rocks",
        "CSS Cascade layers",
        "ON DELETE CASCADE",
        "Windsurf is an editor",
        "As Cascade layers are ordered, so are colours.",
        "As Cascade Iron is",
        "as cascade",
        "XI am Cascadey",
        "I am Cascaded",
        "I am\n\nCascade",
        "I am\nCascade",
        "developed by\n\nCodeium",
    ],
)
def test_the_word_alone_stays_and_no_phrase_crosses_a_line(text):
    assert renamed(text) == text


@pytest.mark.parametrize(
    "kept",
    [
        '{"name": "I am Cascade"}',
        '{ "a" : ["x", {"b": "built by Codeium"}], "n": 1.5e3, "t": true }',
        '["I am Cascade"]',
        "```\nI am Cascade\n```\n",
        "```py\nx = 'I am Cascade'\n   ```\n",
        "~~~~\nI am Cascade\n~~~\nstill\n~~~~~ \n",
        '{"a":"\\"I am Cascade\\\\"}',
    ],
)
def test_json_and_fenced_code_stay(kept):
    assert renamed(f"I am Cascade\n{kept} I am Cascade") == f"I am {MODEL}\n{kept} I am {MODEL}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```I am Cascade``` I am Cascade", f"```I am {MODEL}``` I am {MODEL}".replace(MODEL, "Cascade", 1)),
        ("inline ```I am Cascade", f"inline ```I am {MODEL}"),
        ('{"a": broken I am Cascade', f'{{"a": broken I am {MODEL}'),
        ('{"a": "open\nI am Cascade', f'{{"a": "open\nI am {MODEL}'),
        ("{x} I am Cascade", f"{{x}} I am {MODEL}"),
        ("[link] I am Cascade", f"[link] I am {MODEL}"),
    ],
)
def test_text_that_only_looks_like_code_or_json_is_rewritten(text, expected):
    assert renamed(text) == expected


def test_an_open_fence_reaches_to_the_end():
    text = "```\nI am Cascade\n"
    assert renamed(text) == text


@pytest.mark.parametrize(
    ("model", "maker"),
    [
        ("Claude-3", "Anthropic"),
        ("gpt-5", "OpenAI"),
        ("o4-mini", "OpenAI"),
        ("gemini-2.5", "Google"),
        ("deepseek-r1", "DeepSeek"),
        ("grok-4", "xAI"),
        ("qwen3", "Alibaba"),
        ("kimi-k2", "Moonshot"),
        ("glm-4.6", "Zhipu"),
        ("swe-1.5", "Windsurf"),
        ("mystery", "Codeium"),  # unknown; the named maker stays
    ],
)
def test_the_maker_is_derived_from_the_models_name(model, maker):
    assert renamed("I am Cascade, made by Codeium.", model) == f"I am {model}, made by {maker}."


def test_a_models_name_is_not_a_pattern():
    assert renamed("I am Cascade", "\\g<0>$& by Windsurf") == "I am \\g<0>$& by Windsurf"


def test_without_a_model_text_passes_unchanged():
    assert renamed("I am Cascade", None) == "I am Cascade"
    assert renamed("I am Cascade", "") == "I am Cascade"


def test_only_possible_beginnings_of_a_phrase_are_held():
    rewriter = IdentityRewriter(MODEL)
    assert rewriter.feed("Yes. I am") == "Yes. "
    assert rewriter.feed(" here. The") == "I am here. "
    assert rewriter.feed("re, my name is Cascade") == "There, "
    assert rewriter.feed("!") == f"my name is {MODEL}!"


def test_a_release_keeps_the_fence_state():
    rewriter = IdentityRewriter(MODEL)
    assert rewriter.feed("```\nI am") + rewriter.release() == "```\nI am"
    assert rewriter.feed("\nI am Cascade\n```\nI am Cascade.") == f"\nI am Cascade\n```\nI am {MODEL}."
    assert rewriter.feed("\n```\n") + rewriter.flush() == "\n```\n"
    assert rewriter.feed("I am Cascade.") == f"I am {MODEL}."


def test_changes_are_counted():
    rewriter = IdentityRewriter(MODEL)
    rewriter.feed("I am Cascade. I am Cascade. Built by Windsurf. ")
    found = rewriter.take_changes()
    assert [(one.kind, one.after, count) for one, count in found.items()] == [
        ("identity_renamed", f"I am {MODEL}", 2),
        ("identity_renamed", "Built by Anthropic", 1),
    ]
    assert rewriter.take_changes() == {}


def test_state_can_be_loaded_into_another_rewriter():
    text = '\ud83dI am Cascade\n```py\nI am Cascade\n``` \n{"a": "\\"I am Cascade"} As Cascade, made by Windsurf.'
    expected = renamed(text)
    assert expected.count(MODEL) == 2
    for shown, other in in_halves(partial(IdentityRewriter, MODEL), text):
        assert shown == expected
        assert sum(other.take_changes().values()) == 2


@pytest.mark.parametrize(
    "unit",
    ["I am Windsurf's ", "Cascade is an AI coding ", "my name is ", "`", "\n   ``", "{", "{ ", "[", "~", "\n", "a"],
)
def test_held_back_text_is_bounded(unit):
    assert most_held(IdentityRewriter(MODEL), (unit * 20_000)[:20_000]) <= 70


def test_ten_megabytes_in_one_line_and_many_pieces_are_fast():
    line = "the fall of a rock " * 500_000 + "the cascade of rocks " * 20_000
    assert renamed(line) == line
    text = "I am Cascade, it says. " * 10_000
    assert fed(IdentityRewriter(MODEL), text) == f"I am {MODEL}, it says. " * 10_000
