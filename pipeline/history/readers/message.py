"""One message of any making: its shape is chosen, and by that it is read strictly, or tolerantly once unwrapped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.pieces import ANTHROPIC
from reknit.pipeline.history.readers import canonical
from reknit.pipeline.history.readers.canonical import CHATS_PART_KINDS, PART_KINDS
from reknit.pipeline.history.readers.fields import Fields, Notes, as_object, as_string, unknown_role
from reknit.pipeline.history.readers.rawjson import check_nesting, starts_with, wrong_type
from reknit.pipeline.history.readers.strict import (
    CANONICAL,
    ROLES,
    FrameworkShape,
    Misfit,
    Shape,
    StrictReader,
    ValidTurns,
    decoded,
)
from reknit.pipeline.history.readers.tolerant import as_kind
from reknit.pipeline.model import Block, Issuer, RedactedThinking, Role, Thinking, Turn
from reknit.pipeline.providers.bedrock_converse import reader as converse
from reknit.pipeline.providers.bedrock_converse import wire
from reknit.pipeline.providers.gemini import reader as gemini
from reknit.pipeline.providers.openai_chat import reader as openai_chat
from reknit.pipeline.providers.openai_responses import reader as openai_responses

# The names of message lists other than ``messages``, by shape.
ROOTS: Final[dict[str, Literal["input", "contents"]]] = {"openai-responses": "input", "gemini": "contents"}
# Other frameworks' names of roles.
_RENAMED: Final = {"model": "assistant", "ai": "assistant", "bot": "assistant", "human": "user"}
# Marks of an assistant message without a role: keys of a message, types of its blocks, keys of Converse's blocks.
_OF_ASSISTANTS: Final = frozenset({"tool_calls", "function_call", "refusal", "reasoning", "reasoning_content"})
_CALL_TYPES: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "thinking", "redacted_thinking"})
_CALL_KEYS: Final = frozenset({"toolUse", "reasoningContent"})
_BLOCKS_OF_CALLS: Final = frozenset({"tool_use", "tool_result"})
# Keys that AgentCore and event stores add to a wrapped message.
_WRAPPER_KEYS: Final = ("role", "created_at", "updated_at", "type", "timestamp")
_CONVERSE_HEAD: Final = frozenset({"toolConfig", "inferenceConfig", "additionalModelRequestFields", "guardrailConfig"})
_RESULTS: Final = frozenset({"tool", "function"})
_TOOL_ROLES: Final = frozenset({b'"tool"', b'"function"'})
# Only Responses says so of a message (`phase` of EasyInputMessage).
_PHASES: Final = frozenset({b'"commentary"', b'"final_answer"'})
_ROW_KEYS: Final = frozenset({"tool_calls", "tool_call_id", "tool_call_ids", "function_call"})
_NULL: Final = Raw(b"null")
_TOLERANT: Final = {"openai-chat": openai_chat.repaired_turn, "bedrock-converse": converse.repaired_turn}
# Marks of messages that only some shapes have, as raw JSON: names of members, roles, and types of blocks.
_OF_ITEMS: Final = re.compile(rb'"(?:call_id|encrypted_content|input_file|summary_text|reasoning_text)"')
_OF_OTHERS: Final = re.compile(
    rb'"(?:tool_calls|tool_call_id|tool_call_ids|function_call|tool|developer|image_url|file|refusal|reasoning|'
    rb'reasoning_content|input_text|input_image|output_text|call_id|encrypted_content|input_file|toolUse|toolResult|cachePoint)"'
)
_OF_CONVERSE: Final = (b'"toolUse"', b'"toolResult"', b'"cachePoint"')
_BLOCKS: Final = re.compile(rb'"content"\s*:\s*\[\s*\{')
STRICT: Final[dict[Shape, StrictReader[Any]]] = {
    "anthropic": canonical.STRICT,
    "claude-code": canonical.STRICT,
    "openai-chat": openai_chat.STRICT,
    "bedrock-converse": converse.STRICT,
    "openai-responses": openai_responses.STRICT,
    "gemini": gemini.STRICT,
    "gemini-chat": gemini.STRICT,
    "codex-rollout": openai_responses.STRICT,
}


def valid_message(item: Raw | bytes, index: int, shape: Shape | None) -> ValidTurns | Misfit:
    """One message if it is valid. Where no shape was named, what is written in it chooses which is tried."""
    data = bytes(item)
    of_one = shape or _likely_shape(data)
    if of_one != "openai-responses":
        return STRICT[of_one].read_message(item, index)
    reader = openai_responses.MESSAGE if b'"role"' in data else openai_responses.STRICT
    found = reader.read_message(item, index)
    # A message that fits every shape is not an item of Responses, unless the caller says so.
    is_any = shape is None and type(found) is ValidTurns and found.shape == CANONICAL
    return Misfit(reader) if is_any else found


DecidedShape: TypeAlias = Shape | FrameworkShape | Literal["", "each"]


class Decided(Struct, frozen=True):
    """The shape of a list of messages, as the first message with a deciding key has decided it.

    A later message that several shapes can have is of this shape; one that decides another shape is of that one.

    Attributes:
        shape: ``""`` until a message decides it. ``each`` never changes: each message is read by itself, as before
            version 0.2 all were.
        since: the index of the message that decided it; -1 where the document did.
    """

    shape: DecidedShape = ""
    since: int = -1

    @property
    def is_given(self) -> bool:
        """True if the document names the shape of its whole list."""
        return self.since < 0 and self.shape in ROOTS

    @property
    def listed(self) -> Shape | None:
        """The shape, where messages of it are read in another way than alone."""
        return self.shape if self.shape in ROOTS else None  # type: ignore[return-value]  # its keys are shapes

    def after(self, shape: Shape | FrameworkShape | None, index: int) -> Decided:
        """The same after a message that decides a shape, or none."""
        return self if self.shape or shape is None else Decided(shape, index)

    def before(self, count: int) -> Decided:
        """The same where only the first messages came."""
        return self if self.since < count else Decided()


UNDECIDED: Final = Decided()


def read_tolerantly(
    value: Raw | bytes,
    index: int,
    shape: Shape | None,
    notes: Notes,
    *,
    decided: Decided = UNDECIDED,
    misfit: Misfit | None = None,
) -> tuple[Turn, Shape, Decided]:
    """Read one message tolerantly, with a fix for each deviation from its shape.

    Args:
        value: the message.
        index: its position in the history.
        shape: its shape, if it is known.
        notes: receives the fixes.
        decided: the shape that earlier messages decided.
        misfit: why it could not be read strictly, if that was tried.

    Returns:
        The turn, the message's shape, and the decided shape after it.

    Raises:
        InputError: not an object, no usable role, a field of the wrong type, or nested too deeply.
    """
    root = ROOTS.get(shape or decided.shape, "messages")
    path = f"{root}.{index}"
    check_nesting(value, path)
    if not starts_with(value, b"{"):
        raise wrong_type(path, "a message", value)
    fields, turn_id = _unwrap(Fields(value, path, notes))
    author = _stated_author(fields)
    found = shape
    if found is None:
        indicated = _indicated_shape(fields)
        decides = _deciding_shape(fields, indicated)
        found = _shape_of_message(fields, indicated, decided.listed if decided.is_given or decides is None else None)
        decided = decided.after(decides, index)
    found = (shape_of_results(fields) if found in ("openai-chat", "anthropic") else None) or found
    strict = openai_responses.MESSAGE if found == "openai-responses" and "role" in fields else STRICT[found]
    if fields.path == path:
        fields.path = f"{ROOTS.get(found, 'messages')}.{index}"
        if misfit and (turn := strict.read_declared(fields, index, misfit)):
            return _with_author(turn, author), found, decided
    return _with_author(_repaired(fields, found, index, turn_id), author), found, decided


class _Author(Struct, frozen=True):
    """The model that wrote a message, as APIs, LangChain (``response_metadata``) and Pydantic AI name it."""

    model: str | None = None
    model_name: str | None = None
    response_metadata: Raw = _NULL


_AUTHOR: Final = msgspec.json.Decoder(_Author)


def _stated_author(fields: Fields) -> str | None:
    """Return the model that a message states as its author, if it does; its members stay unread."""
    stated = {name: value for name in _Author.__struct_fields__ if (value := fields.peek(name)) is not None}
    author = decoded(_AUTHOR, Raw(msgspec.json.encode(stated))) if stated else None
    if author is None:
        return None
    inner = decoded(_AUTHOR, author.response_metadata) if starts_with(author.response_metadata, b"{") else None
    return author.model or author.model_name or (inner and (inner.model_name or inner.model)) or None


def _with_author(turn: Turn, model: str | None) -> Turn:
    """Return an assistant's turn whose signed reasoning names the model that wrote the message."""
    if model is None or turn.role != "assistant":
        return turn
    blocks = tuple(_authored(block, model) for block in turn.blocks)
    return turn if blocks == turn.blocks else replace(turn, blocks=blocks)


def _authored(block: Block, model: str) -> Block:
    if isinstance(block, RedactedThinking) or (isinstance(block, Thinking) and block.signature):
        issuer = block.issuer if isinstance(block.issuer, Issuer) else Issuer(provider=ANTHROPIC)
        return block if issuer.model else replace(block, issuer=replace(issuer, model=model))
    return block


def _repaired(fields: Fields, found: Shape, index: int, turn_id: str | None) -> Turn:
    """Return the turn of a message that needs more repair than dropping undeclared members."""
    if found in ROOTS:
        fields.path = f"{ROOTS[found]}.{index}"
        turn = gemini.repaired_turn(fields, index) if found == "gemini" else _repaired_item(fields, index)
        fields.drop_rest()
        return turn
    role = _role(fields)
    turn_id = _id(fields) or turn_id
    if found != "openai-chat":
        if role in _RESULTS:
            # The results in it say which calls they answer.
            fields.ignore("tool_call_id", "name")
        role = ROLES[role]
    fields.put("role", Raw(msgspec.json.encode(role)))
    turn = _TOLERANT.get(found, canonical.repaired_turn)(fields, index)
    fields.drop_rest()
    usual = tuple(f"messages.{index}.content.{at}" for at in range(len(turn.blocks)))
    return replace(turn, id=turn_id, paths=None if turn.paths == usual else turn.paths)


def _repaired_item(fields: Fields, index: int) -> Turn:
    own_id = fields.peek("id")
    item_id = _id(fields)
    if own_id is not None and starts_with(own_id, b'"'):
        fields.put("id", own_id)
    if as_kind(fields.peek("type")) in ("", "message") and not openai_responses.is_reference(fields):
        role = _role(fields)
        if role in _RESULTS:
            raise InputError("wrong_shape", "role tool belongs to the openai-chat shape", path=fields.at("role"))
        fields.put("role", Raw(msgspec.json.encode(role)))
    return replace(openai_responses.repaired_turn(fields, index), id=item_id)


# Wrappers and redactions are of no shape, and so are declared nowhere.
def _unwrap(fields: Fields) -> tuple[Fields, str | None]:
    """Return the message inside a wrapper and the wrapper's id for it; a redaction replaces the message.

    Raises:
        InputError: a redaction that is neither a message nor a content: the content that it hides must not be sent.
    """
    redaction = _redaction(fields)
    message = fields.peek("message")
    if message is None or not starts_with(message, b"{") or "content" in fields:
        if redaction is None:
            return fields, None
        hidden = fields.peek("content") or fields.peek("parts")
        turn_id, role = _id(fields), fields.peek("role")
        fields.notes.add_fix("message_redacted", fields.path, before=b"" if hidden is None else bytes(hidden))
        return _in_place_of(role, redaction, fields), turn_id
    turn_id = _id(fields)
    inner = Fields(message, fields.at("message"), fields.notes)
    redaction = redaction or _redaction(inner)
    if redaction is not None:
        fields.notes.add_fix("message_redacted", fields.at("message"), before=bytes(message))
        inner = _in_place_of(inner.peek("role"), redaction, fields)
    fields.ignore("message", *_WRAPPER_KEYS)
    fields.drop_rest()
    return inner, turn_id


def _redaction(fields: Fields) -> tuple[str, Raw] | None:
    """Return the redaction of a message, with its key in any spelling; null is not one."""
    for key in fields.names():
        if key.replace("_", "").replace("-", "").lower() == "redactmessage" and (value := fields.take(key)) is not None:
            return key, value
    return None


def _in_place_of(role: Raw | None, redaction: tuple[str, Raw], fields: Fields) -> Fields:
    """The redaction as a message, which has the role of the one that it hides if it has none of its own."""
    key, value = redaction
    if starts_with(value, b'"') or starts_with(value, b"["):
        value = Raw(b'{"content":%b}' % bytes(value))
    elif not starts_with(value, b"{"):
        raise wrong_type(fields.at(key), "a message or its content", value)
    if role is not None and "role" not in Fields(value, fields.at(key), fields.notes):
        value = Raw(msgspec.json.encode(as_object(value, fields.at(key)) | {"role": role}))
    return Fields(value, fields.at(key), fields.notes)


def _id(fields: Fields) -> str | None:
    """A message's id: a string, or a number as a string."""
    for key in ("message_id", "id"):
        value = fields.take(key)
        if value is None:
            continue
        if starts_with(value, b'"'):
            return as_string(value, fields.at(key))
        if not isinstance(msgspec.json.decode(value), int):
            raise wrong_type(fields.at(key), "a string or a whole number", value)
        return bytes(value).decode()
    return None


def _role(fields: Fields) -> str:
    """A message's role, by one of the names in `ROLES`."""
    path = fields.at("role")
    value = fields.take("role")
    if value is None:
        return _missing_role(fields)
    name = as_string(value, path)
    if name in ROLES:
        return name
    renamed = _RENAMED.get(name)
    if renamed is None:
        raise unknown_role(name, path, "user, assistant, system, developer or tool")
    fields.notes.add_fix("role_renamed", path, f"{name} -> {renamed}", before=bytes(value))
    return renamed


def _missing_role(fields: Fields) -> Role:
    """A message without a role is the assistant's where only it says such things, else the user's.

    Raises:
        InputError: it does not look like a message at all.
    """
    kind = fields.peek("type")
    asks = not _OF_ASSISTANTS.isdisjoint(fields.names())
    if not (asks or "content" in fields) or (kind is not None and bytes(kind) != b'"message"'):
        raise InputError("missing_role", "expected a message with a role and content", path=fields.path)
    role: Role = "assistant" if asks or _holds_calls(fields) else "user"
    fields.notes.add_fix("field_missing", fields.at("role"), role)
    return role


def _holds_calls(fields: Fields) -> bool:
    """Return True if a content has blocks that only an assistant writes."""
    blocks = filter(None, fields.objects("content"))
    return any(
        as_kind(block.get("type")) in _CALL_TYPES or any(block.get(key, _NULL) != _NULL for key in _CALL_KEYS)
        for block in blocks
    )


def _likely_shape(data: bytes) -> Shape:
    if b'"parts"' in data:
        return "gemini"
    if b'"type"' not in data and _BLOCKS.search(data):
        return "bedrock-converse"
    of_others = _OF_OTHERS.search(data)
    if of_others and of_others[0] in _OF_CONVERSE:
        return "bedrock-converse"
    if (of_others and _OF_ITEMS.search(data)) or (b'"message"' in data and (of_others or b'"status"' in data)):
        return "openai-responses"
    if of_others or (b'"name"' in data and b'"input"' not in data):
        return "openai-chat"
    return "anthropic"


def _shape_of_message(fields: Fields, indicated: Shape | None, listed: Shape | None) -> Shape:
    """A message's shape: by the keys that only one shape has, else by its blocks, else canonical.

    Where the list is ``listed``, a message that could be of that shape is.
    """
    if listed == "openai-responses":
        return indicated if indicated and (indicated in ("gemini", "bedrock-converse") or _is_row(fields)) else listed
    if listed == "gemini" and indicated is None and "content" not in fields:
        return listed if bytes(fields.peek("role") or b"null") in gemini.WRITTEN_ROLES else "anthropic"
    return indicated or "anthropic"


def _deciding_shape(fields: Fields, indicated: Shape | None) -> Shape | None:
    """The shape that a message decides for those after it; None for a message that several shapes can have."""
    if indicated == "openai-chat" and _is_row(fields):
        return shape_of_results(fields) or indicated
    if indicated not in (None, "openai-chat") or not openai_chat.MESSAGE_KEYS.isdisjoint(fields.names()):
        return indicated
    kinds = {as_kind(block.get("type")) for block in fields.objects("content") if block is not None}
    if indicated is None:
        return None if _BLOCKS_OF_CALLS.isdisjoint(kinds) else "anthropic"
    # Responses has developers and some of chat's parts, too.
    return None if CHATS_PART_KINDS.isdisjoint(kinds) and "thinking" not in kinds else indicated


def decided_by(items: Iterable[Raw]) -> Decided:
    """The shape that a list of readable messages decides."""
    for index, item in enumerate(items):
        fields, _ = _unwrap(Fields(item, "", Notes()))
        if (shape := _deciding_shape(fields, _indicated_shape(fields))) is not None:
            return Decided(shape, index)
    return UNDECIDED


def _indicated_shape(fields: Fields) -> Shape | None:
    kind = fields.peek("type")
    if openai_responses.is_reference(fields):
        return "openai-responses"
    if kind is not None and bytes(kind).strip(b'"').decode() in openai_responses.ITEM_TYPES:
        return "openai-responses"
    if "parts" in fields and "content" not in fields:
        return "gemini"
    is_message = kind is not None and bytes(kind) == b'"message"'
    is_of_chat = _is_row(fields) or not openai_chat.MESSAGE_KEYS.isdisjoint(fields.names()) or _is_spoken(fields)
    if is_of_chat and not is_message and b'"input_file"' not in bytes(fields.peek("content") or b""):
        return "openai-chat"
    blocks = filter(None, fields.objects("content"))
    shapes = list(dict.fromkeys(shape for block in blocks if (shape := _shape_of_block(block))))
    if _is_of_responses(fields, shapes) or (is_message and ("status" in fields or "openai-chat" in shapes)):
        return "openai-responses"
    if bytes(fields.peek("phase") or b"") in _PHASES:
        return "openai-responses"
    role = fields.peek("role")
    if is_of_chat or (role is not None and bytes(role) == b'"developer"'):
        return "openai-chat"
    return next(iter(shapes), None)


def _is_of_responses(fields: Fields, shapes: Sequence[Shape]) -> bool:
    """Return True if a message has a file of Responses, and no part that only OpenAI's chat has."""
    if "openai-responses" not in shapes:
        return False
    kinds = {as_kind(block.get("type")) for block in fields.objects("content") if block is not None}
    return shapes == ["openai-responses"] or CHATS_PART_KINDS.isdisjoint(kinds)


def _is_row(fields: Fields) -> bool:
    """Return True if a message has calls next to its content, or is a tool's result, as in OpenAI's chat."""
    role = fields.peek("role")
    return (role is not None and bytes(role) in _TOOL_ROLES) or not _ROW_KEYS.isdisjoint(fields.names())


def _is_spoken(fields: Fields) -> bool:
    """Return True if all that a message says is speech, as in OpenAI's chat."""
    return "audio" in fields and "content" not in fields


def shape_of_results(fields: Fields) -> Shape | None:
    """The shape whose results a tool's row holds as blocks, as some write them; None for any other message."""
    role = fields.peek("role")
    for keys in fields.objects("content") if role is not None and bytes(role) in _TOOL_ROLES else ():
        if keys is None:
            continue
        if "toolResult" in keys:
            return "bedrock-converse"
        if bytes(keys.get("type", b"")) == b'"tool_result"':
            return "anthropic"
    return None


def shape_of_head(keys: dict[str, Raw]) -> Shape:
    """Return the shape that a document's other keys indicate, if no message does."""
    if not _CONVERSE_HEAD.isdisjoint(keys):
        return "bedrock-converse"
    if "functions" in keys or b'"function"' in bytes(keys.get("tools", b"")):
        return "openai-chat"
    return "anthropic"


def _shape_of_block(keys: dict[str, Raw]) -> Shape | None:
    kind = keys.get("type", _NULL)
    if starts_with(kind, b"n"):
        return None if wire.BLOCK_KEYS.isdisjoint(keys) else "bedrock-converse"
    named = bytes(kind).strip(b'"').decode()
    if named == "input_file":
        return "openai-responses"
    is_mistrals = named == "thinking" and starts_with(keys.get("thinking", _NULL), b"[")
    return "openai-chat" if named in PART_KINDS or is_mistrals else None
