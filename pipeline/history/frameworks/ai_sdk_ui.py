"""UIMessages of Vercel's AI SDK, versions 4 to 7: the messages on the screen, with a call and its result in one part.

One assistant message holds several steps, and the results of a step are a user's turn before the next one. A part's
state says whether a call has a result, was denied, waits for an approval, or never finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.ai_sdk import (
    DENIED,
    Reasoning,
    file_part,
    options,
    signature_of_gemini,
    value_result,
)
from reknit.pipeline.history.frameworks.base import (
    Framework,
    Item,
    Members,
    Reading,
    finish,
    is_list,
    is_string,
    role_of,
    word,
)
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Placed, kind_named
from reknit.pipeline.model import Document, Image, Role, Text, Unknown

_ROLES: Final[dict[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
_OF_OTHERS: Final = frozenset({"info", "kind", "author"})
_OPEN: Final = frozenset({"input-available", "approval-requested", "call", "approval-responded"})
_CUT: Final = frozenset({"input-streaming", "partial-call"})
_SCREEN: Final = frozenset({"source-url", "source-document", "source"})
_IGNORED: Final = ("metadata", "createdAt", "content", "toolInvocations", "annotations", "reasoning")
_ATTACHMENTS: Final = "experimental_attachments"


def is_tool(kind: str) -> bool:
    return kind == "dynamic-tool" or kind.startswith("tool-")


def _decides(members: Members) -> bool:
    if word(members, "role") not in _ROLES or not is_list(members, "parts") or not _OF_OTHERS.isdisjoint(members):
        return False
    if not (is_string(members, "id") or "content" not in members):
        return False
    listed = as_list(members["parts"], "")
    if not listed:
        return is_string(members, "id")
    found = [as_object(each, "") for each in listed if starts_with(each, b"{")]
    typed = [each for each in found if word(each, "type")]
    return bool(typed) and len(typed) == len(listed) and any(_is_own(each) for each in typed)


def _is_own(part: Members) -> bool:
    """Return True if a part is a UIMessage's; a text of OpenTelemetry's is in ``content``."""
    kind = word(part, "type")
    if kind in ("text", "reasoning"):
        return "text" in part or "reasoning" in part
    return (
        (is_tool(kind) and ("toolCallId" in part or "toolInvocation" in part))
        or kind in ("step-start", "steering-message", *_SCREEN)
        or kind.startswith("data-")
        or (kind == "file" and ("url" in part or "data" in part))
    )


def _fits(members: Members) -> bool:
    return word(members, "role") in _ROLES and is_list(members, "parts")


def _read(reading: Reading, items: Sequence[Item]) -> None:
    for item in items:
        fields = item.fields
        role = role_of(fields, _ROLES)
        turn_id = fields.take_string("id")
        listed = UIParts(reading, item, role, turn_id)
        value, path = fields.take("parts"), fields.at("parts")
        for at, each in enumerate([] if value is None else as_list(value, path)):
            place = f"{path}.{at}"
            if starts_with(each, b"{"):
                listed.read(Fields(each, place, fields.notes))
            else:
                listed.add((Text(text=parts.value_text(each)), place))
        listed.attach(fields)
        listed.end()
        finish(fields, *_IGNORED)


class UIParts:
    """Collects the parts of one message into turns.

    Args:
        reading: receives the turns.
        item: the message.
        role: its role.
        turn_id: its id.
        model: the model that wrote it, if the shape names it.
    """

    def __init__(self, reading: Reading, item: Item, role: Role, turn_id: str | None, model: str | None = None) -> None:
        self._reading = reading
        self._item = item
        self._role = role
        self._id = turn_id
        self._model = model
        self._reasoning = Reasoning(model)
        self._placed: list[Placed] = []
        self._results: list[Placed] = []
        self._streaming = False

    def add(self, placed: Placed, *, streaming: bool = False) -> None:
        """Add blocks of the role; blocks after results begin a new step."""
        if self._results:
            self.end()
        self._placed.append(placed)
        self._streaming = streaming

    def attach(self, fields: Fields) -> None:
        """Add the attachments of a message of version 4, unless its parts have files."""
        has_files = any(isinstance(block, (Image, Document)) for block, _ in self._placed)
        for at, members in enumerate(fields.objects(_ATTACHMENTS)):
            if members is None or has_files:
                continue
            path = f"{fields.at(_ATTACHMENTS)}.{at}"
            block = parts.media(word(members, "contentType"), url=word(members, "url"), title=word(members, "name"))
            self.add(parts.media_or_unknown(block, Fields(b"{}", path, fields.notes, members=members), "file"))
        fields.ignore(_ATTACHMENTS)

    def end(self) -> None:
        """End a step: a turn of its blocks, then a turn of its results."""
        placed, results = self._placed, self._results
        incomplete = self._streaming and bool(placed) and isinstance(placed[-1][0], Text)
        self._reading.add(self._role, placed, self._item, turn_id=self._id, incomplete=incomplete)
        if placed:
            self._id = None
        self._reading.add("user", results, self._item)
        self._placed, self._results, self._streaming = [], [], False
        self._reasoning = Reasoning(self._model)

    def read(self, fields: Fields) -> None:
        kind, path = kind_named(fields), fields.path
        match kind:
            case "step-start":
                self.end()
            case "text":
                given = options(fields)
                text = parts.value_text(fields.take("text"))
                if text:
                    streaming = word(fields.members(), "state") == "streaming"
                    for placed in parts.sealed(Text(text=text), signature_of_gemini(given), path, self._model):
                        self.add(placed, streaming=streaming)
            case "reasoning":
                self._read_reasoning(fields)
            case "file" | "image":
                for placed in file_part(fields):
                    self.add(placed)
            case "steering-message":
                self._steer(fields)
            case "custom" | "reasoning-file":
                self.add((self._native(fields), path))
            case _ if is_tool(kind):
                self._read_tool(fields, kind)
            case _ if kind in _SCREEN or kind.startswith("data-"):
                self._reading.leave_out(fields, kind)
            case _:
                self.add((parts.native(fields, kind), path))
                fields.clear()
        finish(fields, "type", "state", "id")

    def _read_reasoning(self, fields: Fields) -> None:
        """Reasoning; version 4 and Mastra have its signed and redacted pieces in ``details``."""
        if self._results:
            self.end()
        given, path = options(fields), fields.path
        text = parts.value_text(fields.take("text") or fields.take("reasoning"))
        details = fields.objects("details")
        fields.ignore("details", "reasoning")
        signed = [each for each in details if each is not None and (word(each, "signature") or word(each, "data"))]
        if not signed:
            self._reasoning.add(self._placed, text or _joined(details), given, path)
            return
        # Without options no provider is named, and only Anthropic's reasoning had signatures and redactions then.
        key = next(iter(given), "anthropic")
        for each in signed:
            own = {"signature": each["signature"]} if "signature" in each else {"redactedData": each.get("data")}
            members = {name: value for name, value in own.items() if value is not None}
            self._reasoning.add(self._placed, word(each, "text") or text, {key: members}, path)
            text = ""

    def _steer(self, fields: Fields) -> None:
        """Add a user's words inside of an assistant's message as a turn."""
        self.end()
        inner = UIParts(self._reading, self._item, "user", fields.take_string("id"))
        value, path = fields.take("parts"), fields.at("parts")
        for at, each in enumerate([] if value is None else as_list(value, path)):
            if starts_with(each, b"{"):
                inner.read(Fields(each, f"{path}.{at}", fields.notes))
        inner.end()

    def _native(self, fields: Fields) -> Unknown:
        kind = kind_named(fields)
        given = options(Fields(fields.whole, fields.path, fields.notes))
        provider = word(fields.members(), "kind").partition(".")[0] or next(iter(given), "")
        block = parts.native(fields, kind, parts.issuer_of(provider, self._model), is_known=True)
        fields.clear()
        return block

    def _read_tool(self, fields: Fields, kind: str) -> None:
        if kind == "tool-invocation" and (inner := fields.take_object("toolInvocation")) is not None:
            # Version 4, and Mastra.
            options(fields)
            self._read_tool(inner, "dynamic-tool")
            finish(inner, "step")
            return
        path = fields.path
        if bytes(fields.peek("providerExecuted") or b"") == b"true":
            self.add((self._native(fields), path))
            return
        name = fields.take_text("toolName") or kind.removeprefix("tool-")
        called = fields.take_text("toolCallId") or parts.id_made(self._reading, name)
        state = fields.take_text("state")
        given = options(fields)
        raw, arguments = fields.take("rawInput"), fields.take("input") or fields.take("args")
        if state in _CUT:
            block = parts.cut_call(self._reading, called, name, parts.value_text(raw if raw is not None else arguments))
        else:
            if arguments is None and raw is not None:
                arguments = raw
            block = parts.call(self._reading, called, name, arguments, fields.at("input"))
        # Parallel calls follow each other, with their results next to them.
        for placed in parts.sealed(block, signature_of_gemini(given), path, self._model):
            self._placed.append(placed)
        self._streaming = False
        self._add_result(fields, called, state)
        fields.ignore("title", "providerExecuted", "dynamic", "callProviderMetadata", "step", "preliminary", "type",
                      "approval", "toolMetadata")  # fmt: skip
        fields.drop_rest()

    def _add_result(self, fields: Fields, called: str, state: str) -> None:
        """Add the result that a part's state gives. A call that is open, cut or waiting has none."""
        path = fields.at("output" if "output" in fields else "result")
        output = fields.take("output") or fields.take("result")
        error = fields.take("errorText")
        approval = fields.take_object("approval")
        approved = approval.peek("approved") if approval is not None else None
        reason = approval.take_text("reason") if approval is not None else ""
        is_preliminary = bytes(fields.peek("preliminary") or b"") == b"true"
        flag = fields.take_flag("isError")
        if state in _CUT or is_preliminary:
            if is_preliminary and output is not None:
                fields.notes.add_fix("field_dropped", path, "preliminary", before=bytes(output))
            return
        if state == "output-denied" or (
            state == "approval-responded" and approved is not None and bytes(approved) == b"false"
        ):
            self._results.append((parts.result(called, reason or DENIED), path))
        elif state == "output-error":
            text = parts.value_text(error if error is not None else output)
            self._results.append((parts.result(called, text, is_error=True), fields.at("errorText")))
        elif state not in _OPEN:
            found = value_result(called, output, path, fields.notes, is_error=flag)
            self._results.append((found, path))


def _joined(details: Sequence[Members | None]) -> str:
    return "".join(word(each, "text") for each in details if each is not None)


FRAMEWORK: Final = Framework(
    name="ai-sdk-ui",
    title="Vercel AI SDK, UIMessage",
    forms="UIMessage",
    tried="ai 5.0.277, 6.0.326, 7.0.173",
    decides=_decides,
    fits=_fits,
    read=_read,
    grows=True,
)
