"""The request types of the providers' client libraries, made strict: independent oracles.

The types of `anthropic` and `openai` are TypedDicts, which pydantic reads. In its schema every list is made eager,
every object closed, and coercion is off. Those of `google-genai` are closed pydantic models, one for each part of a
body. Converse has botocore's service model.
"""

import base64
import json
from functools import cache

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

# Members of a body that the library's types leave to `extra_body`, each with its reason.
BESIDE = {
    "anthropic": {
        "temperature": "recorded as taken 112 times; this version of the library no longer offers it",
        "top_k": "recorded as taken; this version of the library no longer offers it",
        "top_p": "recorded as taken; this version of the library no longer offers it",
    },
    "openai-chat": {
        "prefix": "DeepSeek's and Mistral's own flag of a message that the model goes on with",
        "reasoning_content": "DeepSeek's and Kimi's own field of an assistant's message",
        "thinking": "DeepSeek's and Kimi's own switch",
    },
    "deepseek": {
        "prefix": "DeepSeek's own flag of a message that the model goes on with",
        "reasoning_content": "DeepSeek's own field of an assistant's message",
        "thinking": "DeepSeek's own switch",
    },
    "moonshot": {
        "partial": "Moonshot's own flag of a message that the model goes on with",
        "reasoning_content": "Moonshot's own field of an assistant's message",
        "thinking": "Moonshot's own switch",
    },
    "vllm": {
        "add_generation_prompt": "vLLM's own parameter",
        "continue_final_message": "vLLM's own parameter",
        "prefix": "Mistral's own flag of a message that the model goes on with",
        "reasoning_content": "vLLM's own field of an assistant's message",
        "thinking": "DeepSeek's and Kimi's own switch",
        "top_k": "vLLM's own parameter",
    },
}
# A tool of Responses with which recorded chats were accepted; the library's types do not have it there.
TAKEN_BY_CHAT = {"type": "web_search_preview"}
# Members of a Responses item that the types require and the API does not: recorded requests without them were
# accepted.
UNASKED = {
    "input_image": {"detail": "auto"},
    "output_text": {"annotations": []},
    "assistant": {"id": "msg_1", "status": "completed"},
    "reasoning": {"id": "rs_1"},
}


def fault(target, body, model=None):
    """Return the error of the library's types for a body, or ``""``."""
    try:
        if target == "gemini":
            return _gemini_fault(json.loads(body))
        if target == "bedrock-converse":
            return _converse_fault(json.loads(body), model)
        values = json.loads(body)
        values.setdefault("model", "m")  # set by the sender, as are these
        if target == "anthropic":
            values.setdefault("max_tokens", 1)
        _without(values, BESIDE.get(target, {}))
        if target == "openai-chat" and TAKEN_BY_CHAT in values.get("tools", ()):
            values["tools"].remove(TAKEN_BY_CHAT)
        if target == "openai-responses":
            _fill(values["input"])
        _validator(target).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        return str(error)
    return ""


def _without(values, keys):
    for holder in (values, *values.get("messages", ())):
        for key in keys.keys() & holder.keys():
            del holder[key]


def _fill(items):
    for item in items:
        item.update(UNASKED.get(item.get("type", ""), {}) | item)
        parts = item.get("content", item.get("output"))
        if isinstance(parts, list):
            for part in parts:
                part.update(UNASKED.get(part.get("type"), {}) | part)
            item.update(UNASKED.get(item.get("role", ""), {}) | item)


@cache
def _validator(target):
    return SchemaValidator(_strict(TypeAdapter(request_type(target)).core_schema))


def request_type(target):
    if target == "anthropic":
        from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

        return MessageCreateParamsNonStreaming
    if target == "openai-responses":
        from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

        return ResponseCreateParamsNonStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    return CompletionCreateParamsNonStreaming


def _strict(schema):
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _strict(part) for key, part in schema.items()}
    if changed.get("type") == "generator":
        changed["type"] = "list"
    elif changed.get("type") == "typed-dict":
        changed["extra_behavior"] = "forbid"
    return changed


def gemini_parts():
    """Check the members of a generateContent body, for which the library has no type of its own."""
    from google.genai import types

    return {
        "contents": list[types.Content],
        "systemInstruction": types.Content,
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "generationConfig": types.GenerationConfig,
        "safetySettings": list[types.SafetySetting],
        "cachedContent": str,
        "labels": dict[str, str],
        "modelArmorConfig": types.ModelArmorConfig,
        "serviceTier": types.ServiceTier,
        "store": bool,
        "model": str,
    }


def _gemini_fault(body):
    parts = gemini_parts()
    unknown = body.keys() - parts.keys()
    if unknown:
        return f"no such keys: {', '.join(sorted(unknown))}"
    for key, value in body.items():
        TypeAdapter(parts[key]).validate_json(json.dumps(value), strict=True)
    return ""


def _converse_fault(body, model):
    from botocore.validate import ParamValidator

    shape = converse_shape()
    params = _with_bytes(shape, {"modelId": model or "m", **body})
    return str(ParamValidator().validate(params, shape).generate_report())


@cache
def converse_shape():
    """Return the service model's shape of Converse input."""
    from botocore.session import get_session

    return get_session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape


def _with_bytes(shape, value):
    """Convert the JSON of a request to the form that the client library takes: blobs are bytes."""
    if shape.type_name == "blob":
        return base64.b64decode(value, validate=True)
    if shape.type_name == "list" and isinstance(value, list):
        return [_with_bytes(shape.member, item) for item in value]
    if shape.type_name == "structure" and isinstance(value, dict) and not getattr(shape, "is_document_type", False):
        return {
            key: _with_bytes(shape.members[key], item) if key in shape.members else item for key, item in value.items()
        }
    return value


@cache
def request_schemas(target):
    """Return the types of a request as JSON Schemas.

    They are the API's, and those of its beta, which alone define some members.
    """
    if target == "bedrock-converse":
        return [_schema_of(converse_shape(), {})]
    return [TypeAdapter(kind).json_schema() for kind in _request_types(target)]


def _request_types(target):
    if target == "gemini":
        from pydantic import create_model

        return [create_model("Request", **{name: (kind, None) for name, kind in gemini_parts().items()})]
    if target == "anthropic":
        from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as Beta
    elif target == "openai-responses":
        from openai.types.beta.response_create_params import ResponseCreateParamsNonStreaming as Beta
    else:
        return [request_type(target)]
    return [request_type(target), Beta]


def _schema_of(shape, defs):
    """Convert a botocore shape to a JSON Schema; ``defs`` collects the structures."""
    match shape.type_name:
        case "structure" if shape.is_document_type:
            return {"type": "object"}
        case "structure":
            if shape.name not in defs:
                defs[shape.name] = {}
                members = {name: _schema_of(member, defs) for name, member in shape.members.items()}
                known = {"title": shape.name, "properties": members, "required": shape.required_members}
                if shape.is_tagged_union:
                    branches = [
                        {**known, "properties": {name: member}, "required": [name]} for name, member in members.items()
                    ]
                    known = {"anyOf": branches}
                defs[shape.name] |= known
            return {"$ref": f"#/$defs/{shape.name}", "$defs": defs}
        case "list":
            return {"type": "array", "items": _schema_of(shape.member, defs)}
        case "map":
            return {"type": "object", "additionalProperties": _schema_of(shape.value, defs)}
        case "string":
            return {"enum": shape.enum} if shape.enum else {"type": "string"}
        case kind:
            return {"type": {"float": "number", "blob": "string"}.get(kind, kind)}
