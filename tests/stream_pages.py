"""A session's stream as tests build it, and as a reader sees it on a page."""

import json
from html.parser import HTMLParser

from reknit.pipeline.demo.recordings import Input, fleet, inputs
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.viewer.index.records import entry_of
from reknit.pipeline.viewer.pages import templates
from reknit.pipeline.viewer.streams import by_parent
from reknit.pipeline.viewer.streams.screen import TEXT, Screen
from reknit.topics import PROVIDER_EVENTS, SESSION_ITEMS

START = {"type": "item/started", "item_id": "a", "item_type": "text"}
CALL = {"type": "item/started", "item_id": "c", "item_type": "tool_use", "name": "Bash"}


def delta(content, at=0, item="a"):
    return {"type": "item/delta", "item_id": item, "delta_type": "text_delta", "content": content, "at": at}


def completed(item="a", **more):
    return {"type": "item/completed", "item_id": item, **more}


def answer(item="c", content="files", **more):
    return {"type": "item/result", "item_id": item, "content": [{"type": "text", "text": content}], **more}


FLEET = {recording.session: recording for recording in fleet()}
TEMPLATES = templates()
VOID = {"br", "hr", "img", "input", "link", "meta"}


class Rows(HTMLParser):
    """Return the visible rows of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.tags, self._open, self._inside = [], set(), [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.add(tag)
        classes = (given.get("class") or "").split()
        if tag in VOID:
            return
        row = self._open[-1][1] if self._open else None
        if tag == "article":
            row = {
                "id": given["id"],
                "classes": set(classes),
                "depth": self._depth(),
                "badges": [],
                "length": None,
                "words": None,
            }
            row |= {"meanings": [], "answers": [], "open": [], "text": "", "links": []}
            self.rows.append(row)
        self._open.append((tag, row, classes))
        if row is not None:
            if tag == "details":
                row["open"].append("open" in given)
            if tag == "a" and "place" not in classes:
                row["links"].append(given["href"])
            if "said" in classes:
                row["words"], row["length"] = "", int(given["data-length"])

    def _depth(self):
        return sum(tag == "ol" and "inner" in classes for tag, _, classes in self._open)

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        row = self._open[-1][1] if self._open else None
        if row is None:
            return
        row["text"] += data
        around = {name for _, of, classes in self._open if of is row for name in classes}
        if "said" in around:
            row["words"] += data
        if "kind" in around:
            row["kind"] = data.split()[0].lower()
        if "badge" in around and data.strip():
            row["badges"].append(data.strip())
        if "meaning" in around and data.strip():
            row["meanings"].append(data.strip())
        if "answer" in around and self._open[-1][0] == "pre":
            row["answers"].append(data)


def recorded(session):
    """Return what the pipeline publishes for a session's stream."""
    stage = EventsStage()
    fed = [step for step in inputs(FLEET[session]) if isinstance(step, Input) and step.topic == PROVIDER_EVENTS]
    for offset, step in enumerate(fed):
        record = Record(partition=0, offset=offset, key=session.encode(), value=step.value, headers=step.headers)
        for output in stage.process([record]).outputs:
            if output.topic == SESSION_ITEMS:
                yield output.value, output.headers


def entries(*items, run=None):
    """Records of one session; an item is an object, or a value and its headers."""
    for offset, item in enumerate(items):
        value, headers = item if isinstance(item, tuple) else (json.dumps(item).encode(), ())
        if run is not None:
            headers = (("run", run.encode()),)
        record = Record(partition=0, offset=offset, key=b"s", value=value, headers=headers, timestamp=1_000)
        yield entry_of(SESSION_ITEMS, record)


def screen_of(*items, **options):
    screen = Screen()
    return screen, [screen.apply(entry) for entry in entries(*items, **options)]


def html_of(screen, limit=TEXT):
    inner = by_parent(screen.rows)
    drawn = TEMPLATES.get_template("parts/stream_rows.html").module.place_of
    return "".join(drawn(row, limit, inner) for row in screen.rows if row.inside is None)


def shown(*items, **options):
    return Rows(html_of(screen_of(*items, **options)[0])).rows
