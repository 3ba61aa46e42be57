"""A small set of histories: the ones of the explained fixes, each broken in one way, and some with nothing to mend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from pipeline.explain import FIX_EXAMPLES
from pipeline.explain.pages import written_out

# An example longer than this shows a limit on size; it would only make the checks slow.
_LONGEST = 20_000


class Sample(Struct, frozen=True):
    """A history with a name: a list of messages, or a document with ``messages`` and what stands beside them."""

    name: str
    history: Any


def broken_histories() -> Iterator[Sample]:
    """Histories that providers refuse, one for each fix; the name is the fix's code."""
    for example in FIX_EXAMPLES.values():
        if example.source != "auto":
            continue
        history = written_out(example.history)
        text = history if isinstance(history, str) else json.dumps(history)
        if len(text) <= _LONGEST and text.lstrip().startswith(("[", "{")):
            yield Sample(example.code, json.loads(text))


def healthy_histories() -> Iterator[Sample]:
    """Histories with nothing to mend, in the canonical shape."""
    yield Sample("one message", [_user("Read the README.")])
    yield Sample("a conversation", [_user("Hello."), _says("Hello."), _user("Go on.")])
    called, answered = _call("toolu_01", "README.md"), _result("toolu_01", "Hello")
    yield Sample("a call", [_user("Read."), called, answered])
    yield Sample("a call and what followed", [_user("Read."), called, answered, _says("It says hello."), _user("So?")])
    both = {"role": "assistant", "content": [*called["content"], *_call("toolu_02", "LICENSE")["content"]]}
    results = {"role": "user", "content": [*answered["content"], *_result("toolu_02", "Apache")["content"]]}
    yield Sample("two calls at once", [_user("Read both."), both, results, _says("Read."), _user("Thanks.")])


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def _call(id_: str, path: str) -> dict[str, Any]:
    block = {"type": "tool_use", "id": id_, "name": "read_file", "input": {"path": path}}
    return {"role": "assistant", "content": [block]}


def _result(id_: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": text}]}
