"""docs/length.md has the limits and the rules for tokens as the code has them, and its programs run."""

import re
from pathlib import Path

import pytest

from reknit.pipeline.session.tokens import PAGE_BYTES, RULES
from reknit.pipeline.settings import NEEDS_FORMAT
from reknit.pipeline.targets import limits

PAGE = (Path(__file__).parents[2] / "docs" / "length.md").read_text(encoding="utf-8")
MIB = 2**20
ROWS = {
    "`anthropic`": limits.CLAUDE,
    "`anthropic`, Claude from 4.7 on": limits.CLAUDE_LONG,
    "`bedrock-converse`": limits.CONVERSE,
    "`bedrock-converse`, Claude from 5 on": limits.CONVERSE_CLAUDE_5,
    "`gemini`": limits.GEMINI,
    "`openai-chat`, `openai-responses`": limits.OPENAI,
}


def row(*cells):
    return f"| {' | '.join(cells)} |"


def number(value):
    return f"{value:,}" if value else "-"


@pytest.mark.parametrize("name", ROWS)
def test_the_page_has_each_limit(name):
    given = ROWS[name]
    many = f"{number(given.many_side)} above {given.many} images" if given.many else "-"
    size = f"{given.image_bytes // MIB} MiB" if given.image_bytes else "-"
    types = ", ".join(sorted(each.removeprefix("image/") for each in given.types))
    media, body = number(given.media), f"{given.body_bytes // MIB} MiB"
    assert row(name, size, number(given.side), many, media, body, types, given.source) in PAGE


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.family)
def test_the_page_has_each_rule_for_tokens(rule):
    image = f"{rule.least:,} to {rule.most:,}"
    cells = (rule.family, f"{rule.bytes:g}", number(rule.pixels), image, number(rule.page), rule.source)
    assert row(*cells) in PAGE
    assert f"{PAGE_BYTES:,} bytes" in PAGE


@pytest.mark.parametrize("program", re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_its_programs_run(program):
    exec(program, {})  # noqa: S102  the page's own code


def test_both_policies_need_format_3():
    assert NEEDS_FORMAT["limits of media"] == NEEDS_FORMAT["cuts of histories"] == 3
