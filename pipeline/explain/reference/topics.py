"""The page of topics: the records of each with their headers, and its settings with the reason for each."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from reknit.pipeline.explain.reference.markdown import WRITTEN, code, prose, table
from reknit.topics import DEFAULT_PARTITIONS, TOPICS, Topic
from reknit.topics.records import RECORD_KINDS, RecordKind

_DIRECTIONS = {"in": "input", "out": "output", "internal": "internal"}
_INTRO = (
    f"All topics have the same number of partitions ({DEFAULT_PARTITIONS} unless configured), and every record is "
    "keyed by the session's id. `reknit topics schemas` writes the JSON schema of each record, "
    "`reknit topics asyncapi` the AsyncAPI document, and `reknit topics list` prints this page for a prefix. "
    "[Writing](../feeding.md) and [reading](../consuming.md) say what a program has to do."
)


def topics_page() -> str:
    """Return ``docs/reference/topics.md``."""
    overview = (
        (f"[{each.name}](#{_anchor(each)})", _DIRECTIONS[each.direction], prose(each.summary)) for each in TOPICS
    )
    lines = ["# Topics", "", WRITTEN, "", _INTRO, "", *table(("topic", "direction", "content"), overview)]
    for topic in TOPICS:
        lines += _section(topic)
    return "\n".join(lines).rstrip() + "\n"


def _anchor(topic: Topic) -> str:
    return topic.name.replace(".", "")


def _section(topic: Topic) -> Iterator[str]:
    yield from (f"## {topic.name}", "", prose(topic.summary), "")
    yield from (f"Key: {prose(topic.key)} Values: {code(topic.content_type)}.", "")
    kinds = [kind for kind in RECORD_KINDS if kind.topic == topic.name]
    if kinds:
        yield from table(("record", "meaning", "headers"), (_record(kind) for kind in kinds))
    settings = ((code(each.name), code(each.value), prose(each.why)) for each in topic.settings)
    yield from table(("setting", "value", "reason"), settings)


def _record(kind: RecordKind) -> tuple[str, str, str]:
    tag = getattr(getattr(kind.payload, "__struct_config__", None), "tag", None)
    fields = structs.fields(kind.headers) if kind.headers is not None else ()
    return code(str(tag or kind.name)), prose(kind.summary), ", ".join(code(each.encode_name) for each in fields)
