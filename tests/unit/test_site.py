"""The site of the docs: it builds without a warning, works without a network, and has a Markdown copy of each page."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import browsing, needs_browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?([^\"'\s>]+)")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None and "REQUIRE_SITE" not in os.environ,
    reason="no mkdocs (dependency group `docs`)",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def html_of(page):
    return page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")


def test_each_page_of_the_docs_is_on_the_site_and_has_a_markdown_copy(site):
    built = {path.relative_to(site) for path in site.rglob("*.html")} - {Path("404.html")}
    assert built == {html_of(page) for page in PAGES}
    for page in PAGES:
        assert (site / page).read_text("utf-8").strip() == (DOCS / page).read_text("utf-8").strip()


def test_the_list_for_programs_has_each_page_once(site):
    text = (site / "llms.txt").read_text("utf-8")
    assert text.startswith("# Reknit\n\n> ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert sorted(Path(re.search(r"\]\((.+?)\)", line)[1]) for line in lines) == PAGES
    assert [line for line in lines if not re.fullmatch(r"- \[.+?\]\(\S+\.md\): [A-Z`].+\.", line)] == []


# Browsers make what scrolls focusable by themselves; the rule does not know that.
FOCUSED = "scrollable-region-focusable"
SECTIONS = ["Start", "Tutorials", "Concepts", "How-to", "Reference", "Operate"]


def test_no_page_loads_anything_from_the_network(site):
    loaded = {(page, url) for page in site.rglob("*.html") for url in LOADED.findall(page.read_text("utf-8"))}
    assert len(loaded) > len(PAGES)
    assert [(page, url) for page, url in loaded if "//" in url] == []
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)", styles) == []


def test_a_bar_in_code_in_a_table_has_no_backslash(site):
    assert r"\|" in (DOCS / "healing.md").read_text("utf-8")
    html = (site / "healing.html").read_text("utf-8")
    assert "temperature|top_p|top_k" in html
    assert r"\|" not in html


@needs_browser
async def test_the_search_finds_a_fix_on_a_page_that_was_opened_from_a_folder(site):
    async with browsing() as browser, browser.tab() as page:
        await page.go(f"file://{site}/index.html")
        await page.click(".md-search__input")
        await page.type(".md-search__input", "result_synthesised")
        await page.press("End")  # the page reads the field when a key is released
        await page.until("document.querySelector('.md-search-result__link') !== null")
        found = await page.ask("[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
        did = page.did()
    assert {link.partition("?")[0] for link in found} >= {f"file://{site}/fixes.html"}
    assert "result_synthesised" in {link.partition("#")[2] for link in found}
    assert [url for url in did.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert did.messages == []


@needs_browser
async def test_a_diagram_is_drawn_without_a_network(site):
    async with browsing() as browser, browser.tab() as page:
        await page.go(f"file://{site}/streams.html")
        height = await page.until("document.querySelector('div.mermaid')?.getBoundingClientRect().height")
        did = page.did()
    assert height > 100
    assert [url for url in did.requests if not url.startswith(("file:", "blob:", "data:"))] == []


@needs_browser
@pytest.mark.parametrize("path", ["index.html", "tutorials/gateway.html", "reference/errors.html"])
async def test_pages_are_accessible_and_as_wide_as_the_screen(site, path):
    found, widths = [], []
    async with browsing() as browser, browser.tab() as page:
        await page.go(f"file://{site}/{path}")
        for dark in (False, True):
            for width in (1280, 390):
                await page.look(dark=dark, width=width)
                await page.go(f"file://{site}/{path}")
                found += [(dark, width, each) for each in await page.violations() if not each.startswith(FOCUSED)]
                widths.append(await page.ask("document.documentElement.scrollWidth") <= width)
    assert found == []
    assert widths == [True] * 4


@needs_browser
async def test_a_filter_hides_what_has_not_its_words(site):
    shown = "[...document.querySelectorAll('article h2, article h3')].filter(e => e.offsetParent).map(e => e.id)"
    rows = "[...document.querySelectorAll('article tbody tr')].filter(each => each.offsetParent).length"
    async with browsing() as browser, browser.tab() as page:
        await page.go(f"file://{site}/fixes.html")
        await page.type(".filter", "result_synthesised")
        sections = await page.ask(shown)
        await page.go(f"file://{site}/reference/cli.html")
        await page.type(".filter", "--dead-letters")
        commands = await page.ask(shown)
        await page.go(f"file://{site}/configuration.html")
        before = await page.ask(rows)
        await page.type(".filter", "bootstrap_servers")
        after = await page.ask(rows)
    assert "result_synthesised" in sections
    assert len(sections) < 10
    assert commands == ["reknit-replay"]
    assert 0 < after < before
