"""Requests as clients of each shape write them: the user's entries, results, tools, and the entries of an answer."""

from __future__ import annotations

from typing import Any, Final, Protocol

from mock_provider.parties import Party, Shape

Entry = dict[str, Any]
SCHEMA: Final[Entry] = {"type": "object", "properties": {"path": {"type": "string"}}}


class ClientShape(Protocol):
    """The requests of one shape, as a client makes them."""

    turns: str

    def user(self, text: str, media: list[Entry]) -> Entry: ...
    def picture(self, *, data: str = "", url: str = "", file: str = "") -> Entry: ...
    def results(self, calls: list[Entry], content: str) -> list[Entry]: ...
    def entries(self, answer: Entry) -> list[Entry]: ...
    def calls(self, entry: Entry) -> list[Entry]: ...
    def head(self, party: Party, system: str, tools: list[str], params: Entry) -> Entry: ...


class Messages:
    """Anthropic's Messages."""

    turns = "messages"

    def user(self, text: str, media: list[Entry]) -> Entry:
        return {"role": "user", "content": [*media, {"type": "text", "text": text}]}

    def picture(self, *, data: str = "", url: str = "", file: str = "") -> Entry:
        if file:
            return {"type": "image", "source": {"type": "file", "file_id": file}}
        if url:
            return {"type": "image", "source": {"type": "url", "url": url}}
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}

    def results(self, calls: list[Entry], content: str) -> list[Entry]:
        blocks = [{"type": "tool_result", "tool_use_id": call["id"], "content": content} for call in calls]
        return [{"role": "user", "content": blocks}]

    def entries(self, answer: Entry) -> list[Entry]:
        return [{"role": "assistant", "content": answer["content"]}]

    def calls(self, entry: Entry) -> list[Entry]:
        return [block for block in entry["content"] if block["type"] == "tool_use"]

    def head(self, party: Party, system: str, tools: list[str], params: Entry) -> Entry:
        declared = [{"name": name, "input_schema": SCHEMA} for name in tools]
        return {"model": party.model, "system": system, "tools": declared, **params}


class Converse:
    """Bedrock's Converse."""

    turns = "messages"

    def user(self, text: str, media: list[Entry]) -> Entry:
        return {"role": "user", "content": [*media, {"text": text}]}

    def picture(self, *, data: str = "", url: str = "", file: str = "") -> Entry:
        return {"image": {"format": "png", "source": {"bytes": data or url or file}}}

    def results(self, calls: list[Entry], content: str) -> list[Entry]:
        blocks = [
            {
                "toolResult": {
                    "toolUseId": call["toolUse"]["toolUseId"],
                    "content": [{"text": content}],
                    "status": "success",
                }
            }
            for call in calls
        ]
        return [{"role": "user", "content": blocks}]

    def entries(self, answer: Entry) -> list[Entry]:
        return [answer["output"]["message"]]

    def calls(self, entry: Entry) -> list[Entry]:
        return [block for block in entry["content"] if "toolUse" in block]

    def head(self, party: Party, system: str, tools: list[str], params: Entry) -> Entry:
        declared = [{"toolSpec": {"name": name, "inputSchema": {"json": SCHEMA}}} for name in tools]
        return {"modelId": party.model, "system": [{"text": system}], "toolConfig": {"tools": declared}, **params}


class Responses:
    """OpenAI's Responses."""

    turns = "input"

    def user(self, text: str, media: list[Entry]) -> Entry:
        return {"type": "message", "role": "user", "content": [*media, {"type": "input_text", "text": text}]}

    def picture(self, *, data: str = "", url: str = "", file: str = "") -> Entry:
        if file:
            return {"type": "input_file", "file_id": file}
        return {"type": "input_image", "detail": "auto", "image_url": url or f"data:image/png;base64,{data}"}

    def results(self, calls: list[Entry], content: str) -> list[Entry]:
        return [{"type": "function_call_output", "call_id": call["call_id"], "output": content} for call in calls]

    def entries(self, answer: Entry) -> list[Entry]:
        return answer["output"]

    def calls(self, entry: Entry) -> list[Entry]:
        return [entry] if entry.get("type") == "function_call" else []

    def head(self, party: Party, system: str, tools: list[str], params: Entry) -> Entry:
        declared = [
            {"type": "function", "name": name, "description": "", "parameters": SCHEMA, "strict": False}
            for name in tools
        ]
        return {"model": party.model, "instructions": system, "tools": declared, **params}


class Gemini:
    """Gemini's generateContent."""

    turns = "contents"

    def user(self, text: str, media: list[Entry]) -> Entry:
        return {"role": "user", "parts": [*media, {"text": text}]}

    def picture(self, *, data: str = "", url: str = "", file: str = "") -> Entry:
        if data:
            return {"inlineData": {"mimeType": "image/png", "data": data}}
        base = "https://generativelanguage.googleapis.com/v1beta/files/"
        return {"fileData": {"mimeType": "image/png", "fileUri": url or base + file}}

    def results(self, calls: list[Entry], content: str) -> list[Entry]:
        parts = [
            {"functionResponse": {"name": call["functionCall"]["name"], "response": {"result": content}}}
            for call in calls
        ]
        return [{"role": "user", "parts": parts}]

    def entries(self, answer: Entry) -> list[Entry]:
        return [answer["candidates"][0]["content"]]

    def calls(self, entry: Entry) -> list[Entry]:
        return [part for part in entry["parts"] if "functionCall" in part]

    def head(self, party: Party, system: str, tools: list[str], params: Entry) -> Entry:
        del party
        declared = [{"name": name, "parameters": SCHEMA} for name in tools]
        return {
            "systemInstruction": {"parts": [{"text": system}]},
            "tools": [{"functionDeclarations": declared}],
            **params,
        }


class Chat:
    """Chat Completions."""

    turns = "messages"

    def user(self, text: str, media: list[Entry]) -> Entry:
        return {"role": "user", "content": [*media, {"type": "text", "text": text}] if media else text}

    def picture(self, *, data: str = "", url: str = "", file: str = "") -> Entry:
        return {"type": "image_url", "image_url": {"url": url or file or f"data:image/png;base64,{data}"}}

    def results(self, calls: list[Entry], content: str) -> list[Entry]:
        return [{"role": "tool", "tool_call_id": call["id"], "content": content} for call in calls]

    def entries(self, answer: Entry) -> list[Entry]:
        return [answer["choices"][0]["message"]]

    def calls(self, entry: Entry) -> list[Entry]:
        return entry.get("tool_calls") or []

    def head(self, party: Party, system: str, tools: list[str], params: Entry) -> Entry:
        declared = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in tools]
        return {"model": party.model, "tools": declared, **params, "messages": [{"role": "system", "content": system}]}


SHAPES: Final[dict[Shape, ClientShape]] = {
    "messages": Messages(),
    "converse": Converse(),
    "responses": Responses(),
    "gemini": Gemini(),
    "chat": Chat(),
}
_CLAUDE: Final = {"max_tokens": 8192, "thinking": {"type": "enabled", "budget_tokens": 2048}}
_RESPONSES: Final = {"store": False, "include": ["reasoning.encrypted_content"]}
PARAMS: Final[dict[str, Entry]] = {
    "ant": _CLAUDE,
    "vtx": _CLAUDE,
    "bed": {
        "inferenceConfig": {"maxTokens": 8192},
        "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 2048}},
    },
    "pfx": {"max_tokens": 8192, "thinking": {"type": "adaptive"}},
    "oai": _RESPONSES,
    "azr": _RESPONSES,
    "cop": _RESPONSES,
}
