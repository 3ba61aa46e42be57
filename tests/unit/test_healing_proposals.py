"""Rows that are proposed for the table of healings."""

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from reknit.pipeline.cli import main
from reknit.pipeline.config import origins
from reknit.pipeline.healing.proposals import Sentence, pattern_of, propose


def test_sentences_of_one_shape_are_one_row():
    first = "messages.3.content.0: The moon of `toolu_01` is in phase 7"
    other = "messages.12.content.4.tool_result: The moon of `toolu_94` is in phase 12"
    more = "The moon is closed"
    found = propose([Sentence("anthropic", words, f"0/{at}") for at, words in enumerate([more, first, other])])
    assert [(each.refusals, each.place) for each in found] == [(2, "0/1"), (1, "0/0")]
    assert found[0].pattern == r"^(?P<path>[\w.\[\]]+): The moon of (?P<name>[\w-]+) is in phase \d+"
    assert found[0].row().splitlines()[1:4] == [
        "_row(",
        '    "NAME",',
        '    frozenset({"anthropic"}),',
    ]


def test_a_sentence_that_the_table_has_is_not_proposed():
    known = Sentence("anthropic", "messages.3.content.0: Invalid `signature` in `thinking` block", "0/0")
    assert propose([known]) == []


def test_the_sentence_within_envelopes_is_proposed():
    words = '{"error": {"message": "The moon is closed", "type": "invalid_request_error"}}'
    assert [each.pattern for each in propose([Sentence("gemini", words, "0/0")])] == ["^The moon is closed"]


@pytest.mark.parametrize(
    "words", ["Moon of 'a' at \"b\" (1 + 1)?", "https://example.com/a.png is gone.", "a\nb", "\\d"]
)
def test_the_pattern_of_a_sentence_is_a_literal_that_finds_it(words):
    (proposal,) = propose([Sentence("anthropic", words, "0/0")])
    assert re.search(eval(proposal.row().splitlines()[4].strip().rstrip(",")), words)  # noqa: S307  a literal


@given(st.text(min_size=1, max_size=80))
def test_a_pattern_finds_its_own_sentence(words):
    assert re.search(pattern_of(words), words) is not None


def test_healing_is_listed_as_off_below_format_3():
    (value,) = [each for each in origins(None, env={"REKNIT_STATE__FORMAT": "2"}) if each.key == "state.format"]
    assert "healing" in value.off
    (value,) = [each for each in origins(None, env={}) if each.key == "state.format"]
    assert value.off == ()


@pytest.mark.parametrize(("policy", "words"), [("heal", "is not like heal=off"), ("heal=maybe", "off, on, once")])
def test_a_replay_refuses_a_policy_that_does_not_exist(policy, words, tmp_path):
    done = CliRunner().invoke(main, ["replay", "--policy", policy, "--dry-run", str(tmp_path)])
    assert done.exit_code != 0
    assert words in done.output
