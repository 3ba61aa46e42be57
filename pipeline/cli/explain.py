"""``reknit explain``: what a fix or a rule means, with an example that is run on the spot."""

from __future__ import annotations

import click

from pipeline.cli.output import fail, write_bytes, write_json
from pipeline.errors import InputError
from pipeline.explain import explain, listing, plain, summaries


@click.command("explain")
@click.argument("code", required=False)
@click.option("--list", "all_codes", is_flag=True, help="List all codes; so does leaving out CODE.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain_command(code: str | None, all_codes: bool, as_json: bool) -> None:
    """Say what a fix or a rule means, with an example.

    CODE is a fix code (result_moved) or the id of a rule (ANT-07). Ends with 2 where there is no such code.
    """
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
