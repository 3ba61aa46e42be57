"""Adds to the pages of the site: its own scripts and style, a Markdown copy of each page, and ``llms.txt``."""

# ruff: noqa: INP001 - mkdocs loads it by its path
from __future__ import annotations

import gzip
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
VENDOR = HERE / "vendor"
_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the scripts and the style, which are not pages and so are not in ``docs/``."""
    for path in sorted((HERE / "assets").iterdir()):
        files.append(File.generated(config, f"assets/{path.name}", content=path.read_bytes()))
    files.append(File.generated(config, "assets/iframe-worker.js", content=(VENDOR / "iframe-worker.js").read_bytes()))
    mermaid = gzip.decompress((VENDOR / "mermaid.tiny.js.gz").read_bytes())
    files.append(File.generated(config, "assets/mermaid.tiny.js", content=mermaid))
    return files


# Long tables that are looked up, not read: other pages come before them in the search.
_LOOKED_UP = frozenset({"refusals.md", "shares.md", "reference/errors.md", "reference/cli.md"})


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lower the rank of pages that are looked up."""
    del config, files
    if page.file.src_uri in _LOOKED_UP:
        page.meta["search"] = {"boost": 0.5}
    return markdown


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the backslash of an escaped bar in code in a cell, as GitHub does; Python-Markdown keeps it."""
    del page, config, files
    return _CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


_navigation: list[Navigation] = []


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> None:
    """Keep the navigation for ``llms.txt``."""
    del config, files
    _navigation[:] = [nav]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Copy each page's Markdown, and write the list of pages for programs."""
    (nav,) = _navigation
    site = Path(config.site_dir)
    for page in nav.pages:
        copy = site / page.file.src_uri
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(page.markdown or "", encoding="utf-8")
    (site / "llms.txt").write_text(llms_text(nav, config), encoding="utf-8")


def llms_text(nav: Navigation, config: MkDocsConfig) -> str:
    """Return the navigation as https://llmstxt.org has it: a heading for each section, a link to each Markdown copy."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for item in nav.items:
        lines += [f"## {item.title}", "", *(link(page) for page in pages_of(item)), ""]
    return "\n".join(lines)


def pages_of(item: object) -> list[Page]:
    """Return the pages below an item of the navigation, in order."""
    if isinstance(item, Page):
        return [item]
    return [page for child in item.children for page in pages_of(child)] if isinstance(item, Section) else []


def link(page: Page) -> str:
    """Return a page's line: its title, the place of its Markdown, and the first sentence of its text."""
    said = first_sentence(page.markdown or "")
    return f"- [{page.title}]({page.file.src_uri})" + (f": {said}" if said else "")


def first_sentence(markdown: str) -> str:
    """Return the first sentence of the first paragraph."""
    for part in _FENCED.sub("", markdown).split("\n\n"):
        text = " ".join(part.split())
        if text and not text.startswith(("#", "<", "|", "(", "-", "!")):
            return text.split(". ")[0].rstrip(".:") + "."
    return ""
