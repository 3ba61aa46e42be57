"""Files made from the records: a JSON Schema for each topic's values and headers, and the AsyncAPI document.

They are committed beside this module, and a test fails when they are stale (``make schemas`` writes them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import cleandoc
from typing import Any, TypeAlias, get_args

from msgspec import Struct, json

from topics import headers
from topics.declarations import (
    AGENT_TURNS,
    DEAD_LETTERS,
    DEFAULT_PARTITIONS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TOPICS,
    Topic,
)
from topics.items import AnyItem
from topics.records import FixRecord, TurnRecord

# Which records each topic holds: what both are made from.


class Message(Struct, frozen=True, kw_only=True):
    """One kind of record of a topic.

    ``payload`` is the struct that its JSON value decodes to, None where the value is bytes of somebody else's
    (``null`` says that there is no value at all); ``headers`` the struct of its headers, if it has any.
    """

    name: str
    topic: str
    summary: str
    payload: Any = None
    null: bool = False
    headers: type[Struct] | None = None


def summary_of(struct: type[Struct]) -> str:
    """The first line of a struct's docstring."""
    return (struct.__doc__ or "").partition("\n")[0]


def _of_union(topic: str, union: object, headers: type[Struct]) -> tuple[Message, ...]:
    return tuple(
        Message(name=struct.__name__, topic=topic, summary=summary_of(struct), payload=struct, headers=headers)
        for struct in get_args(union)
    )


MESSAGES: tuple[Message, ...] = (
    *_of_union(AGENT_TURNS, TurnRecord, headers.TurnHeaders),
    Message(
        name="ProviderEvents",
        topic=PROVIDER_EVENTS,
        summary="The provider's bytes as received, whole events separated by newlines unless `framing` says otherwise.",
        headers=headers.EventHeaders,
    ),
    Message(
        name="EndOfRun",
        topic=PROVIDER_EVENTS,
        summary="The run is over; what it left open is completed as incomplete.",
        null=True,
        headers=headers.EndOfRunHeaders,
    ),
    Message(
        name="SessionPolicy",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: what the stream side acts on of a session's policy.",
        null=True,
        headers=headers.PolicyHeaders,
    ),
    Message(
        name="SessionEnd",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session's log closed it, and the stream side forgets it.",
        null=True,
        headers=headers.ClosedHeaders,
    ),
    Message(
        name="SessionForgetting",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session is to be forgotten, and the stream side forgets it.",
        null=True,
        headers=headers.ForgottenHeaders,
    ),
    Message(
        name="SessionExpiry",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session was silent for too long, and the stream side forgets it.",
        null=True,
        headers=headers.ExpiredHeaders,
    ),
    Message(
        name="Request",
        topic=PROVIDER_REQUESTS,
        summary="A request body, byte for byte what is to be sent.",
        headers=headers.RequestHeaders,
    ),
    *_of_union(SESSION_ITEMS, AnyItem, headers.ItemHeaders),
    Message(
        name="FixRecord",
        topic=HISTORY_FIXES,
        summary=summary_of(FixRecord),
        payload=FixRecord,
        headers=headers.FixHeaders,
    ),
    Message(
        name="DeadLetter",
        topic=DEAD_LETTERS,
        summary="A record as it came, key, value and headers, with the error's headers added.",
        headers=headers.DeadLetterHeaders,
    ),
)


# The AsyncAPI 3.1 document, with Kafka bindings. Reknit is the application: it receives from the input topics and sends
# to the others, and to the inputs what it decides for a session itself. The internal state topics are declared for
# operators (``reknit topics list``) and are not part of the contract.

VERSION = "1.1.0"  # of the contract: its major is the `v1` of the topic names
BINDING = "0.5.0"

# The topic settings that the channel binding knows and how it wants them; the others are in the declarations.
_BOUND_SETTINGS: dict[str, Callable[[str], object]] = {
    "cleanup.policy": lambda text: text.split(","),
    "retention.ms": int,
    "delete.retention.ms": int,
    "max.message.bytes": int,
}

Json: TypeAlias = dict[str, Any]

# What the worker writes to its own inputs, marked by `origin`.
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
    """The whole document.

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
            "messages": {message.name: _message(message, examples[message.name]) for message in MESSAGES},
            "securitySchemes": _SECURITY,
        },
    }


def _channel(topic: Topic) -> Json:
    return {
        "address": topic.name,
        "description": topic.summary,
        "messages": {m.name: {"$ref": f"#/components/messages/{m.name}"} for m in MESSAGES if m.topic == topic.name},
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
        "messages": [{"$ref": f"{reference}/messages/{m.name}"} for m in MESSAGES if m.topic == topic.name],
    }


def _own_operation(topic: str, messages: tuple[str, ...]) -> Json:
    reference = f"#/channels/{topic}"
    return {
        "action": "send",
        "channel": {"$ref": reference},
        "summary": "What the worker writes to its own input, marked by `origin`; a replay never writes it.",
        "messages": [{"$ref": f"{reference}/messages/{name}"} for name in messages],
    }


def _message(message: Message, example: Json) -> Json:
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


def _payload(message: Message) -> Json:
    if message.payload is not None:
        return {"$ref": f"#/components/schemas/{message.payload.__name__}"}
    if message.null:
        return {"type": "null"}
    return {"type": "string", "format": "binary"}


# The files.

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI_FILE = "asyncapi.json"


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
    return {ASYNCAPI_FILE: pretty(_document(schemas, shown))}


def pretty(value: object) -> bytes:
    """JSON for people, ending with a newline."""
    return json.format(json.encode(value), indent=2) + b"\n"


def _types(message: Message) -> list[Any]:
    return [kind for kind in (message.payload, message.headers) if kind is not None]


def _schema(name: str, kinds: list[Any]) -> Json:
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
