"""The contract as documents: a JSON Schema for each topic's values and headers, and an AsyncAPI document of all topics.

Both are generated from the records and committed next to this module, and a test fails when they are stale (``make
schemas`` writes them). `breaches` lists the changes of a newer document that break programs written for an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import cleandoc
from typing import Any, Literal, TypeAlias

from msgspec import json

from reknit.topics import AGENT_TURNS, DEFAULT_PARTITIONS, PROVIDER_EVENTS, TOPICS, Topic, headers
from reknit.topics.records import RECORD_KINDS, RecordKind

Json: TypeAlias = dict[str, Any]
Direction: TypeAlias = Literal["input", "output"]

# The AsyncAPI 3.1 document, with Kafka bindings. Reknit is the application: it receives from the input topics, sends to
# the others, and writes to the inputs the records that it creates for a session itself. The internal state topics are
# declared for operators (``reknit topics list``) and are not part of the contract.

VERSION = "1.1.0"  # of the contract: its major is the `v1` of the topic names
BINDING = "0.5.0"

# The topic settings that the channel binding defines, with their conversion; the others are only declared.
_BOUND_SETTINGS: dict[str, Callable[[str], object]] = {
    "cleanup.policy": lambda text: text.split(","),
    "retention.ms": int,
    "delete.retention.ms": int,
    "max.message.bytes": int,
}


# Messages that the worker writes to its own inputs, marked by `origin`.
_WRITTEN_TO_INPUTS = {
    AGENT_TURNS: ("TurnAppended", "SessionReleased", "SessionForgotten", "ProviderAnswered"),
    PROVIDER_EVENTS: ("SessionPolicy", "SessionEnd", "SessionForgetting"),
}

_SECURITY: Json = {
    "plain": {"type": "plain", "description": "SASL PLAIN."},
    "scramSha256": {"type": "scramSha256", "description": "SASL SCRAM-SHA-256."},
    "scramSha512": {"type": "scramSha512", "description": "SASL SCRAM-SHA-512."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "SASL OAUTHBEARER."},
    "certificate": {"type": "X509", "description": "A client's certificate (TLS)."},
}
_SERVERS: Json = {
    "plaintext": {
        "host": "localhost:9092",
        "protocol": "kafka",
        "description": "A broker without security, as for development.",
    },
    "secured": {
        "host": "{bootstrap}",
        "protocol": "kafka-secure",
        "description": "A cluster with TLS, and with SASL or clients' certificates.",
        "variables": {"bootstrap": {"default": "kafka.example.org:9093", "description": "One broker, host and port."}},
        "security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in _SECURITY],
    },
}


def _document(schemas: Json, examples: Mapping[str, Json]) -> Json:
    """Return the whole document.

    Args:
        schemas: the components that messages refer to, by their struct's name.
        examples: a record of each kind, by the message's name.
    """
    public = [topic for topic in TOPICS if topic.direction != "internal"]
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Reknit",
            "version": VERSION,
            "description": "Mends agent histories into requests that providers accept, and recovers what streams drop. "
            "All topics are keyed by the session's id and have one number of partitions; the partitioner is murmur2, "
            "Kafka's default (librdkafka: `partitioner=murmur2_random`). Values may be compressed with zstd. Read "
            "outputs with `isolation.level=read_committed`.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": _SERVERS,
        "channels": {topic.name: _channel(topic) for topic in public},
        "operations": {
            **{_operation_name(topic): _operation(topic) for topic in public},
            **{f"send.{name}": _own_operation(name, messages) for name, messages in _WRITTEN_TO_INPUTS.items()},
        },
        "components": {
            "schemas": schemas,
            "messages": {message.name: _message(message, examples[message.name]) for message in RECORD_KINDS},
            "securitySchemes": _SECURITY,
        },
    }


def _kinds_on(topic: Topic) -> list[RecordKind]:
    return [kind for kind in RECORD_KINDS if kind.topic == topic.name]


def _channel(topic: Topic) -> Json:
    return {
        "address": topic.name,
        "description": topic.summary,
        "messages": {kind.name: {"$ref": f"#/components/messages/{kind.name}"} for kind in _kinds_on(topic)},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": DEFAULT_PARTITIONS,
                "topicConfiguration": _settings(topic),
                "bindingVersion": BINDING,
            }
        },
    }


def _settings(topic: Topic) -> Json:
    return {
        setting.name: _BOUND_SETTINGS[setting.name](setting.value)
        for setting in topic.settings
        if setting.name in _BOUND_SETTINGS
    }


def _operation_name(topic: Topic) -> str:
    return ("receive." if topic.direction == "in" else "send.") + topic.name


def _operation(topic: Topic) -> Json:
    reference = f"#/channels/{topic.name}"
    return {
        "action": "receive" if topic.direction == "in" else "send",
        "channel": {"$ref": reference},
        "summary": topic.summary,
        "messages": [{"$ref": f"{reference}/messages/{kind.name}"} for kind in _kinds_on(topic)],
    }


def _own_operation(topic: str, messages: tuple[str, ...]) -> Json:
    reference = f"#/channels/{topic}"
    return {
        "action": "send",
        "channel": {"$ref": reference},
        "summary": "What the worker writes to its own input, marked by `origin`; a replay never writes it.",
        "messages": [{"$ref": f"{reference}/messages/{name}"} for name in messages],
    }


def _message(message: RecordKind, example: Json) -> Json:
    topic = next(topic for topic in TOPICS if topic.name == message.topic)
    found: Json = {
        "name": message.name,
        "summary": message.summary,
        "contentType": topic.content_type,
        "payload": _payload(message),
        "bindings": {"kafka": {"key": {"type": "string", "description": topic.key}, "bindingVersion": BINDING}},
        "examples": [{part: example[part] for part in ("headers", "payload") if part in example}],
    }
    if message.headers is not None and headers.REQUEST_ID in message.headers.__struct_encode_fields__:
        found["correlationId"] = {"location": f"$message.header#/{headers.REQUEST_ID}"}
    if message.headers is not None:
        found["headers"] = {"$ref": f"#/components/schemas/{message.headers.__name__}"}
    return found


def _payload(message: RecordKind) -> Json:
    if message.payload is not None:
        return {"$ref": f"#/components/schemas/{message.payload.__name__}"}
    if message.null:
        return {"type": "null"}
    return {"type": "string", "format": "binary"}


# The files.

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI_FILE = "asyncapi.json"


def schema_files() -> dict[str, bytes]:
    """Return every schema file by its path relative to this package: ``schemas/<topic>.json``, ``….headers.json``."""
    found: dict[str, bytes] = {}
    for topic in dict.fromkeys(message.topic for message in RECORD_KINDS):
        messages = [message for message in RECORD_KINDS if message.topic == topic]
        for part, kinds in (
            ("", [message.payload for message in messages if message.payload is not None]),
            (".headers", [message.headers for message in messages if message.headers is not None]),
        ):
            if kinds:
                found[f"schemas/{topic}{part}.json"] = pretty(_schema(topic + part, kinds))
    return found


def asyncapi_file(examples: bytes) -> dict[str, bytes]:
    """Return the AsyncAPI document by its path relative to this package.

    Args:
        examples: a record of each kind, one per line (``examples.jsonl``): ``message``, the kind's name; ``payload``,
            and
            ``headers`` if it has any.
    """
    types = [kind for message in RECORD_KINDS for kind in _types(message)]
    _, components = json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = _tidied(components)
    for message in RECORD_KINDS:
        if message.payload is not None and (told_by := message.payload.__struct_config__.tag_field):
            schemas[message.payload.__name__]["discriminator"] = told_by
    shown = {row.pop("message"): row for row in map(json.decode, examples.splitlines())}
    return {ASYNCAPI_FILE: pretty(_document(schemas, shown))}


def pretty(value: object) -> bytes:
    """Return indented JSON that ends with a newline."""
    return json.format(json.encode(value), indent=2) + b"\n"


def _types(message: RecordKind) -> list[Any]:
    return [kind for kind in (message.payload, message.headers) if kind is not None]


def _schema(name: str, kinds: list[Any]) -> Json:
    """Return the schema of one file: any of the kinds, distinguished by their ``type`` if they have one."""
    references, components = json.schema_components(kinds, ref_template="#/$defs/{name}")
    body = references[0] if len(references) == 1 else {"anyOf": list(references)}
    return {"$schema": DIALECT, "$id": f"urn:reknit:{name}", "title": name, **body, "$defs": _tidied(components)}


_HEADER_STRUCTS = {message.headers.__name__ for message in RECORD_KINDS if message.headers is not None}


def _tidied(components: Json) -> Json:
    """Return the components by name. None, which a reader gets for a malformed header, is not part of the contract."""
    tidy = {name: _tidy(component) for name, component in components.items()}
    for name in _HEADER_STRUCTS & tidy.keys():
        properties = tidy[name]["properties"]
        tidy[name]["properties"] = {field: _without_null(schema) for field, schema in properties.items()}
    return tidy


def _without_null(schema: Json) -> Json:
    others = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(others) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **others[0]}


def _tidy(schema: Any) -> Any:  # noqa: ANN401  JSON of any shape
    """Convert docstrings to descriptions, without indentation and code markup.

    Removes the ``discriminator`` that msgspec adds. It belongs to OpenAPI; in JSON Schema the ``enum`` of each ``type``
    says the same.
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


# Comparison of two documents. Existing writers of an input must still be accepted, and existing readers of an output
# must still find what was promised: an input may only require less, an output may only promise more. New kinds of
# records and new optional fields are compatible.

# Keywords that only restrict the allowed values.
_CONSTRAINTS = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "pattern", "const", "format")


def breaches(old: Json, new: Json) -> list[str]:
    """Return the changes in ``new`` that break programs of ``old``, one sentence each; empty within a major version."""
    comparison = _Comparison(old, new)
    return [breach for name in old["channels"] for breach in comparison.channel(name)]


class _Comparison:
    def __init__(self, old: Json, new: Json) -> None:
        self._old = old
        self._new = new

    def channel(self, name: str) -> Iterator[str]:
        before, after = self._old["channels"][name], self._new["channels"].get(name)
        if after is None or after["address"] != before["address"]:
            yield f"{name}: the topic is gone"
            return
        received = f"receive.{name}" in self._old["operations"]
        direction: Direction = "input" if received else "output"
        for message, reference in before["messages"].items():
            if message not in after["messages"]:
                yield f"{name}: records {message} are gone"
                continue
            known = self._at(self._old, reference)
            now = self._at(self._new, after["messages"][message])
            if known["contentType"] != now["contentType"]:
                yield f"{name}: {message} has another content type, {now['contentType']}"
            for part in ("payload", "headers"):
                # Headers that were not declared before are ignored.
                if part in known:
                    yield from self._schemas(known[part], now.get(part, {}), f"{message}.{part}", direction, ())

    @staticmethod
    def _at(document: Json, holder: Json) -> Json:
        """Return the end of a chain of references."""
        while "$ref" in holder:
            found: Any = document
            for step in holder["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            holder = found
        return holder

    def _schemas(
        self, before: Json, after: Json, path: str, direction: Direction, within: tuple[str, ...]
    ) -> Iterator[str]:
        reference = before.get("$ref", "")
        if reference in within:
            return  # a recursive schema
        within = (*within, reference) if reference else within
        before, after = self._at(self._old, before), self._at(self._new, after)
        # A reader of outputs must find no less than it expects; a writer of inputs must not be asked for more.
        wide, narrow = (after, before) if direction == "input" else (before, after)
        if not _kinds(narrow) <= _kinds(wide):
            yield f"{path}: was {_named(before)}, is {_named(after)}"
        for keyword in _CONSTRAINTS:
            if keyword in wide and wide[keyword] != narrow.get(keyword):
                yield f"{path}: {keyword} was {before.get(keyword)}, is {after.get(keyword)}"
        if "enum" in before and "enum" in after and not {*narrow["enum"]} <= {*wide["enum"]}:
            yield f"{path}: other values than before, {after['enum']}"
        missing = {*wide.get("required", ())} - {*narrow.get("required", ())}
        words = "is required now" if direction == "input" else "may be absent now"
        for name in sorted(missing):
            yield f"{path}.{name}: {words}"
        for name, known in before.get("properties", {}).items():
            now = after.get("properties", {}).get(name)
            if now is None:
                yield f"{path}.{name}: is gone"
            else:
                yield from self._schemas(known, now, f"{path}.{name}", direction, within)
        if "items" in before and "items" in after:
            yield from self._schemas(before["items"], after["items"], f"{path}[]", direction, within)
        alternatives = after.get("anyOf", ())
        for at, known in enumerate(before.get("anyOf", ())):
            found = [list(self._schemas(known, each, f"{path}|{at}", direction, within)) for each in alternatives]
            if [] not in found:
                yield from min(found, key=len, default=[f"{path}|{at}: is gone"])


def _kinds(schema: Json) -> set[str]:
    """Return the JSON types that a schema allows; all types if it does not restrict them."""
    if "anyOf" in schema:
        return set()  # compared one by one
    kinds = schema.get("type")
    if kinds is None:
        return {"boolean", "object", "array", "number", "integer", "string", "null"}
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _named(schema: Json) -> str:
    return " or ".join(sorted(_kinds(schema)))
