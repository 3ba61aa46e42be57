"""Generated events of the sources: lines of the Claude CLI, and events of three providers.

Each text of a provider's event is unique within its run, so that a test can search for it.
"""

from itertools import count

from hypothesis import strategies as st

INDEXES = st.integers(0, 2)
CALL_IDS = st.sampled_from(["call_0", "call_1"])
REASONS = st.sampled_from([None, "end_turn", "tool_use", "max_tokens", "refusal"])
NAMES = st.sampled_from([None, "m1", "m2"])
MESSAGE_IDS = st.sampled_from(["m1", "m2", "m3"])
# With a name, as new versions write it, or without, as old ones do.
NAMED = st.one_of(st.none(), MESSAGE_IDS)
TEXTS = st.one_of(st.sampled_from(["", "\n\n", " "]), st.text(max_size=6))


def stream_event(kind, name, **members):
    named = {} if name is None else {"api_message_id": name}
    return {"type": "stream_event", "event": {"type": kind} | members} | named


def content_block(kind, text, tool_id):
    if kind == "tool_use":
        return {"type": kind, "id": tool_id, "name": "mcp__a__b", "input": {"text": text}}
    return {"type": kind, {"text": "text", "thinking": "thinking"}.get(kind, "data"): text}


BLOCKS = st.builds(content_block, st.sampled_from(["text", "thinking", "tool_use", "odd"]), TEXTS, CALL_IDS)
DELTAS = st.one_of(
    st.builds(lambda text: {"type": "text_delta", "text": text}, TEXTS),
    st.builds(lambda text: {"type": "thinking_delta", "thinking": text}, TEXTS),
    st.builds(lambda text: {"type": "input_json_delta", "partial_json": text}, TEXTS),
    st.builds(lambda text: {"type": "odd_delta", "odd": text}, TEXTS),
)
STREAMED = st.one_of(
    st.builds(lambda id_: stream_event("message_start", id_, message={"id": id_}), MESSAGE_IDS),
    st.builds(
        lambda name, index, block: stream_event("content_block_start", name, index=index, content_block=block),
        NAMED,
        INDEXES,
        BLOCKS,
    ),
    st.builds(
        lambda name, index, delta: stream_event("content_block_delta", name, index=index, delta=delta),
        NAMED,
        INDEXES,
        DELTAS,
    ),
    st.builds(lambda name, index: stream_event("content_block_stop", name, index=index), NAMED, INDEXES),
    st.builds(
        lambda name, reason: stream_event("message_delta", name, delta={"stop_reason": reason}),
        NAMED,
        st.sampled_from([None, "end_turn", "tool_use"]),
    ),
    st.builds(lambda name: stream_event("message_stop", name), NAMED),
    st.builds(
        lambda name, index: (
            stream_event("message_stop", name)
            | {"abandoned_blocks": {"api_message_id": name, "from_block_index": index}}
        ),
        MESSAGE_IDS,
        INDEXES,
    ),
)
WHOLE = st.builds(
    lambda id_, blocks, parent: {
        "type": "assistant",
        "message": {"id": id_, "model": "m", "content": blocks},
        "parent_tool_use_id": parent,
    },
    NAMED,
    st.lists(BLOCKS, max_size=2),
    st.sampled_from([None, None, None, "call_0"]),
)
ANSWERS = st.builds(
    lambda id_, text: {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": id_, "content": text}]},
    },
    CALL_IDS,
    TEXTS,
)
REST = st.one_of(
    st.just({"type": "system", "subtype": "api_retry", "error": "overloaded"}),
    st.just({"type": "system", "subtype": "init", "session_id": "s"}),
    st.builds(lambda text: {"type": "result", "is_error": False, "result": text}, TEXTS),
    st.builds(lambda text: {"type": "user", "isSynthetic": True, "message": {"content": text}}, TEXTS),
    st.just({"type": "assistant", "error": "x", "message": {"content": "notice"}}),
    st.just({"type": "unheard of"}),
)
LINES = st.one_of(STREAMED, STREAMED, STREAMED, WHOLE, WHOLE, ANSWERS, REST)


def marked(number):
    """Return a text that no other event of the run has."""
    return f"<{number}>"


def noted_mark(number):
    """Return a unique text for metadata that only the end of an item carries; a retracted item loses it."""
    return f"<{number}, noted>"


def anthropic_events():
    number = count()
    text = st.builds(lambda: marked(next(number)))
    noted = st.builds(lambda: noted_mark(next(number)))
    block = st.one_of(
        st.builds(lambda kind: {"type": kind, "text": "", "thinking": ""}, st.sampled_from(["text", "thinking"])),
        st.builds(lambda id_: {"type": "tool_use", "id": id_, "name": "a", "input": {}}, CALL_IDS),
        st.builds(lambda words: {"type": "odd", "odd": words}, text),
        st.builds(
            lambda cited: {"type": "text", "text": "", "citations": [{"title": title} for title in cited]},
            st.lists(noted, max_size=2),
        ),
        st.builds(lambda words: {"type": "web_search_tool_result", "content": [{"title": words}]}, text),
        st.just({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
    )
    piece = st.one_of(
        st.builds(lambda words: {"type": "text_delta", "text": words}, text),
        st.builds(lambda words: {"type": "thinking_delta", "thinking": words}, text),
        st.builds(lambda words: {"type": "input_json_delta", "partial_json": words}, text),
        st.builds(lambda words: {"type": "citations_delta", "citation": {"cited_text": words}}, text),
        st.just({"type": "signature_delta", "signature": "s"}),
        st.builds(lambda words: {"type": "odd_delta", "odd": words}, text),
    )
    return st.one_of(
        st.builds(lambda id_: {"type": "message_start", "message": {"id": id_, "model": "m"}}, NAMES),
        st.builds(lambda at, made: {"type": "content_block_start", "index": at, "content_block": made}, INDEXES, block),
        st.builds(lambda at, made: {"type": "content_block_delta", "index": at, "delta": made}, INDEXES, piece),
        st.builds(lambda at, made: {"type": "content_block_delta", "index": at, "delta": made}, INDEXES, piece),
        st.builds(lambda at: {"type": "content_block_stop", "index": at}, INDEXES),
        st.builds(lambda reason: {"type": "message_delta", "delta": {"stop_reason": reason}}, REASONS),
        st.just({"type": "message_stop"}),
        st.just({"type": "ping"}),
        st.just({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        st.builds(lambda words: {"type": "unheard of", "words": words}, text),
        st.builds(
            lambda id_, made, reason: {"type": "message", "id": id_, "content": made, "stop_reason": reason},
            NAMES,
            st.lists(block, max_size=2),
            REASONS,
        ),
    )


def converse_events():
    number = count()
    text = st.builds(lambda: marked(next(number)))
    piece = st.one_of(
        st.builds(lambda words: {"text": words}, text),
        st.builds(lambda words: {"toolUse": {"input": words}}, text),
        st.builds(lambda words: {"reasoningContent": {"text": words}}, text),
        st.builds(lambda words: {"reasoningContent": {"signature": "s"}, "p": words}, st.just("p")),
        st.builds(lambda words: {"citation": {"title": words}}, text),
        st.builds(lambda words: {"odd": {"odd": words}}, text),
        st.builds(lambda words: {"toolResult": [{"text": words}]}, text),
        st.builds(lambda words: {"image": {"source": {"bytes": words}}}, text),
    )
    call = st.builds(lambda id_: {"toolUse": {"toolUseId": id_, "name": "a"}}, CALL_IDS)
    own = st.builds(lambda kind, words: {kind: {"a": words}}, st.sampled_from(["odd", "toolResult", "image"]), text)
    start = st.one_of(call, st.just({}), own)
    # Content of an answer that was not streamed, including citations and unknown blocks.
    content = st.one_of(
        st.builds(lambda words: {"text": words}, text),
        st.builds(lambda words, kind: {"reasoningContent": {"reasoningText": {kind: words}}}, text, st.just("text")),
        st.just({"reasoningContent": {"reasoningText": {"signature": "s"}}}),
        st.builds(
            lambda a, b: {"citationsContent": {"content": [{"text": a}], "citations": [{"title": b}]}}, text, text
        ),
        st.builds(
            lambda id_, words: {"toolUse": {"toolUseId": id_, "name": "a", "input": {"a": words}}}, CALL_IDS, text
        ),
        st.builds(lambda words: {"odd": {"odd": words}}, text),
    )
    return st.one_of(
        st.just({"messageStart": {"role": "assistant"}}),
        st.builds(lambda at, made: {"contentBlockStart": {"contentBlockIndex": at, "start": made}}, INDEXES, start),
        st.builds(lambda at, made: {"contentBlockDelta": {"contentBlockIndex": at, "delta": made}}, INDEXES, piece),
        st.builds(lambda at, made: {"contentBlockDelta": {"contentBlockIndex": at, "delta": made}}, INDEXES, piece),
        st.builds(lambda at: {"contentBlockStop": {"contentBlockIndex": at}}, INDEXES),
        st.builds(lambda why: {"messageStop": {"stopReason": why}}, st.sampled_from(["end_turn", "max_tokens"])),
        st.just({"metadata": {"usage": {"inputTokens": 1, "outputTokens": 2}}}),
        st.just({"throttlingException": {"message": "slow down"}}),
        st.builds(lambda words: {"unheardOf": {"words": words}}, text),
        st.builds(
            lambda made: {"output": {"message": {"content": made}}, "stopReason": "end_turn"},
            st.lists(content, max_size=3),
        ),
    )


def gemini_events():
    number = count()
    text = st.builds(lambda: marked(next(number)))
    noted = st.builds(lambda: noted_mark(next(number)))
    unknown = st.one_of(st.just({}), st.builds(lambda words: {"brandNew": words}, text))
    odd = st.one_of(st.just({}), st.builds(lambda words: {"brandNew": words}, noted))
    call = st.builds(lambda words, new: {"functionCall": {"name": "a", "args": {"a": words}} | new}, text, odd)
    part = st.one_of(
        st.builds(lambda words, new: {"text": words} | new, text, unknown),
        st.builds(lambda words, new: {"text": words, "thought": True} | new, text, unknown),
        st.builds(lambda new: {"text": "", "thoughtSignature": "s"} | new, unknown),
        call,
        st.builds(lambda made: made | {"thoughtSignature": "s"}, call),
        st.builds(lambda words: {"executableCode": {"code": words}}, text),
        st.builds(lambda words: {"brandNew": {"a": words}}, text),
    )
    beside = st.one_of(
        st.just({}),
        st.just({"groundingMetadata": {}}),
        st.builds(lambda words: {"groundingMetadata": {"groundingChunks": [{"web": {"title": words}}]}}, noted),
        st.builds(lambda words: {"urlContextMetadata": {"urlMetadata": [{"retrievedUrl": words}]}}, noted),
        st.builds(lambda words: {"citationMetadata": {"citationSources": [{"uri": words}]}}, noted),
    )
    reason = st.sampled_from([{}, {}, {}, {"finishReason": "STOP"}, {"finishReason": 1}, {"finishReason": 2}])
    zero = st.sampled_from([{}, {"finishReason": 0}, {"index": 0}, {"index": 1}])
    candidate = st.builds(
        lambda parts, more, said, end: {"content": {"parts": parts}} | more | said | end,
        st.lists(part, max_size=3),
        zero,
        beside,
        reason,
    )
    named = st.sampled_from([{}, {"responseId": "r1"}, {"responseId": "r2"}])
    counts = {"promptTokenCount": 1, "promptTokensDetails": [{"modality": 1, "tokenCount": 1}]}
    return st.one_of(
        st.builds(lambda made, name: {"candidates": [made]} | name, candidate, named),
        st.builds(lambda made, name: {"candidates": [made]} | name, candidate, named),
        st.builds(lambda made, name: {"candidates": made} | name, st.lists(candidate, max_size=2), named),
        st.builds(lambda name: {"usageMetadata": counts} | name, named),
        st.builds(lambda why: {"promptFeedback": {"blockReason": why}}, st.sampled_from([0, 1, "SAFETY", 99])),
        st.just({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}),
        st.builds(lambda words: {"unheardOf": {"words": words}}, text),
    )


STREAMS = {
    "anthropic": anthropic_events(),
    "bedrock-converse": converse_events(),
    "claude-cli": LINES,
    "gemini": gemini_events(),
}
