"""Equalities: the published lists of differences that a provider ignores, and bodies in the normal form of a list.

A target's description names its list. Null and absent are equal everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec


class Node(NamedTuple):
    """A JSON value whose members know where they stood; ``path`` is ``""`` for a whole body."""

    path: str
    value: Any  # a scalar, dict[str, Node] or list[Node]


Rewrite: TypeAlias = Callable[[Node], Node]


class Equality(NamedTuple):
    """Two ways to say the same thing. ``at`` is a pattern of places, in which ``*`` is any member or element.

    ``outer`` ones are rewritten before what is in them, so that this is found at one place.
    """

    summary: str
    at: str
    rewrite: Rewrite
    outer: bool = False


def read_body(body: bytes, equalities: Sequence[Equality]) -> Node:
    """Return a body in normal form: everything that can be written in two ways is written in one.

    Raises:
        msgspec.DecodeError: the body is not JSON.
    """
    return _read(msgspec.json.decode(body), "", "", _compiled(equalities))


def plain(node: Node) -> Any:  # noqa: ANN401  any JSON
    if isinstance(node.value, dict):
        return {name: plain(member) for name, member in node.value.items()}
    return [plain(member) for member in node.value] if isinstance(node.value, list) else node.value


_Compiled: TypeAlias = Sequence[tuple[re.Pattern[str], Equality]]


def _compiled(equalities: Sequence[Equality]) -> _Compiled:
    return [(re.compile(re.escape(each.at).replace(r"\*", r"[^.]+") + r"\Z"), each) for each in equalities]


def _read(value: object, path: str, place: str, equalities: _Compiled) -> Node:
    """Return a value as nodes, inner ones first; ``place`` is its place before any rewrite."""
    here = [each for pattern, each in equalities if pattern.match(place)]
    for each in here:
        value = each.rewrite(Node(path, value)).value if each.outer else value
    below, there = (f"{path}." if path else ""), (f"{place}." if place else "")
    if isinstance(value, dict):
        members = {name: _read(member, below + name, there + name, equalities) for name, member in value.items()}
        # Null and absent are equal.
        node = Node(path, {name: member for name, member in members.items() if member.value is not None})
    elif isinstance(value, list):
        node = Node(
            path, [_read(member, f"{below}{at}", f"{there}{at}", equalities) for at, member in enumerate(value)]
        )
    else:
        node = Node(path, value)
    for each in here:
        node = node if each.outer else each.rewrite(node)
    return node


# Rewrites: of two ways to say a thing, both become one.


def text_block(kind: str = "text") -> Rewrite:
    """A string as a list of one text block; of this type, unless it is ``""``."""

    def rewrite(node: Node) -> Node:
        if not isinstance(node.value, str):
            return node
        members = {"text": node, "type": Node(node.path, kind)} if kind else {"text": node}
        return Node(node.path, [Node(node.path, members)])

    return rewrite


def in_object(name: str) -> Rewrite:
    """A string as an object that has it under a name."""
    return lambda node: Node(node.path, {name: node}) if isinstance(node.value, str) else node


def _members(keep: Callable[[str, Node], bool], name_of: Callable[[str], str] = str) -> Rewrite:
    """An object with only the members that ``keep`` says, each under the name that is made of its own."""

    def rewrite(node: Node) -> Node:
        if not isinstance(node.value, dict):
            return node
        return Node(node.path, {name_of(name): member for name, member in node.value.items() if keep(name, member)})

    return rewrite


def without(**defaults: object) -> Rewrite:
    """Members that say what holds anyway are left out."""
    return _members(lambda name, member: name not in defaults or plain(member) != defaults[name])


def without_empty(*names: str) -> Rewrite:
    """Lists, objects and texts with nothing in them are left out; of all members where none is named."""
    return _members(lambda name, member: bool(names and name not in names) or member.value not in ([], {}, ""))


def without_members(*names: str) -> Rewrite:
    """Members that say nothing here, whatever they are, are left out."""
    return _members(lambda name, _: name not in names)


def renamed(**names: str) -> Rewrite:
    """Members that have two names get one."""
    return _members(lambda *_: True, lambda name: names.get(name, name))


in_camel_case = _members(lambda *_: True, lambda name: re.sub("_([a-z])", lambda found: found[1].upper(), name))
"""Members named with underscores get the names of the API's own JSON."""


def json_text(node: Node) -> Node:
    """A text that holds JSON as what it holds; ``""`` is an empty object."""
    if not isinstance(node.value, str):
        return node
    try:
        value = msgspec.json.decode(node.value or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return node
    return _read(value, node.path, node.path, ())


def list_of_one(node: Node) -> Node:
    return Node(node.path, [node.value]) if isinstance(node.value, dict) else node


def message_list(node: Node) -> Node:
    """A string as a list of one user's message."""
    if not isinstance(node.value, str):
        return node
    members = {"role": Node(node.path, "user"), "content": text_block("")(node)}
    return Node(node.path, [Node(node.path, members)])


def one_declaration_list(node: Node) -> Node:
    """Return tools whose functions are in several lists with one list of them, after the tools of other kinds."""
    if not isinstance(node.value, list) or not all(isinstance(tool.value, dict) for tool in node.value):
        return node
    functions: list[Node] = []
    others = []
    for tool in node.value:
        declared = tool.value.get("functionDeclarations")
        functions += declared.value if declared is not None and isinstance(declared.value, list) else []
        others += [Node(tool.path, {name: each}) for name, each in tool.value.items() if name != "functionDeclarations"]
    return Node(node.path, [*others, *functions])


def refusal_member(node: Node) -> Node:
    """Refusals among the parts of a message's content as the message's own member."""
    if not isinstance(node.value, dict) or "content" not in node.value:
        return node
    content = node.value["content"]
    parts = content.value if isinstance(content.value, list) else []
    refusals = [part.value["refusal"] for part in parts if isinstance(part.value, dict) and "refusal" in part.value]
    if not refusals:
        return node
    others = [part for part in parts if not (isinstance(part.value, dict) and "refusal" in part.value)]
    said = Node(refusals[0].path, "\n".join(str(each.value) for each in refusals))
    left = {"content": Node(content.path, others)} if others else {}
    members = {name: member for name, member in node.value.items() if name != "content"}
    return Node(node.path, members | left | {"refusal": said})


ANTHROPIC = (
    Equality("a string is one text block", "system", text_block()),
    Equality("a string is one text block", "messages.*.content", text_block()),
    Equality("a string is one text block", "messages.*.content.*.content", text_block()),
    Equality("a result is no error unless it says so", "messages.*.content.*", without(is_error=False)),
    Equality("a tool of the client's own is of type custom", "tools.*", without(type="custom")),
    Equality("an empty list, object or text beside the messages says nothing", "", without_empty()),
)
CHAT = (
    Equality("a string is one text part", "messages.*.content", text_block()),
    Equality("a call's arguments are JSON in a text", "messages.*.tool_calls.*.function.arguments", json_text),
    Equality("an empty list of annotations or calls says nothing", "messages.*", without_empty("annotations")),
    Equality("a refusal is a part of the content, or a member of the message", "messages.*", refusal_member),
    Equality("an image is shown at the detail auto unless it says otherwise", "messages.*.content.*.image_url",
             without(detail="auto")),
    *(Equality("a function without a schema has no parameters", at,
               without(parameters={"type": "object", "properties": {}}))
      for at in ("tools.*.function", "functions.*")),
    Equality("an empty list, object or text beside the messages says nothing", "", without_empty()),
)  # fmt: skip
MISTRAL = (
    *CHAT,
    Equality("an answer is no prefix unless it says so", "messages.*", without(prefix=False)),
    Equality("thinking is closed unless it says otherwise", "messages.*.content.*", without(closed=True)),
    Equality("an address may stand for the object that has it", "messages.*.content.*.image_url", in_object("url")),
    Equality("an empty list of parts says nothing", "messages.*", without_empty("content")),
    Equality("a tool is a function unless it says otherwise", "tools.*", without(type="function")),
)
DEEPSEEK = (
    *CHAT,
    Equality("reasoning is read from reasoning_content alone", "messages.*", without_members("reasoning")),
)
RESPONSES = (
    Equality("a string is one user's message", "input", message_list),
    Equality("a string is one text part", "input.*.content", text_block("")),
    Equality("an item without a type is a message", "input.*", without(type="message")),
    Equality("a part says its side by its message's role", "input.*.content.*",
             without(type="output_text")),
    Equality("a part says its side by its message's role", "input.*.content.*", without(type="input_text")),
    Equality("an empty list of annotations says nothing", "input.*.content.*",
             without_empty("annotations", "logprobs")),
    Equality("a string is one text part", "input.*.output", text_block("input_text")),
    Equality("a call's arguments are JSON in a text", "input.*.arguments", json_text),
    *(Equality("an image is shown at the detail auto unless it says otherwise", at, without(detail="auto"))
      for at in ("input.*.content.*", "input.*.output.*")),
    Equality("an empty list, object or text beside the input says nothing", "", without_empty()),
)  # fmt: skip
GEMINI = (
    *(Equality("one object may stand where a list of it belongs", at, list_of_one, outer=True)
      for at in ("tools", "contents", "contents.*.parts", "systemInstruction.parts", "system_instruction.parts")),
    *(Equality("either spelling of a name", at, in_camel_case)
      for at in ("", "*", "contents.*.parts.*", "contents.*.parts.*.*", "contents.*.parts.*.*.parts.*",
                 "contents.*.parts.*.*.parts.*.*", "tools.*", "tools.*.*.*")),
    Equality("a part is no thought unless it says so", "contents.*.parts.*", without(thought=False)),
    Equality("a content without a role is the user's", "contents.*", without(role="user")),
    Equality("the role of the system's instruction says nothing", "systemInstruction", without_members("role")),
    Equality("the role of the system's instruction says nothing", "system_instruction", without_members("role")),
    Equality("a part is no thought unless it says so", "systemInstruction.parts.*", without(thought=False)),
    Equality("a part is no thought unless it says so", "system_instruction.parts.*", without(thought=False)),
    Equality("a schema has either member", "tools.*.*.*", renamed(parametersJsonSchema="parameters")),
    Equality("an empty description says nothing", "tools.*.*.*", without_empty("description")),
    Equality("a call without arguments has an empty object", "contents.*.parts.*.*", without_empty("args")),
    *(Equality("the model chooses among tools unless the request does", at, without(mode="AUTO"))
      for at in ("toolConfig.functionCallingConfig", "tool_config.function_calling_config")),
    Equality("functions stand in one list or in several", "tools", one_declaration_list),
    Equality("the model is named by the address", "", without_members("model", "modelId")),
    Equality("an empty list, object or text beside the contents says nothing", "", without_empty()),
)  # fmt: skip
CONVERSE = (
    Equality("a result is a success unless it says otherwise", "messages.*.content.*.toolResult",
             without(status="success")),
    Equality("the model is named by the address", "", without_members("model", "modelId")),
    Equality("an empty list, object or text beside the messages says nothing", "", without_empty()),
)  # fmt: skip
