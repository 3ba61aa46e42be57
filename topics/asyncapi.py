"""The AsyncAPI 3.1 document of the contract, with Kafka bindings.

Reknit is the application: it receives from the input topics and sends to the others. The internal state topics are
declared for operators (``reknit topics list``) and are not part of the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from topics.declarations import DEFAULT_PARTITIONS, TOPICS, Topic
from topics.messages import MESSAGES, Message

VERSION = "1.0.0"  # of the contract: its major is the `v1` of the topic names
BINDING = "0.5.0"

# The topic settings that the channel binding knows and how it wants them; the others are in the declarations.
_BOUND_SETTINGS: dict[str, Callable[[str], object]] = {
    "cleanup.policy": lambda text: text.split(","),
    "retention.ms": int,
    "delete.retention.ms": int,
    "max.message.bytes": int,
}

Json: TypeAlias = dict[str, Any]


def document(schemas: Json) -> Json:
    """The whole document; ``schemas`` are the components that messages refer to, by their struct's name."""
    public = [topic for topic in TOPICS if topic.direction != "internal"]
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Reknit",
            "version": VERSION,
            "description": "Mends agent histories into requests that providers accept, and recovers what streams drop.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in public},
        "operations": {_operation_name(topic): _operation(topic) for topic in public},
        "components": {
            "schemas": schemas,
            "messages": {message.name: _message(message) for message in MESSAGES},
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


def _message(message: Message) -> Json:
    topic = next(topic for topic in TOPICS if topic.name == message.topic)
    found: Json = {
        "name": message.name,
        "summary": message.summary,
        "contentType": topic.content_type,
        "payload": _payload(message),
        "bindings": {"kafka": {"key": {"type": "string", "description": topic.key}, "bindingVersion": BINDING}},
    }
    if message.headers is not None:
        found["headers"] = {"$ref": f"#/components/schemas/{message.headers.__name__}"}
    return found


def _payload(message: Message) -> Json:
    if message.payload is not None:
        return {"$ref": f"#/components/schemas/{message.payload.__name__}"}
    if message.null:
        return {"type": "null"}
    return {"type": "string", "format": "binary"}
