"""Inputs and records of a hostile fleet: every field has a text that would run, hide or mislead."""

import json
import zlib
from pathlib import Path

from browser import ELSEWHERE, HOSTILE
from viewer_lab import BEGAN_MS

from reknit.pipeline.demo.recordings import Input, fleet, inputs
from reknit.pipeline.stages.base import Record

VECTORS = Path(__file__).parent / "vectors" / "records_v1.jsonl"
# Right-to-left override, zero-width characters, stacked marks, terminal colours, tags, half a surrogate pair.
INVISIBLE = "\u202egnp.\u202c\u2066a\u200b\u200d\ufeff\u2069 Z\u0351\u0351\u0351\u0351 \x1b[31m \U000e0041 \x00\ud800"
TEXTS = (*HOSTILE, ELSEWHERE, INVISIBLE)
# Links in other parties' texts that a page might adopt.
LINKS = ("javascript:alert('ran')", "data:text/html,<script>alert('ran')</script>", "//127.0.0.1:9/x")
# Members without which a stage could not read a record. `poisoned` leaves them alone when they are in `kept`.
SHAPE = frozenset(
    {"type", "role", "subtype", "targets", "policy", "target", "framing", "transcript", "code", "origin", "doubt"}
    | {"cause", "item_type", "delta_type", "media_type", "usage"}
)


def poison(text):
    """Append a hostile text.

    The choice depends only on ``text``, so equal texts stay equal and calls find their results.
    """
    texts = TEXTS + LINKS
    return f"{text} {texts[zlib.crc32(text.encode()) % len(texts)]}"


def poisoned(value, kept=SHAPE, name=""):
    """Poison each text and each name that a caller may choose, except the members in ``kept``."""
    match value:
        case str():
            return value if name in kept else poison(value)
        case list():
            return [poisoned(each, kept, name) for each in value]
        case dict():
            is_free = name in {"input", "arguments", "properties", "metadata", "args"}
            return {
                poison(key) if is_free else key: each if key in kept and name != "input" else poisoned(each, kept, key)
                for key, each in value.items()
            }
        case _:
            return value


def poisoned_json(text, kept=SHAPE):
    """Poison a line of JSON; a line that is not JSON gets the poison appended."""
    try:
        value = json.loads(text)
    except ValueError:
        return poison(text).encode("utf-8", "surrogatepass")
    return json.dumps(poisoned(value, kept)).encode()


def poisoned_headers(headers, kept=SHAPE):
    """Poison the text of each header.

    Numbers, digests and places stay valid, because a reader needs them to continue.
    """
    return tuple((name, _header(name, value, kept)) for name, value in headers.items())


def _header(name, value, kept):
    if name in kept or value.isdecimal() or name in {"reason", "body-sha256", "dataref"} or "/0/" in value:
        return value.encode()
    return poison(value).encode("utf-8", "surrogatepass")


def sessions():
    """The demo's fleet, poisoned, as `(session, [(topic, value, headers)])`.

    A pipeline accepts it like any other input.
    """
    found = []
    for recording in fleet():
        steps = []
        for step in inputs(recording):
            if isinstance(step, Input):
                value = None if step.value is None else poisoned_json(step.value.decode())
                headers = {name: text.decode() for name, text in step.headers}
                steps.append((step.topic, value, poisoned_headers(headers, SHAPE | {"source"})))
        found.append((_session(recording.session), steps))
    return found


def records():
    """Return each kind of record of the contract with poisoned members, as `(topic, Record)`, twice.

    The second time the members that identify a record are poisoned too.
    """
    found = []
    vectors = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    for partition, kept in enumerate((SHAPE, frozenset()), 1):
        # A forgotten session would be removed, so there would be nothing to look at.
        for offset, vector in enumerate(each for each in vectors if "Forg" not in each["message"]):
            record = Record(
                partition=partition,
                offset=offset,
                key=_session("every kind" if kept else "no kind").encode(),
                value=None if vector["value"] is None else poisoned_json(vector["value"], kept),
                headers=poisoned_headers(vector.get("headers", {}), kept),
                timestamp=BEGAN_MS + 1000 * offset,
            )
            found.append((vector["topic"], record))
    return found


def _session(name):
    # Kafka clients reject a key with half a surrogate pair.
    return poison(name).replace("\ud800", "")
