"""Conversations of clients that send their history with each request, and their bodies by target."""

from __future__ import annotations

from build import call, result, said, text, user
from hypothesis import strategies as st

SIGNED = ("EpwBGOODsig", "EpwBREFUSEDsig")
TOOL = {"name": "ls", "input_schema": {"type": "object"}}


class Turns:
    """A client that sends its history with each request, as drawn: late results, lost answers, texts over calls."""

    def __init__(self, draw):
        self.draw = draw
        self.history = []
        self.called = []
        self.number = 0

    def ask(self):
        """Add what the user sends next."""
        blocks = []
        if self.called and self.draw(st.integers(0, 3)):
            names = self.draw(st.lists(st.sampled_from(self.called[-5:]), min_size=1, max_size=3, unique=True))
            blocks += [result(name, self.draw(st.sampled_from(["pending", "done"]))) for name in names]
        if not blocks or self.draw(st.booleans()):
            self.number += 1
            blocks.append(text(f"words {self.number}"))
        self.history.append(user(*blocks))

    def answer(self):
        """Add the answer, unless the client lost it."""
        if not self.draw(st.integers(0, 4)):
            return
        self.number += 1
        new = [f"call_{self.number}_{at}" for at in range(self.draw(st.integers(0, 3)))]
        self.called += new
        thought = {
            "type": "thinking",
            "thinking": "Hm.",
            "signature": f"{self.draw(st.sampled_from(SIGNED))}{self.number}",
        }
        blocks = [thought] if self.draw(st.booleans()) else []
        self.history.append(said(*blocks, f"answer {self.number}", *(call(name, "ls") for name in new)))

    def lengths(self):
        """Return the numbers of messages that are sent; the history is complete then."""
        sent = []
        for _ in range(self.draw(st.integers(3, 9))):
            self.ask()
            if self.draw(st.integers(0, 6)):
                sent.append(len(self.history))
            self.answer()
            if not self.draw(st.integers(0, 7)):
                sent.append(len(self.history))
        return sent


@st.composite
def conversations(draw):
    turns = Turns(draw)
    return turns.lengths(), turns.history


def chat_messages(messages):
    """The messages in the shape of Chat Completions."""
    written = []
    for message in messages:
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        written += [
            {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        calls = [
            {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": "{}"}}
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        if texts or calls:
            more = {"tool_calls": calls} if calls else {}
            written.append({"role": message["role"], "content": "\n".join(texts), **more})
    return written


def response_items(messages):
    """The messages as items of Responses."""
    items = []
    for message in chat_messages(messages):
        if message["role"] == "tool":
            output = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **output})
            continue
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
        for each in message.get("tool_calls", ()):
            made = {"call_id": each["id"], "name": "ls", "arguments": "{}"}
            items.append({"type": "function_call", **made})
    return items


def body_of(target, messages, model=""):
    """A client's request; without a model, to one that binds no reasoning to its prefix."""
    match target:
        case "anthropic":
            more = {"messages": marked(messages), "max_tokens": 64, "tools": [TOOL]}
            return {"model": model or "claude-sonnet-4-5", **more}
        case "openai-chat":
            tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
            return {"model": model or "gpt-5", "messages": chat_messages(messages), "tools": [tool]}
        case _:
            tool = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
            return {"model": model or "gpt-5", "input": response_items(messages), "tools": [tool]}


def marked(messages):
    """The messages with a cache breakpoint at the end, as clients move it."""
    *before, last = messages
    *blocks, block = last["content"]
    if block["type"] == "thinking":
        return messages
    return [*before, {**last, "content": [*blocks, {**block, "cache_control": {"type": "ephemeral"}}]}]
