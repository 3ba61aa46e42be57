"""Strategies for request bodies by target, valid and broken in all ways that the target's rules name."""

from hypothesis import strategies as st
from look_alikes import CHAT_TARGETS

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
JUNK = [{}, None, 5, "x", {"type": "nope"}, {"type": ["text"]}, {"role": ["user"]}, {"nope": 1}, {"k": "\ud83d"}]

junk = st.sampled_from(JUNK)
ids = st.sampled_from(["a", "b", "c", "call_1", "abcDEF123", "x.y", "é", "x" * 70, ""])
names = st.sampled_from(["f", "a b", "", "n" * 65, "f<|x"])
texts = st.sampled_from(["", " ", "hi", "bye\n", "\ud83d", "é"])
inputs = st.sampled_from(["{}", "[]", "x", "", {}, {"k": 1}, {"k": "\ud83d"}, [1], None])


def record(required=None, **optional):
    """An object with these members, given as values or strategies, and a subset of the optional ones."""
    always = {
        key: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for key, value in (required or {}).items()
    }
    return st.fixed_dictionaries(always, optional=optional)


def either(name, other, value, **optional):
    """A member under one of its two names, and a subset of the optional ones."""
    return st.one_of(record({name: value}, **optional), record({other: value}, **optional))


def listed(*kinds, most):
    return st.lists(st.one_of(*kinds), max_size=most)


# Anthropic Messages.


def block(kind, **fields):
    marks = st.sampled_from([None, {"type": "ephemeral"}, {"type": "forever"}])
    return record({"type": kind, **fields}, cache_control=marks)


anthropic_results = st.one_of(
    texts, listed(block("text", text=texts), block("image", source={"type": "url", "url": "u"}), junk, most=2)
)
anthropic_blocks = listed(
    block("text", text=texts),
    block("tool_use", id=ids, name=st.sampled_from(["f", ""]), input=inputs),
    block("tool_result", tool_use_id=ids, content=anthropic_results, is_error=st.booleans()),
    block("thinking", thinking=texts, signature=texts),
    block("redacted_thinking", data=texts),
    block("server_tool_use", id=ids, name="web_search", input={}),
    block("web_search_tool_result", tool_use_id=ids, content=[]),
    block("image", source={"type": "base64", "media_type": "image/png", "data": PIXEL}),
    junk,
    most=4,
)
anthropic_messages = listed(
    record(
        {
            "role": st.sampled_from(["user", "assistant", "user", "assistant", "system"]),
            "content": st.one_of(texts, anthropic_blocks),
        }
    ),
    st.sampled_from([{"role": "user"}, {"role": "tool", "content": "x"}, {"role": "assistant", "content": 1}, *JUNK]),
    most=9,
)
anthropic_heads = record(
    model=st.sampled_from(["claude-sonnet-4-5", "claude-opus-4-8", "claude-sonnet-5", "other"]),
    max_tokens=st.just(4096),
    thinking=st.sampled_from([{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}]),
    tools=st.just([{"name": "f", "input_schema": {"type": "object"}}]),
    system=st.sampled_from(["", [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], 5]),
)

# OpenAI Chat Completions, also as served by vLLM, and Responses.

image_url = f"data:image/png;base64,{PIXEL}"
chat_parts = listed(
    record({"type": "text", "text": texts}),
    record({"type": "image_url", "image_url": st.sampled_from([image_url, {"url": "u"}, {"url": None}, 5])}),
    record({"type": "file", "file": st.sampled_from([{"file_id": "f"}, {"file_data": "d"}])}),
    record({"type": "input_audio", "input_audio": {}}),
    junk,
    most=3,
)
chat_calls = listed(
    record({"id": ids, "type": "function", "function": record({"name": names, "arguments": inputs})}),
    st.sampled_from([*JUNK, {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}]),
    most=3,
)
chat_content = st.one_of(texts, chat_parts, st.none(), st.just({}))
chat_messages = listed(
    record({"role": st.sampled_from(["user", "system", "developer", "function", "nobody"])}, content=chat_content),
    record(
        {"role": "assistant"},
        content=chat_content,
        tool_calls=st.one_of(st.none(), chat_calls),
        reasoning_content=texts,
        refusal=st.none(),
        prefix=st.booleans(),
    ),
    record({"role": "tool", "tool_call_id": ids, "content": chat_content}),
    record({"role": "tool", "tool_call_id": ids, "content": "done"}),
    junk,
    most=8,
)
models = st.sampled_from(
    [
        "gpt-4o", "gpt-5-mini", "o1-mini", "deepseek-reasoner", "kimi-k2-thinking", "other", "gemma-3", "mixtral-8x7b",
        "mistral-small", "devstral", "Qwen3.5-9B", "llama-3.1", "gpt-oss-20b",
    ]
)  # fmt: skip
chat_heads = record(
    model=models,
    max_tokens=st.just(9),
    tools=st.sampled_from([[], [{"type": "function", "function": {"name": "f"}}], 5]),
    thinking=st.sampled_from([{"type": "enabled"}, {"type": "disabled"}, 5]),
    tool_choice=st.just("auto"),
    user=texts,
)
item_ids = st.sampled_from([None, "fc_1", "rs_1", "msg_1", "x", 5])
item_parts = listed(
    record({"type": st.sampled_from(["input_text", "output_text"]), "text": texts}, cache_control=st.none()),
    record({"type": "input_image", "image_url": st.sampled_from([image_url, "data:image/bmp;base64,Qk0=", None])}),
    record({"type": "input_file"}, file_data=st.sampled_from(["data:audio/mpeg;base64,aGk=", "", 5])),
    junk,
    most=3,
)
item_content = st.one_of(texts, item_parts, st.none())
items = listed(
    record({"role": st.sampled_from(["user", "assistant", "tool"]), "content": item_content}, id=item_ids),
    record({"type": "message", "role": st.sampled_from(["user", "assistant"]), "content": item_content}, id=item_ids),
    record({"type": "function_call", "call_id": ids, "name": names, "arguments": inputs}, id=item_ids),
    record({"type": "function_call_output", "call_id": ids, "output": item_content}, id=item_ids, extra=st.none()),
    record({"type": "custom_tool_call", "call_id": ids, "name": names, "input": texts}),
    record({"type": "custom_tool_call_output", "call_id": ids, "output": texts}),
    record({"type": "reasoning", "summary": []}, id=item_ids, encrypted_content=texts),
    record({"type": "item_reference", "id": st.sampled_from(["fc_1", "rs_1"])}),
    record({"type": "web_search_call", "id": item_ids, "action": {}}),
    junk,
    most=8,
)
responses_heads = record(
    model=models,
    store=st.booleans(),
    previous_response_id=st.just("resp_1"),
    tools=st.sampled_from([[], [{"type": "function", "name": "a b"}], 5]),
    instructions=texts,
)

# Gemini.

signatures = {"thoughtSignature": st.just("c2ln"), "thought_signature": st.just("")}
response_parts = listed(st.just({"inline_data": {"mime_type": "image/gif"}}), junk, most=2)
gemini_parts = listed(
    record({"text": texts}, **signatures),
    either("functionCall", "function_call", record(name=ids, args=inputs, id=ids), **signatures),
    either("functionResponse", "function_response", record(name=ids, response=inputs, parts=response_parts)),
    either("inlineData", "inline_data", record(mimeType=texts, data=texts)),
    st.sampled_from([{"mediaResolution": {"level": "X"}, "text": "a"}, {"thought": True}, {"videoMetadata": {}}]),
    junk,
    most=4,
)
contents = listed(
    record(
        role=st.sampled_from(["user", "model", "user", "model", "function", None, 5]),
        parts=st.one_of(gemini_parts, junk),
    ),
    junk,
    most=8,
)
gemini_heads = record(
    model=st.sampled_from(["models/gemini-3-pro", "gemini-2.5-flash", "other", 5]),
    tools=st.sampled_from([{"functionDeclarations": [{"name": "f"}]}, [{"functionDeclarations": [{}, 5]}, 5], 5]),
    generationConfig=st.sampled_from([{"responseMimeType": "application/json"}, None, 5]),
    system_instruction=st.sampled_from([{"parts": {"text": "\ud83d"}}, "x"]),
)

# Bedrock Converse.

sources = record(bytes=texts, s3Location=inputs)
media = record(format=st.sampled_from(["png", "bmp"]), source=sources)
documents = record(name=ids, source=sources)
converse_results = record(
    {"toolUseId": st.one_of(ids, st.just(5))},
    content=listed(record(text=texts, json=inputs, image=media, document=documents), junk, most=2),
    status=st.sampled_from(["error", "x", 5]),
    type=st.just("t"),
)
converse_blocks = listed(
    record({"text": texts}),
    record({"toolUse": record(toolUseId=ids, name=ids, input=inputs, type=st.just("server_tool_use"))}),
    record({"toolUse": record({"toolUseId": ids, "name": "f", "input": {}})}),
    record({"toolResult": converse_results}),
    record({"toolResult": record({"toolUseId": ids, "content": []})}),
    record(text=texts, image=media, video=media, document=documents),
    st.sampled_from([{"reasoningContent": {"reasoningText": {"text": "t"}}}, {"cachePoint": {}}]),
    junk,
    most=4,
)
converse_messages = listed(
    record(
        role=st.sampled_from(["user", "assistant", "user", "assistant", "system", "tool", 5]),
        content=st.one_of(converse_blocks, junk),
    ),
    junk,
    most=8,
)
converse_heads = record(
    modelId=st.sampled_from(["us.anthropic.claude-sonnet-5", "amazon.nova-lite-v1:0", "meta.llama3", "x", 5]),
    toolConfig=st.sampled_from([{"tools": [{"toolSpec": {"name": "f"}}]}, {"tools": [5]}, {}, 5]),
    inferenceConfig=st.sampled_from([{"maxTokens": 0, "temperature": "x"}, None, 5]),
    system=st.sampled_from([[{"text": ""}, {}, 5], 5]),
    promptVariables=st.just({"a": {"text": "b"}}),
)

# By target: the path of the messages in a body, the optional members next to them, and the messages.
BODIES = {
    "anthropic": ("messages", anthropic_heads, anthropic_messages),
    **dict.fromkeys(CHAT_TARGETS, ("messages", chat_heads, chat_messages)),
    "openai-responses": ("input", responses_heads, items),
    "gemini": ("contents", gemini_heads, contents),
    "bedrock-converse": ("messages", converse_heads, converse_messages),
}
