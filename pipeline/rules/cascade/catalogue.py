"""The rules for a text-only planner that is to call tools: what it cannot read, and what makes it refuse or stall.

The planner's own refusals carry few words, so most messages are ours; sources name where the trouble was seen.
"""

from __future__ import annotations

from pipeline.rules.base import Catalogue

_CATALOGUE = Catalogue("cascade")
RULES = _CATALOGUE.rules
rule = _CATALOGUE.rule

_WINDSURF = "dwgx/WindsurfAPI"

# fmt: off
# One paragraph a rule.

# The body

BAD_JSON = rule(
    "CAS-01", "hard", "the request body is not valid JSON",
    summary="The body is a JSON object.",
    repair="encode it again", source="ours: the body is JSON",
)
SURROGATE = rule(
    "CAS-02", "hard", "{at}: half of a surrogate pair",
    summary="Texts hold no half of a surrogate pair: the planner takes UTF-8 strings.",
    repair="join the halves, or replace the character", source="Protocol Buffers: strings are UTF-8",
)
NO_MESSAGES = rule(
    "CAS-03", "hard", "messages: at least one message is required",
    summary="The list of messages is not empty.",
    repair="insert a user turn", source="ours: nothing to ask",
)
SHAPE = rule(
    "CAS-04", "hard", "{at}: expected {wanted}",
    summary="A message is a role, user or assistant, and a content, which is a string; the system slot is a string.",
    repair="write blocks as text", source=f"{_WINDSURF}: history is text only",
)
BLANK = rule(
    "CAS-05", "hard", "{at}: the content is blank",
    summary="Every message says something.",
    repair="leave the turn out", source=f"{_WINDSURF} 79cd990: status 400 for empty user content",
)
NO_SLOT = rule(
    "CAS-06", "hard", "{at}: the planner has no place for tools",
    summary="Tools are told in the system slot; a body that declares them is read without them.",
    repair="write them into the preamble", source=f"{_WINDSURF}: no tool schemas in a request",
)
LAST_ASSISTANT = rule(
    "CAS-07", "soft", "{at}: nothing to answer after the assistant's turn",
    summary="The last message is the user's.",
    repair="append a user turn", source="ours: the planner answers the user",
)
NO_MODEL = rule(
    "CAS-08", "soft", "model: missing",
    summary="The body names a model.",
    repair="name it", source="ours: the planner serves many", by_sender=True,
)

# The user's turns

FORGED = rule(
    "CAS-09", "hard", "{at}: {tag} at character {place} stands where only a tool's output or words can",
    summary="A turn of results is whole <tool_result> blocks with their ids, then words, and no other tag in either: "
    "a tool's output can neither end its own block nor call a tool.",
    repair="break the tag with a backslash", source=f"{_WINDSURF} d4dadf2 and later: injection through tool output",
)
PREAMBLE_FIRST = rule(
    "CAS-10", "hard", "{at}: instructions on tools stand before a tool's result",
    summary="The last turn begins with its results, not with how to call tools: models that find both refuse to go "
    "on, and the request ends in a time-out (max_wait, 180 s).",
    repair="leave the line out", source=f"{_WINDSURF} d4dadf2; max_wait on Opus models",
)
CONFIGURED = rule(
    "CAS-11", "hard", "{at}: instructions on tools in the user's turn hold {what}",
    summary="What tells the user's latest turn of tools is one plain line: no heading, no schema, no fence, nothing "
    "that asks to ignore other instructions.",
    repair="keep to the protocol and the names", source=f"{_WINDSURF}#22, #51: taken for an attempt to override",
)

# The system slot

NO_DIRECTORY = rule(
    "CAS-12", "hard", "system: the environment has no working directory that is an absolute path",
    summary="An environment block names a working directory; without one the planner's own workspace wins.",
    repair="leave the block out", source=f"{_WINDSURF}: the planner asserts its own workspace",
)
# fmt: on
