"""``reknit explain``: what a fix or a rule means, with an example that is run on the spot."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli import fail, write_bytes, write_json
from pipeline.errors import InputError
from pipeline.explain import explain, summaries
from pipeline.explain.documents import documents
from pipeline.explain.telling import listing, plain


@click.command("explain")
@click.argument("code", required=False)
@click.option("--list", "all_codes", is_flag=True, help="List all codes; so does leaving out CODE.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", type=click.Path(file_okay=False), help="Write all pages as Markdown into this directory.")
def explain_command(code: str | None, all_codes: bool, as_json: bool, write: str | None) -> None:
    """Say what a fix or a rule means, with an example.

    CODE is a fix code (result_moved) or the id of a rule (ANT-07). Ends with 2 where there is no such code.
    """
    if write is not None:
        _write(Path(write))
        return
    if code is None or all_codes:
        if as_json:
            write_json(summaries())
        else:
            write_bytes(listing(summaries()).encode())
        return
    try:
        page = explain(code)
    except InputError as error:
        fail(error)
    if as_json:
        write_json(page)
    else:
        write_bytes(plain(page).encode())


def _write(directory: Path) -> None:
    """Write the pages, and take away those of targets that are gone."""
    pages = all_pages()
    for stale in set((directory / "rules").glob("*.md")) - {directory / place for place in pages}:
        stale.unlink()
    for place, text in pages.items():
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        (directory / place).write_text(text, encoding="utf-8")


def all_pages() -> dict[str, str]:
    """The pages that are written, by their place under docs/."""
    from pipeline.cli.config import page  # with it come clients of Kafka, which other explanations do without

    return {**documents(), "configuration.md": page()}
