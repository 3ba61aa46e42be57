"""Bad histories and bodies, for every target: a typed error with its place, or a valid request; never a traceback."""

from __future__ import annotations

import datetime as dt
import json
import math

import pytest
from build import image, png, session_of
from reader_results import refusal

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.errors import InputError
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Violation

DEEP = "[" * 1000 + "]" * 1000
LONE = "\\ud83d"


def message(role: str, content: str, more: str = "") -> str:
    return f'{{"role": "{role}", "content": {content}{more}}}'


def said(role: str, *blocks: str) -> str:
    return message(role, f"[{', '.join(blocks)}]")


def call(call_input: str = "{}", id_: str = "toolu_01", name: str = "f") -> str:
    return said("assistant", f'{{"type": "tool_use", "id": "{id_}", "name": "{name}", "input": {call_input}}}')


def result(content: str = '"ok"', id_: str = "toolu_01") -> str:
    return said("user", f'{{"type": "tool_result", "tool_use_id": "{id_}", "content": {content}}}')


def history(*messages: str) -> str:
    return f"[{', '.join(messages)}]"


def document(messages: str, **beside: str) -> str:
    keys = {**beside, "messages": messages}
    return "{" + ", ".join(f'"{key}": {value}' for key, value in keys.items()) + "}"


SO = '{"type": "text", "text": "So."}'
USER = said("user", SO)


def called(call_input: str = "{}", content: str = '"ok"') -> str:
    return history(USER, call(call_input), result(content))


def hard_ones(violations):
    return [violation for violation in violations if violation.severity == "hard"]


def block(role: str, text: str) -> str:
    return history(USER, said(role, text, SO), USER)


# Input that cannot be understood: the code and the place of the error.
OF_ANOTHER_TYPE = {
    "null": ("null", ""),
    "a number": ("7", ""),
    "a string": ('"Read."', ""),
    "a list of numbers": ("[7]", "messages.0"),
    "a list of null": ("[null]", "messages.0"),
    "messages are null": ('{"messages": null}', "messages"),
    "messages are an object": ('{"messages": {}}', "messages"),
    "a role that is a number": (history('{"role": 7, "content": "x"}'), "messages.0.role"),
    "a list for a model": ('{"model": [], "messages": []}', "model"),
    "a number for tools": ('{"tools": 7, "messages": []}', "tools"),
    "a number for a tool": ('{"tools": [7], "messages": []}', "tools.0"),
    "a number for the system prompt": ('{"system": 7, "messages": []}', "system"),
    "a number for parameters": ('{"params": 7, "messages": []}', "params"),
    "a block that is null": (block("user", "null"), "messages.1.content.0"),
    "a block that is a list": (block("user", "[[]]"), "messages.1.content.0"),
    "a text that is a number": (block("user", '{"type": "text", "text": 7}'), "messages.1.content.0.text"),
    "a call of numbers": (
        block("assistant", '{"type": "tool_use", "id": 7, "name": 7, "input": 7}'),
        "messages.1.content.0.id",
    ),
    "a call of lists": (
        block("assistant", '{"type": "tool_use", "id": [], "name": {}, "input": []}'),
        "messages.1.content.0.id",
    ),
}
TOO_DEEP = {
    "depth 1,000 in content": (history(message("user", DEEP)), "messages.0"),
    "depth 1,000 in an input": (called(DEEP), "messages.1"),
    "depth 1,000 in a result": (called(content=DEEP), "messages.2"),
    "depth 1,000 in an unknown block": (block("user", f'{{"type": "hologram", "x": {DEEP}}}'), "messages.1"),
    "depth 1,000 in a schema": (document(history(USER), tools=f'[{{"name": "f", "input_schema": {DEEP}}}]'), "tools"),
    "depth 1,000 in parameters": (document(history(USER), params=f'{{"x": {DEEP}}}'), "params"),
    "depth 1,000 in Gemini's contents": (
        f'{{"contents": [{{"parts": [{{"text": "{{[\\""}}]}}, {{"parts": {DEEP}}}]}}',
        "contents.1",
    ),
    "depth 100,000": ("[" * 100_000, "messages.0"),
}
REFUSED = {
    "nothing": ("", "empty", ""),
    "half a document": ('[{"role": "user", "content": "x"', "not_json", ""),
    "not UTF-8": (b'[{"role": "user", "content": "\xff"}]', "not_utf8", ""),
    "an unknown role": (history(USER, '{"role": "wizard", "content": "x"}'), "unknown_role", "messages.1.role"),
    **{name: (given, "wrong_type", place) for name, (given, place) in OF_ANOTHER_TYPE.items()},
    **{name: (given, "nested_too_deeply", place) for name, (given, place) in TOO_DEEP.items()},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_input_is_a_typed_error_with_its_place(name, target):
    given, code, place = REFUSED[name]
    with pytest.raises(InputError) as caught:
        normalize(given, to=target)
    error = caught.value
    assert (error.code, error.fault) == (code, "caller")
    assert error.path == place or error.path.startswith(f"{place}.")


# Input that can be repaired, or left out: the requests are valid.
MENDED = {
    "content is null": history('{"role": "user", "content": null}', USER),
    "content is missing": history('{"role": "user"}', USER),
    "role is null": history(USER, '{"role": null, "content": "x"}'),
    "an unknown key": history('{"role": "user", "content": "x", "mood": {"joy": 7}}'),
    "a block without a type": block("user", '{"x": 1}'),
    "a type that is a number": block("user", '{"type": 7}'),
    "an unknown type": block("assistant", '{"type": "hologram", "depth": 3}'),
    "a text that is null": block("user", '{"type": "text", "text": null}'),
    "an image without a source": block("user", '{"type": "image"}'),
    "an image whose source is a number": block("user", '{"type": "image", "source": 7}'),
    "an image whose source is of no type": block("user", '{"type": "image", "source": {"url": "https://x.example"}}'),
    "a document whose source is null": block("user", '{"type": "document", "source": null}'),
    "a document whose source holds nothing": block("user", '{"type": "document", "source": {"type": "base64"}}'),
    "a document without a source in a result": called(content='[{"type": "document", "source": 7}]'),
    "only an image without a source": history('{"role": "user", "content": [{"type": "image", "source": 7}]}'),
    "an image whose data is no base64": block(
        "user", '{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}'
    ),
    "reasoning that is null": block("assistant", '{"type": "thinking", "thinking": null, "signature": null}'),
    "a call without anything": block("assistant", '{"type": "tool_use"}'),
    "a call of nulls": block("assistant", '{"type": "tool_use", "id": null, "name": null, "input": null}'),
    "a result without anything": block("user", '{"type": "tool_result"}'),
    "a result of nulls": block("user", '{"type": "tool_result", "tool_use_id": null, "content": null}'),
    "a result of numbers": called(content="7"),
    "a result of a list of numbers": called(content="[7, null, true]"),
    "a flag that is a string": called().replace('"content": "ok"', '"content": "ok", "is_error": "yes"'),
    "an empty id on both sides": called().replace("toolu_01", ""),
    "an id of 10,000 characters": called().replace("toolu_01", "x" * 10_000),
    "a name of control characters": called().replace('"f"', '"\\u0000\\u001b"'),
    "a key twice": history('{"role": "user", "role": "assistant", "content": "a", "content": "b"}', USER),
    "a huge number": called('{"n": 1' + "0" * 400 + ', "m": 1e999}'),
    "a lone surrogate in text": history(message("user", f'"a{LONE}"')),
    "a lone surrogate in an id": called().replace("toolu_01", LONE),
    "a lone surrogate in a name": called().replace('"f"', f'"{LONE}"'),
    "a lone surrogate in an input": called(f'{{"{LONE}": "{LONE}"}}'),
    "a lone surrogate in a result": called(content=f'"{LONE}"'),
    "a lone surrogate in an unknown block": block("user", f'{{"type": "hologram", "x": "{LONE}"}}'),
    "a lone surrogate in the system prompt": document(history(USER), system=f'"{LONE}"'),
    "depth 400 in an input": called("[" * 400 + "]" * 400),
}


@pytest.mark.parametrize("turn", [message("user", DEEP), call(DEEP), result(DEEP)])
def test_a_session_names_the_message_that_nests_too_deeply_and_continues(turn):
    session = session_of(USER)
    before = session.request().body
    code, path = refusal(session.append, turn)
    assert (code, path.split(".")[:2]) == ("nested_too_deeply", ["messages", "1"])
    assert session.request().body == before


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_history_is_rejected_in_the_providers_words(target):
    """A command line gets nothing at all where there is no message, and the Responses API takes an empty input."""
    done = normalize("[]", to=target)
    hard = hard_ones(done.violations)
    assert (done.body is None) == (target != "openai-responses") == (hard != [])
    assert all(violation.message for violation in hard)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MENDED)
def test_repairable_input_makes_a_valid_request(name, target):
    done = normalize(MENDED[name], to=target)
    assert hard_ones(done.violations) == []
    assert hard_ones(validate(done.body, target)) == []
    assert done.body.decode()


@pytest.mark.parametrize("name", [*REFUSED, *MENDED])
@pytest.mark.parametrize("target", TARGETS)
def test_rules_judge_any_body(name, target):
    given = REFUSED[name][0] if name in REFUSED else MENDED[name]
    for body in (given, {"messages": "x"}, b'{"messages": %b, "input": %b, "contents": %b}' % ((encoded(given),) * 3)):
        found = validate(body, target)
        assert all(isinstance(violation, Violation) and violation.message for violation in found)
        json.dumps([violation.message for violation in found]).encode()


def encoded(given) -> bytes:
    return given if isinstance(given, bytes) else given.encode()


@pytest.mark.parametrize("name", MENDED)
def test_a_session_gives_the_same_results_message_by_message(name):
    given = MENDED[name]
    if given.startswith("{") or "surrogate" in name or not given.startswith('[{"role"'):
        return
    session = Session(tuple(TARGETS))
    decoder = json.JSONDecoder()
    at = 1
    while given[at:].strip(" ,]"):
        _, end = decoder.raw_decode(given, at)
        session.append(given[at:end].encode())
        at = end + len(given[end:]) - len(given[end:].lstrip(" ,"))
    for target in TARGETS:
        assert session.request(target).body == normalize(given, to=target).body


PNG, OTHER = png(62, 62), png(63, 63)


@pytest.mark.parametrize(
    ("data", "mended"),
    [
        (PNG.replace("+", "-"), PNG),
        (OTHER.replace("/", "_"), OTHER),
        (f"{PNG[:20]}\r\n{PNG[20:]}", PNG),
        (f"data:image/png;base64,{PNG}", PNG),
    ],
)
def test_image_data_ends_up_as_plain_base64(data, mended):
    assert data != mended
    done = normalize([{"role": "user", "content": [image(data)]}])
    assert [fix.code for fix in done.fixes] == ["media_data_mended"]
    assert json.loads(done.body)["messages"][0]["content"] == [image(mended)]


# Python objects that are no JSON.


def cyclic():
    turn = {"role": "user", "content": []}
    turn["content"].append(turn)
    return [turn]


OBJECTS = {
    "a cycle": cyclic(),
    "a moment": [{"role": "user", "content": dt.date(2026, 1, 1)}],
    "a class": [{"role": "user", "content": object}],
    "a number for a key": [{7: "user", "content": "x"}],
    "not a number": [{"role": "user", "content": math.nan}],
    "a tuple": ({"role": "user", "content": "x"}, 7),
    "a set": [{"role": "user", "content": {1, 2}}],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_that_are_not_json_are_a_typed_error_or_converted(name):
    session = Session()
    caught = []
    for take in (normalize, lambda given: session.append(given[0])):
        try:
            take(OBJECTS[name])
        except InputError as error:
            caught.append(error)
    assert [error for error in caught if error.fault != "caller" or not error.message] == []
    assert validate({"messages": OBJECTS[name]}) != []


# Ids in a cycle, and much of everything.


@pytest.mark.parametrize("target", TARGETS)
def test_cyclic_ids_are_mapped_one_to_one(target):
    rounds = []
    for number in range(30):
        one, other = ("a", "b") if number % 2 else ("b", "a")
        rounds += [call(id_=one), result(f'"{number}"', id_=other)]
    done = normalize(history(USER, *rounds), to=target)
    assert done.body is not None
    assert hard_ones(validate(done.body, target)) == []


def test_a_transcript_with_cyclic_parents_is_read():
    lines = [
        {"type": "user", "uuid": "a", "parentUuid": "b", "sessionId": "s", "message": {"role": "user", "content": "x"}},
        {"type": "user", "uuid": "b", "parentUuid": "a", "sessionId": "s", "message": {"role": "user", "content": "y"}},
        {"type": "user", "uuid": "c", "parentUuid": "c", "sessionId": "s", "message": {"role": "user", "content": "z"}},
    ]
    done = normalize("\n".join(json.dumps(line) for line in lines), source="claude-code")
    assert done.body is not None
    assert hard_ones(done.violations) == []


@pytest.fixture(scope="module")
def many() -> bytes:
    rounds = [turn(id_=f"toolu_{number}") for number in range(5_000) for turn in (call, result)]
    return history(USER, *rounds[:-1]).encode()


@pytest.mark.parametrize("target", TARGETS)
def test_10_000_messages_make_a_valid_request(target, many):
    done = normalize(many, to=target)
    assert hard_ones(done.violations) == []
    assert len(done.body) > 100_000
    assert {fix.code for fix in done.fixes} <= {"result_synthesised", "id_rewritten", "tools_stubbed", "tail_continued"}


@pytest.fixture(scope="module")
def large() -> bytes:
    data = "iVBORw0KGgoAAAANSUhEUgAA" + "A" * 50_000_000
    source = f'{{"type": "base64", "media_type": "image/png", "data": "{data}"}}'
    return history(said("user", f'{{"type": "image", "source": {source}}}'), USER).encode()


@pytest.mark.parametrize("target", TARGETS)
def test_50_mb_of_base64_is_accepted_or_replaced(target, large):
    done = normalize(large, to=target)
    assert hard_ones(done.violations) == []
    codes = {fix.code for fix in done.fixes}
    assert len(done.body) > 50_000_000 or "image_stubbed" in codes
