"""The rules of the Bedrock Converse API: the walk through the messages, and what a request's parameters may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from reknit.pipeline.providers.bedrock_converse.rules import catalogue as rules
from reknit.pipeline.providers.bedrock_converse.rules.blocks import (
    UNREAD,
    MediaWalk,
    Message,
    ToolResult,
    ToolUse,
    are_plain_answers,
    is_one,
    is_plain_name,
    judge_block,
    judge_id,
    judge_name,
    plain_calls,
    read_message,
    refuse_constraint,
    says_something,
)
from reknit.pipeline.providers.bedrock_converse.rules.catalogue import CATALOGUE, Converse, family_of, member
from reknit.pipeline.providers.bedrock_converse.rules.parameters import judge_claude_parameters
from reknit.pipeline.rules._fold import Fold
from reknit.pipeline.rules._misfits import Misfit, Spot
from reknit.pipeline.rules.base import NONE_SEEN, Seen

__all__ = ["CATALOGUE", "RULE_SET", "BedrockConverse"]

_ROLES: Final = frozenset({"user", "assistant"})
_MOST_POINTS: Final = 4


class Turns(MediaWalk, kw_only=True, eq=False):
    """The state of the conversation. Neighbours of one role make a run.

    Attributes:
        tools: the request has a toolConfig.
        prompt: the request fills a prompt of the service's own, and may be without messages.
        role: the role of the current run; "" before the first message.
        run_at: the first message of the run.
        calls: the ids called in the last assistant run.
        results: the ids answered in the user run after it, in order.
        ids: all ids called before that assistant run.
        documents: the names of all documents.
        tool_blocks: there was a call or a result.
        points: the number of cache points.
    """

    family: Converse
    tools: bool = False
    prompt: bool = False
    role: str = ""
    run_at: int = 0
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    ids: Seen = NONE_SEEN
    documents: Seen = NONE_SEEN
    tool_blocks: bool = False
    points: int = 0

    def judge_items(self, items: Sequence[Message | None]) -> None:
        """Judge messages, those that are plain in one pass, which says the same as one by one."""
        at = 0
        while at < len(items):
            if self.role != "user":
                at += pass_plain(self, items, at)
            if at < len(items):
                message = items[at]
                if message is not None:
                    self.judge_item(message)
                self.index += 1
                at += 1

    def judge_item(self, message: Message) -> None:
        role = message.role
        if role not in _ROLES:
            path = f"messages.{self.index}.role"
            rule = rules.SYSTEM_ROLE if role == "system" else rules.ROLE
            self.refuse(rule, path, at=member(path), value=role)
        if role != self.role:
            self._enter(role)
        else:
            self.refuse(rules.ALTERNATE, f"messages.{self.index}")
        if not message.content:
            path = f"messages.{self.index}"
            self.refuse(rules.EMPTY_MESSAGE, f"{path}.content", at=path)
        calls: list[str] = []
        results: list[str] = []
        documents = False
        at = 0
        for block in message.content:
            text = block.text
            # Most blocks are text that breaks nothing; the rest is looked at.
            if not text or text.isspace() or not is_one(block):
                self._block(message, at, calls, results)
                documents = documents or block.document is not None
            at += 1  # noqa: SIM113 - enumerate would make a tuple a block
        if calls:
            self._calls(calls)
        if results:
            self._results(results, message)
        if documents:
            self._documents(message)

    def _enter(self, role: str) -> None:
        """Begin a run of ``role``; the one before is complete."""
        if not self.role and role == "assistant":
            self.refuse(rules.FIRST_USER, "messages.0")
        if role == "assistant":
            self._judge_pairs()
            # Only now: two calls of one run under one id break another rule than an id that comes again.
            if self.calls:
                self.ids = self.ids.plus(self.calls)
            self.calls = self.results = ()
        self.role, self.run_at = role, self.index

    def _judge_pairs(self) -> None:
        """Compare the calls of an assistant run with the results of the user run after it."""
        if self.role == "assistant" or not (self.calls or self.results):
            return
        if self.results == self.calls and len(set(self.calls)) == len(self.calls):
            return
        path = f"messages.{self.run_at}.content"
        answered = set(self.results)
        left = [call for call in dict.fromkeys(self.calls) if call not in answered]
        if left:
            self.refuse(rules.UNANSWERED, path, ids=", ".join(left))
        if len(self.results) > len(self.calls):
            self.refuse(rules.TOO_MANY_RESULTS, path)
        if repeated := _repeated(self.results):
            self.refuse(rules.SAME_RESULT, path, ids=repeated)

    def _block(self, message: Message, at: int, calls: list[str], results: list[str]) -> None:
        path, block = f"messages.{self.index}.content.{at}", message.content[at]
        if block.toolUse is not None:
            self._call(block.toolUse, path, calls)
        elif block.toolResult is not None:
            self._result(block.toolResult, path, results)
        if block.text is not None and not block.text.strip():
            self._blank(block.text, message, path)
        judge_block(self, block, path, at, self.role)
        if block.cachePoint is not None and block is not UNREAD:
            self._point(message, at, path)

    def _point(self, message: Message, at: int, path: str) -> None:
        self.judge_point(f"{path}.cachePoint")
        if at and message.content[at - 1].reasoningContent is not None:
            self.refuse(rules.POINT_AFTER_REASONING, path)

    def judge_point(self, path: str) -> None:
        """Count a cache point, and judge whether the model takes any."""
        self.points += 1
        self.refuse_where_known(rules.CACHE_POINT, path)

    def _blank(self, text: str, message: Message, path: str) -> None:
        """Judge a blank text: whitespace next to a block with content is only a warning."""
        if text and any(map(says_something, message.content)):
            if not self.family.blank_text:
                self.refuse(rules.BLANK_BESIDE, f"{path}.text", at=path)
        else:
            self.refuse(rules.BLANK_TEXT, f"{path}.text", at=path)

    def _call(self, call: ToolUse, path: str, calls: list[str]) -> None:
        self.tool_blocks = True
        judge_id(self, call.toolUseId, f"{path}.toolUse.toolUseId")
        if call.type == "server_tool_use":
            return  # the service runs it, and answers it in the same turn
        if self.role != "assistant":
            self._misplaced("tool_use", "assistant")
            return
        calls.append(call.toolUseId)
        if call.toolUseId in self.ids and not self.family.unlike_anthropic:
            self.refuse(rules.REUSED_ID, path)

    def _result(self, result: ToolResult, path: str, results: list[str]) -> None:
        self.tool_blocks = True
        judge_id(self, result.toolUseId, f"{path}.toolResult.toolUseId")
        if self.role == "user":
            results.append(result.toolUseId)
        elif result.type is None:
            self._misplaced("tool_result", "user")

    def _misplaced(self, kind: str, role: str) -> None:
        self.refuse(rules.BLOCK_ROLE, f"messages.{self.index}", kind=kind, role=role)

    def _calls(self, calls: list[str]) -> None:
        self.calls += tuple(calls)
        if repeated := _repeated(self.calls):
            self.refuse(rules.SAME_CALL, f"messages.{self.index}.content", ids=repeated)

    def _results(self, results: list[str], message: Message) -> None:
        self.results += tuple(results)
        if any(block.toolResult is None and block.cachePoint is None for block in message.content):
            self.refuse(rules.MIXED_RESULTS, f"messages.{self.index}.content")

    def _documents(self, message: Message) -> None:
        names = [(at, block.document.name) for at, block in enumerate(message.content) if block.document is not None]
        path = f"messages.{self.index}.content"
        if all(block.text is None for block in message.content):
            self.refuse(rules.LONE_DOCUMENT, path)
        for at, name in names:
            if name in self.documents:
                self.refuse(rules.SAME_DOCUMENT, f"{path}.{at}.document.name")
            self.documents = self.documents.plus([name])

    def judge_end(self) -> None:
        self._judge_pairs()
        self.judge_media()
        if not self.index and not self.prompt:
            self.refuse(rules.NO_MESSAGES, "messages")
        if self.points > _MOST_POINTS:
            self.refuse_where_known(rules.TOO_MANY_POINTS, "messages", count=self.points)
        if self.tool_blocks and not self.tools:
            self.refuse(rules.NO_TOOLS, "toolConfig")
        if self.role == "assistant":
            path = f"messages.{self.index - 1}"
            self.refuse_where_known(rules.PREFILL, path)
            if self.tools and self.family.prefill is not False:
                self.refuse_where_known(rules.PREFILL_TOOLS, path)
            if self.calls:
                ids = ", ".join(dict.fromkeys(self.calls))
                self.refuse(rules.OPEN_END, f"{path}.content", at=f"messages.{self.index}.content", ids=ids)


def _repeated(ids: Collection[str]) -> str:
    if len(set(ids)) == len(ids):
        return ""
    return ", ".join(each for each, count in Counter(ids).items() if count > 1)


# Most requests violate nothing: users and assistants alternate, and each call is answered directly, in order, by texts.
# A few comparisons for each block detect this. The rest is judged message by message.


def pass_plain(walk: Turns, messages: Sequence[Message | None], start: int) -> int:
    """Take a walk past the pairs of a user's and an assistant's message from an index on that break nothing.

    The walk has not begun, or its last message is the assistant's. Returns the number of messages.
    """
    known: set[str] = set()
    calls: Sequence[str] = walk.calls
    # The results have the same ids.
    if len(set(calls)) < len(calls) or not all(map(is_plain_name, calls)):
        return 0
    count, tool_blocks = 0, walk.tool_blocks
    for at in range(start, len(messages) - 1, 2):
        user, assistant = messages[at], messages[at + 1]
        if user is None or assistant is None or user.role != "user" or assistant.role != "assistant":
            break
        # A value that was read tolerantly may not be a list.
        if (
            type(user.content) is not list
            or type(assistant.content) is not list
            or not are_plain_answers(user.content, calls)
        ):
            break
        asked = plain_calls(assistant.content, walk.family)
        known.update(calls)
        if asked is None or len(set(asked)) < len(asked) or not known.isdisjoint(asked) or walk.ids.has_any(asked):
            known.difference_update(calls)
            break
        tool_blocks = tool_blocks or bool(asked)
        calls = asked
        count += 2
    if count:
        walk.index, walk.run_at, walk.role = walk.index + count, walk.index + count - 1, "assistant"
        walk.calls, walk.ids, walk.tool_blocks = tuple(calls), walk.ids.plus(known), tool_blocks
    return count


_PARAMETERS = frozenset(
    {
        "modelId", "system", "inferenceConfig", "toolConfig", "guardrailConfig", "additionalModelRequestFields",
        "promptVariables", "additionalModelResponseFieldPaths", "requestMetadata", "performanceConfig", "serviceTier",
        "outputConfig",
    }
)  # fmt: skip
_OBJECTS = (
    "inferenceConfig", "toolConfig", "guardrailConfig", "promptVariables", "requestMetadata", "performanceConfig",
    "serviceTier", "outputConfig",
)  # fmt: skip


class BedrockConverse(Fold[Turns, Message]):
    target = "bedrock-converse"
    key = "messages"
    model_key = "modelId"
    not_json = rules.BAD_JSON
    surrogate = rules.HALF_CHARACTER
    items = msgspec.json.Decoder(list[Message])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        walk = Turns(
            family=family_of(model),
            tools=head.get("toolConfig") is not None,
            prompt=bool(head.get("promptVariables")),
        )
        if not model:
            walk.refuse(rules.NO_MODEL, "modelId")
        for name in head:
            if name not in _PARAMETERS:
                walk.refuse(rules.EXTRA, name)
        for name in _OBJECTS:
            if not isinstance(head.get(name), dict | None):
                _refuse_type(walk, name, "dictionary")
        _judge_inference(head.get("inferenceConfig"), walk)
        _judge_system(head.get("system"), walk)
        _judge_tools(head.get("toolConfig"), walk)
        judge_claude_parameters(head, model, walk)
        return walk

    def read_item(self, value: object, path: str, walk: Turns) -> Message | None:
        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            if misfit == "extra":
                walk.refuse(rules.EXTRA, spot.path)
            elif misfit == "missing":
                walk.refuse(rules.MISSING, spot.path, at=member(spot.path))
            elif spot.path.rpartition(".")[2] in ("input", "json"):
                walk.refuse(rules.NOT_OBJECT, spot.path)
            else:
                walk.refuse(rules.SHAPE, spot.path, words=words)

        return read_message(value, path, report)

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        """Absent messages are none; anything but a list is a misfit."""
        if body.get(self.key) is None:
            walk.judge_end()
        else:
            _refuse_type(walk, "messages", "list")


def _refuse_type(walk: Turns, path: str, wanted: str) -> None:
    walk.refuse(rules.SHAPE, path, words=f"Input should be a valid {wanted}")


def _judge_inference(config: object, walk: Turns) -> None:
    if not isinstance(config, dict):
        return
    bounds = {"maxTokens": (1, None), "temperature": (0, 1), "topP": (0, 1)}
    for name, (least, most) in bounds.items():
        value, path = config.get(name), f"inferenceConfig.{name}"
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if most is None else int | float):
            _refuse_type(walk, path, "number")
        elif value < least:
            walk.refuse(rules.RANGE, path, value=value, bound=f"greater than or equal to {least}")
        elif most is not None and value > most:
            walk.refuse(rules.RANGE, path, value=value, bound=f"less than or equal to {most}")
    _judge_stops(config.get("stopSequences"), walk)


def _judge_stops(stops: object, walk: Turns) -> None:
    path = "inferenceConfig.stopSequences"
    if stops is None:
        return
    if not isinstance(stops, list):
        _refuse_type(walk, path, "list")
        return
    for at, stop in enumerate(stops):
        if not isinstance(stop, str):
            _refuse_type(walk, f"{path}.{at}", "string")
        elif not stop:
            refuse_constraint(walk, rules.EMPTY_STRING, "", f"{path}.{at}")


def _judge_system(system: object, walk: Turns) -> None:
    if system is None:
        return
    if not isinstance(system, list):
        _refuse_type(walk, "system", "list")
        return
    for at, block in enumerate(system):
        path = f"system.{at}"
        if not isinstance(block, dict):
            _refuse_type(walk, path, "dictionary")
        elif len(block) != 1:
            keys = "text, guardContent, cachePoint"
            walk.refuse(rules.UNION, path, kind="SystemContentBlock", keys=keys)
        elif "text" in block and not isinstance(block["text"], str):
            _refuse_type(walk, f"{path}.text", "string")
        elif "cachePoint" in block:
            walk.judge_point(f"{path}.cachePoint")
        elif block.get("text") == "":
            refuse_constraint(walk, rules.EMPTY_STRING, "", f"{path}.text")


def _judge_tools(config: object, walk: Turns) -> None:
    if not isinstance(config, dict):
        return
    tools, path = config.get("tools"), "toolConfig.tools"
    if tools is None:
        walk.refuse(rules.MISSING, path)
    elif not isinstance(tools, list):
        _refuse_type(walk, path, "list")
    elif not tools:
        walk.refuse(rules.RANGE, path, value="[]", bound="of length greater than or equal to 1")
    else:
        for at, tool in enumerate(tools):
            _judge_tool(tool, f"{path}.{at}", walk)
            if isinstance(tool, dict) and "cachePoint" in tool:
                walk.judge_point(f"{path}.{at}.cachePoint")
                walk.refuse_where_known(rules.POINT_IN_TOOLS, f"{path}.{at}", n=at)


def _judge_tool(tool: object, path: str, walk: Turns) -> None:
    if not isinstance(tool, dict):
        _refuse_type(walk, path, "dictionary")
        return
    if len(tool) != 1:
        walk.refuse(rules.UNION, path, kind="Tool", keys="toolSpec, systemTool, cachePoint")
    spec, path = tool.get("toolSpec"), f"{path}.toolSpec"
    if spec is None:
        return
    if not isinstance(spec, dict):
        _refuse_type(walk, path, "dictionary")
        return
    name, schema = spec.get("name"), spec.get("inputSchema")
    if name is None:
        walk.refuse(rules.MISSING, f"{path}.name", at=member(f"{path}.name"))
    elif not isinstance(name, str):
        _refuse_type(walk, f"{path}.name", "string")
    else:
        judge_name(walk, name, f"{path}.name")
    if spec.get("description") == "":
        refuse_constraint(walk, rules.EMPTY_STRING, "", f"{path}.description")
    if schema is None:
        walk.refuse(rules.MISSING, f"{path}.inputSchema", at=member(f"{path}.inputSchema"))
    elif not isinstance(schema, dict) or not isinstance(schema.get("json"), dict):
        walk.refuse(rules.NOT_OBJECT, f"{path}.inputSchema.json")
    else:
        _judge_schema(schema["json"], f"{path}.inputSchema.json", walk)


def _judge_schema(schema: dict[str, Any], path: str, walk: Turns) -> None:
    if schema.get("type") != "object":
        walk.refuse(rules.SCHEMA_TYPE, f"{path}.type")
    elif not schema.keys().isdisjoint(("oneOf", "allOf", "anyOf")):
        number = path.split(".")[2]
        walk.refuse(rules.TOP_LEVEL_UNION, path, at=f"tools.{number}.custom.input_schema")


RULE_SET = BedrockConverse()
