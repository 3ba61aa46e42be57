"""Requests that a provider accepted, sent to every other target: a fix names the place of everything that does not
arrive.

Values with containers, and equal contents in other words on every target, are listed below with the reason.
"""

import base64
import json
import re

import pytest
from harmless import PROVIDERS, is_conversation
from recorded import accepted, needs_corpus

from reknit import normalize
from reknit.pipeline.registry import TARGETS

pytestmark = needs_corpus

# Every so manieth request is sent.
STEP = 12
# Members that no request of another provider repeats, because their block says the same there in its own way.
SAID_OTHERWISE = {
    "type": "what a block is",
    "role": "whose message it is",
    "is_error": "results of errors are marked, or begin with [Tool error]",
    "status": "the same; of an item, that it is whole",
    "format": "a media type",
    "media_type": "a data URL, or a format",
    "mimeType": "the same",
    "mime_type": "the same",
    "thought": "what is reasoning",
    "cache_control": "an order to a cache",
    "cachePoint": "the same",
    "model": "some have it in their URL",
    "mode": "a choice of tools, in words of each",
    "tool_choice": "the same",
    "disable_parallel_tool_use": "parallel_tool_calls",
    "index": "where a call stood in its stream, which its place says",
}
# Values that say what is so anyway.
OF_COURSE = {
    "detail": "auto",
    "closed": True,
    "prefix": False,
    "thoughtSignature": "skip_thought_signature_validator",
    "thought_signature": "skip_thought_signature_validator",
}
# Members whose counterpart has another value: JSON output without a schema.
COUNTERPARTS = dict.fromkeys(("responseMimeType", "response_mime_type"), '{"type":"json_object"}')
IDS = {"id", "tool_use_id", "toolUseId", "tool_call_id", "call_id"}
# Programs take no parameters and no tools, and are shown no ids.
PROGRAMS = {"claude-cli", "codex-cli", "copilot-cli", "gemini-cli"}
WITHOUT_IDS = {*PROGRAMS, "gemini"}
MESSAGES = ("messages", "input", "contents")
# Containers of a block, which no path of a fix names.
WRAPPED = re.compile(
    r"\.(toolResult|toolUse|function|toolSpec|function_?[rR]esponse|functionDeclarations\.\d+|image|document)(?=\.|$)"
)
TOOLS = re.compile(r"^(toolConfig\.tools|functions|tools)\.\d+")
# A fix of a tool's row is at its content.
OTHERWISE_SPELT = {"thought_signature": "thoughtSignature", "tool_call_id": "content"}
# This program is shown a line for blocks of an earlier turn; the page of targets says so.
SHOWN_AS_A_LINE = {
    "claude-cli": ("document", "file", "input_file", "image", "image_url", "input_image", "inlineData", "inline_data")
}


def leaves(value, path=""):
    if isinstance(value, dict):
        for name, member in value.items():
            yield from leaves(member, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for at, member in enumerate(value):
            yield from leaves(member, f"{path}.{at}".lstrip("."))
    elif value is not None:
        yield path, value


def bare(word):
    """A word without what layout and the guards of programs change."""
    if not isinstance(word, str):
        return json.dumps(word)
    return "".join(re.sub(r"^data:[^,]*,", "", word).replace("\u200b", "").replace(">", "").split())


def words(value):
    """Return all of a body's text, including JSON in its texts."""
    for _, word in leaves(value):
        yield bare(word)
        if isinstance(word, str) and word.lstrip()[:1] in ("{", "["):
            try:
                yield from words(json.loads(word))
            except ValueError:
                continue


def arrives(word, said):
    if not isinstance(word, str) or bare(word) in said:
        return bare(word) in said
    if bare(json.dumps(word)[1:-1]) in said or json.dumps(bare(word))[1:-1] in said:
        return True  # a text in the JSON of a text
    if base64.b64encode(word.encode()).decode() in said:
        return True  # a document's text as its bytes
    parts = list(words(word))[1:]
    return word == "{}" or (bool(parts) and all(part in said for part in parts))


def place(path):
    """A place in a request as the paths of fixes have it."""
    path = re.sub(r"^(contents\.\d+\.parts\.\d+)\.content\.\d+.*", r"\1", path)
    path = WRAPPED.sub("", TOOLS.sub("tools", path.removeprefix("params.")))
    return ".".join(OTHERWISE_SPELT.get(step, step) for step in path.split("."))


def kinds_above(request, steps):
    value = request
    for step in steps:
        value = value[int(step)] if isinstance(value, list) else value[step]
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield value["type"]
        elif step in ("image", "document", "inlineData", "inline_data"):
            yield step


def lost(request, target):
    """Return the content of a request that did not arrive at a target, and that no fix names."""
    done = normalize(json.dumps(request).encode(), to=target)
    if done.body is None:
        assert any(each.severity == "hard" for each in done.violations)
        return []
    body = done.body.decode()
    said = "\0".join(words(json.loads(body) if target == "claude-cli" else body))
    fixed = [place(fix.path) for fix in done.fixes]
    found = []
    for path, word in leaves(request):
        steps = path.split(".")
        name = steps[-1] if not steps[-1].isdecimal() else steps[-2]
        if not SAID_OTHERWISE.keys().isdisjoint(steps) or OF_COURSE.get(name) == word or word == "":
            continue
        if name in COUNTERPARTS and COUNTERPARTS[name] in body:
            continue
        if name in IDS and (target in WITHOUT_IDS or ("call" not in path.lower() and steps[0] == "input")):
            continue  # the name of an item that its provider stores
        if target in PROGRAMS and steps[0] not in MESSAGES:
            continue
        if name == "parallel_tool_calls" and '"tools"' not in body:
            continue  # without tools there are no calls
        if any(kind in SHOWN_AS_A_LINE.get(target, ()) for kind in kinds_above(request, steps)):
            continue
        here = place(path)
        named = any(f"{here}.".startswith(f"{at}.") or at.startswith(f"{here}.") for at in fixed)
        if not named and not arrives(word, said):
            found.append(path)
    return found


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_does_not_arrive_has_a_fix(provider):
    rows = [row for row in accepted(provider) if is_conversation(row)][::STEP]
    silent = [
        (row["id"], target, path)
        for row in rows
        for target in TARGETS
        if target != provider
        for path in lost(row["request"], target)
    ]
    assert silent == []


def test_a_word_that_goes_without_a_fix_is_found(monkeypatch):
    request = {"messages": [{"role": "user", "name": "bob", "content": "hi"}], "seed": 7}
    assert lost(request, "anthropic") == []
    monkeypatch.setattr("reknit.pipeline.targets.fitting._SILENT", frozenset({"name"}))
    assert lost(request, "anthropic") == ["messages.0.name"]
