"""The AsyncAPI 3.1 document of the contract, with Kafka bindings.

Reknit is the application: it receives from the input topics and sends to the others, and to the inputs what it decides
for a session itself. The internal state topics are declared for operators (``reknit topics list``) and are not part of
the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from topics import headers
from topics.declarations import AGENT_TURNS, DEFAULT_PARTITIONS, PROVIDER_EVENTS, TOPICS, Topic
from topics.messages import MESSAGES, Message

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


def document(schemas: Json, examples: Mapping[str, Json]) -> Json:
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
