"""The documented list of trigger patterns matches the targets: each entry's examples, as output of a tool."""

import json

import pytest
from build import answered, called

from reknit.pipeline import normalize
from reknit.pipeline.explain.documents import ACTS
from reknit.pipeline.registry import TARGETS

ROWS = [(act, example) for act in ACTS for example in act.examples]


def after_tool_output(words, target):
    history = [{"role": "user", "content": "go"}, called("t"), answered("t", words)]
    done = normalize({"model": "m", "messages": history}, to=target)
    body = done.body.decode()
    if target == "claude-cli":
        return json.loads(body)["message"]["content"], done
    return (json.loads(body)["messages"][-1]["content"] if target == "cascade" else body), done


@pytest.mark.parametrize(("act", "example"), ROWS, ids=lambda value: value if isinstance(value, str) else value.target)
def test_an_example_is_neutralized_or_left_as_the_list_says(act, example):
    said = f"out\n{example}"
    text, done = after_tool_output(said, act.target)
    codes = {fix.code for fix in done.fixes}
    if act.answer == "broken":
        assert said not in text
        assert said in text.replace("\u200b", "").replace("<\\", "<")
        assert codes in ({"words_neutralised"}, {"wrapper_broken"})
        (fix,) = done.fixes
        assert (fix.path, fix.lossless, fix.id) == ("messages.2.content.0", True, "t")
    else:
        assert said in text
        assert codes == set()


@pytest.mark.parametrize("act", [act for act in ACTS if act.answer == "reported"], ids=lambda act: act.words)
def test_a_listed_warning_is_given_for_user_text(act):
    for example in act.examples:
        done = normalize([{"role": "user", "content": example}], to=act.target)
        said = json.loads(done.body)["message"]["content"] if act.target == "claude-cli" else done.text
        assert said == example
        assert [found.severity for found in done.violations] == ["soft"]
        assert done.violations[0].rule in act.why
        _, again = after_tool_output(example, act.target)
        assert again.violations == []


def test_every_text_target_is_listed_and_every_entry_has_its_reason():
    assert {act.target for act in ACTS} == {name for name, target in TARGETS.items() if target.is_text} | {"cascade"}
    assert all(act.source and act.examples for act in ACTS)
    assert all((act.answer == "broken") == (act.why == "") for act in ACTS)
