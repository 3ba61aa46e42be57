"""Self-contained pages: foreign content is shown as text and never executed."""

import re

import pytest
from browser import ELSEWHERE, HOSTILE, needs_browser, open_page
from jinja2 import DictLoader, UndefinedError

from reknit.pipeline import pages
from reknit.pipeline.pages import diff_lines, render, reworded, shown
from reknit.pipeline.text import visible

PAGE = """{% extends "base.html" %}
{% block title %}{{ texts[0] }}{% endblock %}
{% block content %}{% for text in texts %}
<details open id="{{ text }}"><summary title="{{ text }}">{{ text }}</summary>
<pre class="foreign">{{ text | shown }}</pre></details>
{% endfor %}{% endblock %}"""


@pytest.fixture
def page(monkeypatch):
    """Return a function that renders a page with the given texts, each in every place where pages have texts."""
    base = (pages._HERE / "base.html").read_text(encoding="utf-8")
    loader = DictLoader({"base.html": base, "page.html": PAGE})
    monkeypatch.setattr(pages, "FileSystemLoader", lambda _: loader)
    return lambda *texts: render("page.html", texts=texts)


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a page in a browser and returns its effects."""

    async def opened(html, **options):
        (tmp_path / "page.html").write_text(html, encoding="utf-8")
        return await open_page(tmp_path / "page.html", **options)

    return opened


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("a < b & 'c'", "a &lt; b &amp; &#39;c&#39;"),
        ("two\n\tlines", "two\n\tlines"),
        ("a\u202eb", 'a<span class="invisible" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>b'),
        ("\u200b", '<span class="invisible" title="ZERO WIDTH SPACE">U+200B</span>'),
        ("\x1b[2J", '<span class="invisible" title="">U+001B</span>[2J'),
        ("\r\n", '<span class="invisible" title="">U+000D</span>\n'),
        ("\ud800", '<span class="invisible" title="">U+D800</span>'),
        ("\U000e0041", '<span class="invisible" title="TAG LATIN CAPITAL LETTER A">U+E0041</span>'),
        ("né ש 漢\u3000字 👍", "né ש 漢\u3000字 👍"),
    ],
)
def test_a_foreign_text_is_shown_unchanged_with_marks(text, html):
    assert shown(text) == html


@pytest.mark.parametrize("words", HOSTILE)
def test_marked_words_are_text(words):
    before, after = reworded(f"one two three four five {words} six", f"one 2 three four five {words} seven")
    assert "<del>two</del>" in before
    assert "<ins>seven</ins>" in after
    for text in (before, after):
        assert words not in text
        assert set(re.findall(r"<[^>]*>", text)) <= {"<del>", "</del>", "<ins>", "</ins>"}
    assert reworded(words, words + " more")[1].count("<") == 2


def test_a_long_text_is_compared_and_shown_up_to_the_limit():
    before, after = reworded("same " * 10 + "x" * 100, "same " * 9 + "other " + "x" * 100, limit=60)
    assert before.endswith('<span class="cut">… 90 more characters</span>')
    assert "<ins>" in after
    assert reworded("a", "a") == ("a", "a")


def test_lines_that_replace_others_have_their_differing_words_marked():
    lines = ["@@ -1,3 +1,3 @@", " same", "-one two <b>", "-three four", "+one 2 <b>", "+three 4", "-gone", " end"]
    assert diff_lines(lines) == [
        ("hunk", "@@ -1,3 +1,3 @@"),
        ("same", "same"),
        ("gone", "one <del>two</del> &lt;b&gt;"),
        ("gone", "three <del>four</del>"),
        ("new", "one <ins>2</ins> &lt;b&gt;"),
        ("new", "three <ins>4</ins>"),
        ("gone", "gone"),
        ("same", "end"),
    ]
    assert diff_lines(["-a b", "+a c", "+d"]) == [("gone", "a b"), ("new", "a c"), ("new", "d")]


def test_a_value_without_the_filter_is_escaped_and_marked_too(page):
    assert "<title>&lt;a&gt;⟦U+202E⟧⟦U+D800⟧</title>" in page("<a>\u202e\ud800")


def test_a_text_of_ten_megabytes_is_cut():
    assert len(shown("<" * 10_000_000)) < 20_000
    assert shown("<" * 10_000_000, 1) == '&lt;<span class="cut">… 9,999,999 more characters</span>'


def test_a_terminal_gets_the_same_marks():
    assert visible("a\x1b[31mb\u202ec\nd") == "a⟦U+001B⟧[31mb⟦U+202E⟧c\nd"


def test_a_value_that_a_page_names_is_required(page):
    with pytest.raises(UndefinedError):
        render("page.html")


@needs_browser
async def test_hostile_content_is_shown_and_never_executed(page, opened):
    texts = (*HOSTILE, ELSEWHERE)
    found = await opened(page(*texts), ask=["document.title", "document.querySelectorAll('main > details').length"])
    assert (found.requests, found.dialogs, found.messages) == ([], [], [])
    assert [text for text in texts if found.text.count(text) < 2] == []
    assert found.values == [texts[0], len(texts)]


@needs_browser
async def test_the_policy_alone_prevents_execution(page, opened, monkeypatch):
    monkeypatch.setattr(pages, "shown", pages.Markup)
    found = await opened(page(*HOSTILE))
    assert (found.requests, found.dialogs) == ([], [])


@needs_browser
async def test_the_browser_reports_executed_content(page, opened, monkeypatch):
    monkeypatch.setattr(pages, "shown", pages.Markup)
    found = await opened(page(*HOSTILE).replace("Content-Security-Policy", "nothing"))
    assert "ran" in found.dialogs
    assert "http://127.0.0.1:9/x.png" in found.requests


@needs_browser
@pytest.mark.parametrize(("dark", "ground"), [(False, "rgb(255, 255, 255)"), (True, "rgb(15, 19, 24)")])
async def test_its_own_style_is_allowed_in_light_and_dark(page, opened, dark, ground):
    found = await opened(page("words"), dark=dark, ask=["getComputedStyle(document.body).backgroundColor"])
    assert found.values == [ground]
