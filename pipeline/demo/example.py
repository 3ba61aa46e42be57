"""One broken history of the fleet, before the rest: the refusal, the repaired request, and its acceptance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import click

from reknit.pipeline.changes import changes_of
from reknit.pipeline.cli.output import marked_line
from reknit.pipeline.demo.recordings import Recording, broken_request, refusals
from reknit.pipeline.demo.show import labelled
from reknit.pipeline.session import normalize
from reknit.pipeline.text.document_lines import difference_of
from reknit.pipeline.validation import validate

SESSION: Final = "lost-result"


def example(recordings: list[Recording]) -> Iterator[str]:
    """Yield the lines about the fleet's simplest broken history; answers are those of the provider's rules."""
    recording = next(each for each in recordings if each.session == SESSION)
    request = broken_request(recording)
    (target,) = request.targets
    (refusal,) = refusals(recording)
    document = json.dumps(request.head | {"messages": request.messages}).encode()
    done = normalize(document, to=target)
    yield click.style(f"{recording.title} ({recording.source})", bold=True)
    yield ""
    before, after = {"messages": request.messages}, {"messages": json.loads(done.unjudged)["messages"]}
    for line in difference_of(before, after):
        yield f"  {marked_line(line)}"
    yield ""
    yield from labelled("without", f"{target} answers 400: {refusal.message}", "red")
    answer = "refused" if validate(done.unjudged, target) else "accepted"
    yield from labelled("with", answer, "green")
    for change in changes_of(done.fixes, done.ledger, document, done.body):
        yield from labelled("recorded", f"{change.path}: {change.line}", "green")
