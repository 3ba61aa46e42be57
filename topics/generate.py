"""Files made from the records: a JSON Schema for each topic's values and headers, and the AsyncAPI document.

They are committed beside this module, and a test fails when they are stale (``make schemas`` writes them).
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from msgspec import json

from topics.asyncapi import document
from topics.messages import MESSAGES, Message

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI_FILE = "asyncapi.json"

Schema = dict[str, Any]


def schema_files() -> dict[str, bytes]:
    """Every schema file by its path, relative to this package: ``schemas/<topic>.json``, ``….headers.json``."""
    found: dict[str, bytes] = {}
    for topic in dict.fromkeys(message.topic for message in MESSAGES):
        messages = [message for message in MESSAGES if message.topic == topic]
        for part, kinds in (
            ("", [message.payload for message in messages if message.payload is not None]),
            (".headers", [message.headers for message in messages if message.headers is not None]),
        ):
            if kinds:
                found[f"schemas/{topic}{part}.json"] = pretty(_schema(topic + part, kinds))
    return found


def asyncapi_file(examples: bytes) -> dict[str, bytes]:
    """The AsyncAPI document by its path, relative to this package.

    Args:
        examples: a record of each kind, one a line (``examples.jsonl``): ``message``, the kind's name; ``payload``, and
            ``headers`` where it has some.
    """
    types = [kind for message in MESSAGES for kind in _types(message)]
    _, components = json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = _tidy(components)
    for message in MESSAGES:
        if message.payload is not None and (told_by := message.payload.__struct_config__.tag_field):
            schemas[message.payload.__name__]["discriminator"] = told_by
    shown = {row.pop("message"): row for row in map(json.decode, examples.splitlines())}
    return {ASYNCAPI_FILE: pretty(document(schemas, shown))}


def pretty(value: object) -> bytes:
    """JSON for people, ending with a newline."""
    return json.format(json.encode(value), indent=2) + b"\n"


def _types(message: Message) -> list[Any]:
    return [kind for kind in (message.payload, message.headers) if kind is not None]


def _schema(name: str, kinds: list[Any]) -> Schema:
    """One file: any of the kinds, told apart by their ``type`` where they have one."""
    references, components = json.schema_components(kinds, ref_template="#/$defs/{name}")
    body = references[0] if len(references) == 1 else {"anyOf": list(references)}
    return {"$schema": DIALECT, "$id": f"urn:reknit:{name}", "title": name, **body, "$defs": _tidy(components)}


def _tidy(schema: Any) -> Any:  # noqa: ANN401  JSON of any shape
    """Docstrings as descriptions: without indentation and without the markup for code.

    The ``discriminator`` that msgspec adds is OpenAPI's; the ``enum`` of each ``type`` says the same in JSON Schema.
    """
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidy(value) for key, value in schema.items() if not _is_discriminator(key, value)}
    description = tidy.get("description")
    if isinstance(description, str):
        tidy["description"] = cleandoc(description).replace("``", "`")
    return tidy


def _is_discriminator(key: str, value: object) -> bool:
    return key == "discriminator" and isinstance(value, dict) and "propertyName" in value
