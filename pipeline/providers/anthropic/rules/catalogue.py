"""The Messages API's rules: what it refuses, in its words.

Ids, texts and sources are those of the published reports named with each rule; "recorded" means seen in recorded
traffic. ``{at}`` is the path; the other names are filled in when the rule is broken. All limits are in this module. The
facts of a family are those of recorded traffic, or of the reports named with a fact.
"""

from __future__ import annotations

import re

from reknit.pipeline.rules._media import CLAUDE
from reknit.pipeline.rules.base import Catalogue, Family


class Claude(Family, frozen=True):
    """Requests that one family of Claude models takes.

    Attributes:
        name: the family, with the line (opus, sonnet) if that makes a difference.
        prefill: a request may end with an assistant message. Refused from 4.6 on (anthropics/claude-code#52433,
            skyvern#4795, recorded for Sonnet 5); Sonnet 4.6 is contested: snap-stanford/Biomni#284 saw it refuse,
            aws/bedrock-agentcore-sdk-python#547 saw it accept.
        system_turns: ``role: system`` inside messages; 4.8 and later (recorded, and LiteLLM's live probes).
        empty_thinking: a signed thinking block with no text, as 4.7 and later write them (recorded).
        thoughtless_loop: with thinking enabled, the turn of the current tool loop starts with a block other than
            thinking (refused in reports of 2025: anomalyco/opencode#3077, deepset-ai/haystack-core-integrations#2146).
            The documentation of 2026 says that thinking is switched off silently instead, so it is not known for later
            models.
        other_media_type: an image of another type than the one declared (refused in vybestack/llxprt-code#2130); Claude
            3.5 took a JPEG declared as PNG (recorded).
        many_media: more than 100 images and documents, as models take whose context window is longer than 200,000
            tokens (the documentation; refused in anthropics/claude-code#3397, #24541).
    """

    prefill: bool | None = None
    system_turns: bool | None = None
    empty_thinking: bool | None = None
    thoughtless_loop: bool | None = None
    other_media_type: bool | None = None
    many_media: bool | None = None


YES, NO = True, False
UNKNOWN = Claude("unknown")

# Version -> family; a line's own entry wins over the version's.
#                              prefill system empty loop other type, many media
_BY_VERSION: dict[tuple[int, int] | tuple[int, int, str], Claude] = {
    (2, 0): Claude("claude-2", YES, NO, NO, YES, None, NO),
    (2, 1): Claude("claude-2", YES, NO, NO, YES, None, NO),
    (3, 0): Claude("claude-3", YES, NO, NO, YES, YES, NO),
    (3, 5): Claude("claude-3-5", YES, NO, NO, YES, YES, NO),
    (3, 7): Claude("claude-3-7", YES, NO, NO, NO, None, NO),
    (4, 0): Claude("claude-4", YES, NO, NO, NO, NO, NO),
    (4, 1): Claude("claude-4-1", YES, NO, NO, None, NO, NO),
    (4, 5): Claude("claude-4-5", YES, NO, NO, None, NO, NO),
    (4, 6): Claude("claude-4-6", NO, NO, NO, None, NO, None),
    (4, 6, "sonnet"): Claude("claude-sonnet-4-6", None, NO, NO, None, NO, None),
    (4, 7): Claude("claude-4-7", NO, NO, YES, None, NO, YES),
    (4, 8): Claude("claude-4-8", NO, YES, YES, None, NO, YES),
    (5, 0): Claude("claude-5", NO, YES, YES, None, NO, YES),
}
FAMILIES = tuple(_BY_VERSION.values())

# As claude-3-5-sonnet-20240620, us.anthropic.claude-opus-4-8-v1:0, anthropic/claude-sonnet-4.5:beta, claude-opus-4@1. A
# longer name (claude-sonnet-4-5-acme) is an unknown model.
_NAME = re.compile(
    r"(?:.*[./]|databricks-)?claude-(?:(?P<line>opus|sonnet|haiku|instant|fable|mythos)-)?"
    r"(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?:-(?P<old_line>opus|sonnet|haiku))?"
    r"(?:-\d{8}|-latest)?(?:-v\d+)?(?:[:@\[].*)?"
)


def is_other_vendors(model: str | None) -> bool:
    """Return True if a model is named, and not as one of Claude's."""
    return bool(model) and "claude" not in str(model).lower()


# The look-alikes' models whose reasoning goes back signed or not (NousResearch/hermes-agent#17992, #75779;
# openclaw/openclaw#74846).
_UNSIGNED = re.compile(r"deepseek|kimi|moonshot|minimax")


def reasons_unsigned(model: str | None) -> bool:
    """Return True if a model is named as one of those that take back reasoning without a signature."""
    return _UNSIGNED.search((model or "").lower()) is not None


def version_of(model: str | None) -> tuple[str, tuple[int, int]] | None:
    """Read the line and the version in a model's name, in any provider's spelling; None if it is no such name whole."""
    name = _NAME.fullmatch((model or "").lower())
    if name is None:
        return None
    return name["line"] or name["old_line"] or "", (int(name["major"]), int(name["minor"] or 0))


def family_of(model: str | None) -> Claude:
    """Find the family of a model by its name; what is no such name whole is unknown."""
    named = version_of(model)
    if named is None:
        return UNKNOWN
    line, version = named
    return _BY_VERSION.get((*version, line)) or _BY_VERSION.get(version, UNKNOWN)


MARKERS = 4  # blocks with cache_control, in the whole request
CALL_NAME_LENGTH = 200

_CALLS = (
    "{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each `tool_use` block "
    "must have a corresponding `tool_result` block in the next message."
)
_THINKING_FIRST = (
    "{at}: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` is enabled, a final "
    "`assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and "
    "`tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this requirement, "
    "disable `thinking`. Please consult our documentation at "
    "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
)

CATALOGUE = Catalogue("anthropic", FAMILIES)
rule = CATALOGUE.rule

# fmt: off One paragraph for each rule; those on parameters and on single images are next to their checks.

# Messages and their order

NO_MESSAGES = rule(
    "ANT-01",
    "hard",
    "messages: at least one message is required",
    summary="The list of messages is not empty.",
    repair="insert a user turn",
    source="LiteLLM raises the same",
)
FIRST_USER = rule(
    "ANT-02",
    "soft",
    'messages: first message must use the "user" role',
    summary="The first message is the user's (old; recorded accepted since).",
    repair="drop leading turns, or prepend a user turn",
    source="tonyljx/TextWordExplain#2; langbot-app/LangBot#867",
)
ALTERNATE = rule(
    "ANT-02b",
    "soft",
    'messages: roles must alternate between "user" and "assistant", but found multiple "{role}" roles in a row',
    summary="Roles alternate (old gateways; the API merges neighbours).",
    repair="merge the neighbours",
    source="mattermost/mattermost-plugin-agents#180; coaidev/coai#209",
)
SYSTEM_ROLE = rule(
    "ANT-03",
    "model",
    'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not '
    '"system" as an input message role.',
    summary="System messages are outside of the list (4.8 and later take them inside).",
    repair="hoist it, or make it user text",
    source="LiteLLM supports_mid_conversation_system; recorded accepted on Opus 4.8 and Fable 5",
    fact="system_turns",
)
ROLE = rule(
    "ANT-03b",
    "hard",
    "{at}: Input should be 'user' or 'assistant'",
    summary="Roles are user and assistant.",
    repair="map the role",
    source="the API's own schema",
)
SYSTEM_FIRST = rule(
    "ANT-03c",
    "hard",
    "messages.0: use the top-level 'system' parameter",
    summary="No model takes a system message before any other.",
    repair="hoist it",
    source="LiteLLM's live probes, BerriAI/litellm#32882",
)
EMPTY_TEXT = rule(
    "ANT-04",
    "hard",
    "{where}: text content blocks must be non-empty",
    summary="No text block is empty, in tool results neither.",
    repair="drop the block",
    source="anthropics/claude-code#59812; anthropics/anthropic-sdk-python#461; aliasrobotics/cai#182",
)
BLANK_TEXT = rule(
    "ANT-05",
    "hard",
    "{where}: text content blocks must contain non-whitespace text",
    summary="A message is not made of whitespace alone.",
    repair="drop the block",
    source="anthropics/claude-code#23440",
)
BLANK_BESIDE = rule(
    "ANT-05b",
    "soft",
    BLANK_TEXT.message,
    summary="No text block is whitespace only (recorded accepted next to other blocks).",
    repair="drop the block",
    source="anthropics/claude-code#23440",
)
EMPTY_MESSAGE = rule(
    "ANT-06",
    "hard",
    "{at}: all messages must have non-empty content except for the optional final assistant message",
    summary="No message is empty, the final assistant message excepted.",
    repair="drop the turn and merge its neighbours",
    source="anthropics/claude-code#6774, #3196; recorded",
)
rule(
    "ANT-06b",
    "hard",
    "user messages must have non-empty content",
    summary="ANT-06, for the user's messages.",
    repair="as ANT-06",
    source="public source files",
    unchecked="another wording of ANT-06",
)

# Calls and results

UNANSWERED = rule(
    "ANT-07",
    "hard",
    _CALLS,
    summary="Every call is answered in the very next message.",
    repair="move the result back, or make an error result",
    source="anthropics/claude-code#1237, #5989; langchain-ai/langgraph#5109; OpenHands/OpenHands#7512",
)
rule(
    "ANT-07a",
    "hard",
    "{at}: Did not find {count} `tool_result` block(s) at the beginning of this message. Messages "
    "following `tool_use` blocks must begin with a matching number of `tool_result` blocks.",
    summary="ANT-07 and ANT-10, until 2025.",
    repair="as ANT-07",
    source="apify/tester-mcp-client#12; anthropics/anthropic-sdk-typescript#653",
    unchecked="an older wording of ANT-07 and ANT-10",
)
AFTER_CALL = rule(
    "ANT-07b",
    "hard",
    _CALLS,
    summary="No text follows a call in its message.",
    repair="move the calls to the end",
    source="anthropics/claude-code#15205",
)
AFTER_CALL_OTHER = rule(
    "ANT-07c",
    "soft",
    _CALLS,
    summary="Nothing else but calls follows a call in its message (only seen for text).",
    repair="move the calls to the end",
    source="anthropics/claude-code#15205",
)
ORPHAN_RESULT = rule(
    "ANT-08",
    "hard",
    "{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must "
    "have a corresponding `tool_use` block in the previous message.",
    summary="A result answers a call of the message before.",
    repair="move it to its call, or drop it",
    source="anthropics/claude-code#13460, #18947; router-for-me/CLIProxyAPI#497",
)
SECOND_RESULT = rule(
    "ANT-09",
    "hard",
    "{at}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}",
    summary="A call has one result.",
    repair="keep the first real one",
    source="sipeed/picoclaw#1792; BerriAI/litellm#20049, #19324",
)
LATE_RESULT = rule(
    "ANT-10",
    "hard",
    _CALLS,
    summary="Results come first in their message.",
    repair="sort them first",
    source="Zoo-Code-Org/Zoo-Code#1705",
)
SAME_ID = rule(
    "ANT-11",
    "hard",
    "{at}: `tool_use` ids must be unique",
    summary="Ids of calls are unique in an assistant turn.",
    repair="drop exact repeats, give the others new ids",
    source="anthropics/claude-code#20901, #28515; anomalyco/opencode#1279; BerriAI/litellm#23510",
)
SAME_ID_LATER = rule(
    "ANT-11b",
    "soft",
    SAME_ID.message,
    summary="No id of a call is repeated in a later turn (agents restart their numbering in each turn, and are "
    "answered).",
    repair="give the later call a new id",
    source="anthropics/claude-code#20901",
)
ID_ALPHABET = rule(
    "ANT-12",
    "hard",
    "{at}: String should match pattern '^[a-zA-Z0-9_-]+$'",
    summary="Ids are letters, digits, _ and -.",
    repair="rewrite both sides, injectively",
    source="maximhq/bifrost#5097; BlockRunAI/ClawRouter#17; screenpipe/screenpipe#3252; HKUDS/nanobot#4356",
)
CALL_NAME = rule(
    "ANT-13",
    "hard",
    "{at}: String should have at {bound}",
    summary="A call's tool name has 1 to 200 characters.",
    repair="shorten with a digest, or name it",
    source="public source files",
)
CALL_INPUT = rule(
    "ANT-14",
    "hard",
    "{at}: Input should be a valid dictionary",
    summary="A call's input is a JSON object.",
    repair="parse the string, or wrap it",
    source="anthropics/claude-code#6696; prism-php/prism#659; CopilotKit/CopilotKit#3300",
)
BLOCK_ROLE = rule(
    "ANT-15",
    "hard",
    "{at}: `{kind}` blocks can only be in `{role}` messages",
    summary="Results are the user's; calls and thinking the assistant's.",
    repair="split the turn",
    source="public source files",
)
RESULT_ID = rule(
    "ANT-15b",
    "hard",
    "{at}: Field required",
    summary="A result names its call.",
    repair="pair by position, or drop",
    source="public source files",
)
ASSISTANT_IMAGE = rule(
    "ANT-15c",
    "soft",
    "{at}: 'image' blocks are not permitted within assistant turns",
    summary="Images are the user's.",
    repair="move it to a user turn",
    source="SEMOSS/Semoss#2323",
)
ERROR_RESULT = rule(
    "ANT-16",
    "hard",
    "{at}: all content must be type `text` if `is_error` is true",
    summary="An error result is text only.",
    repair="move media after the results",
    source="public source files",
)
SERVER_UNANSWERED = rule(
    "ANT-17",
    "hard",
    "{at}: `{name}` tool use with id `{id}` was found without a corresponding `{result}` block",
    summary="A server tool's call has its result in the same turn (or waits at the end: a paused turn).",
    repair="drop the half pair",
    source="public source files",
)
SERVER_ORPHAN = rule(
    "ANT-17b",
    "hard",
    "{at}: unexpected `tool_use_id` found in `{result}` blocks: {id}. Each `{result}` block must have "
    "a corresponding `{call}` block before it.",
    summary="A server tool's result has its call before it.",
    repair="drop it",
    source="anthropics/claude-code#64383, #80439, #84783",
)
SERVER_OTHER = rule(
    "ANT-17c",
    "soft",
    SERVER_UNANSWERED.message,
    summary="A server tool's result is of the type that its tool has (all recorded pairs are; no refusal was seen).",
    repair="send the result of the call's own type",
    source="the words of ANT-17, which name the type",
)

# Thinking

SIGNATURE = rule(
    "ANT-18",
    "hard",
    "{at}: Field required",
    summary="A thinking block is signed.",
    repair="drop the block",
    source="dirge-code/dirge#823; openclaw/openclaw#84430",
)
EMPTY_THINKING = rule(
    "ANT-19",
    "model",
    "{at}: each thinking block must contain thinking",
    summary="A thinking block has text (4.7 and later write and take empty ones; recorded).",
    repair="drop the block",
    source="Yeachan-Heo/gajae-code#4247",
    fact="empty_thinking",
)
THINKING_FIELD = rule(
    "ANT-19b",
    "hard",
    "{at}: Field required",
    summary="A thinking block has the field `thinking`.",
    repair="drop the block",
    source="public source files",
)
LAST_THINKING = rule(
    "ANT-20",
    "hard",
    "{at}: The final block in an assistant message cannot be `thinking`.",
    summary="An assistant turn does not end with thinking.",
    repair="drop it",
    source="public source files",
)
BAD_SIGNATURE = rule(
    "ANT-21",
    "hard",
    "{at}: Invalid `signature` in `thinking` block",
    summary="A signature is the issuer's, unchanged (only an empty one can be seen to be wrong).",
    repair="drop the block",
    source="anthropics/anthropic-sdk-python#1598; openclaw/openclaw#94228, #95627; dshakes/distil#156",
)
BAD_REDACTED = rule(
    "ANT-21b",
    "hard",
    "{at}: Invalid `data` in `redacted_thinking` block",
    summary="Redacted thinking is the issuer's, unchanged (only an empty one can be seen to be wrong).",
    repair="drop the block",
    source="public source files",
)
FOREIGN_SIGNATURE = rule(
    "ANT-21c",
    "soft",
    BAD_SIGNATURE.message,
    summary="A signature is not of a form that another issuer makes (endpoints of others take such requests too).",
    repair="drop the block",
    source="NanmiCoder/cc-haha#382; can1357/oh-my-pi#12006; router-for-me/CLIProxyAPI#570, #1584",
)
FOREIGN_REDACTED = rule(
    "ANT-21d",
    "soft",
    BAD_REDACTED.message,
    summary="Redacted thinking is not of a form that another issuer makes.",
    repair="drop the block",
    source="public source files; router-for-me/CLIProxyAPI#3615",
)
rule(
    "ANT-22",
    "hard",
    "{at}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
    "modified. These blocks must remain as they were in the original response.",
    summary="The latest assistant turn's thinking is verbatim.",
    repair="keep all of it, or none",
    source="anthropics/claude-code#19539, #63404; NousResearch/hermes-agent#26959",
    unchecked="the original response is needed to decide",
)
THINKING_FIRST = rule(
    "ANT-23",
    "model",
    _THINKING_FIRST,
    summary=(
        "With thinking enabled, the turn of a tool loop starts with thinking (not with adaptive thinking; recorded)."
    ),
    repair="keep the original block, or disable thinking",
    source="anomalyco/opencode#3077; Kilo-Org/kilocode#5219; deepset-ai/haystack-core-integrations#2146",
    fact="thoughtless_loop",
)
THINKING_OFF = rule(
    "ANT-23b",
    "hard",
    "{at}: When thinking is disabled, an `assistant` message in the final position cannot contain "
    "`thinking`. To use thinking blocks, enable `thinking` in your request.",
    summary="Without thinking, no thinking in a final assistant message.",
    repair="drop it",
    source="tailcallhq/forgecode#1853",
)

# The end, tools, cache, size

TRAILING_SPACE = rule(
    "ANT-24",
    "hard",
    "messages: final assistant content cannot end with trailing whitespace",
    summary="A prefill does not end with whitespace.",
    repair="strip it",
    source="tailcallhq/forgecode#1872; aws/aws-sdk-net#4015",
)
PREFILL = rule(
    "ANT-25",
    "model",
    "This model does not support assistant message prefill. The conversation must end with a user message.",
    summary=(
        "The last message is the user's (4.6 and later; older models take a prefill, recorded, and of unknown ones "
        "nothing is said)."
    ),
    repair="append a user turn",
    source="ericc-ch/copilot-api#261; XiaomiMiMo/MiMo-Code#1702; recorded on Sonnet 5",
    fact="prefill",
)
NO_TOOLS = rule(
    "ANT-26",
    "soft",
    "Requests which include `tool_use` or `tool_result` blocks must define tools",
    summary="Calls in the history need tools (recorded accepted without).",
    repair="define them, or flatten to text",
    source="LiteLLM",
)
CACHED_EMPTY = rule(
    "ANT-27",
    "hard",
    "{at}: cache_control cannot be set for empty text blocks",
    summary="No cache breakpoint on an empty text block.",
    repair="drop the block",
    source="anthropics/claude-code#62379",
)
TOO_MANY_MARKERS = rule(
    "ANT-28",
    "hard",
    f"A maximum of {MARKERS} blocks with cache_control may be provided. Found {{count}}.",
    summary="At most four cache breakpoints over tools, system and messages.",
    repair="keep the head's, then the newest",
    source="Wei-Shaw/sub2api#176; griffinmartin/opencode-claude-auth#121; bug-ops/zeph#1568",
)
CACHE_ORDER = rule(
    "ANT-28b",
    "hard",
    "{at}: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that blocks are "
    "processed in the following order: `tools`, `system`, `messages`.",
    summary="Cache breakpoints of an hour are before those of five minutes, over tools, system and messages.",
    repair="leave out the ttl of the later one",
    source="cnighswonger/claude-code-cache-fix#44; headroomlabs-ai/headroom#2939",
)
CACHED_THINKING = rule(
    "ANT-29",
    "hard",
    "{at}: Extra inputs are not permitted",
    summary="No cache breakpoint on thinking.",
    repair="drop the key",
    source="hermes-agent strips it",
)

# The document itself

BAD_JSON = rule(
    "ANT-32",
    "hard",
    "The request body is not valid JSON: {reason}",
    summary="The body is JSON, without lone surrogates.",
    repair="replace them by U+FFFD",
    source="anthropics/claude-code#3277, #60394; link-assistant/hive-mind#1324",
)
rule(
    "ANT-33",
    "hard",
    "prompt is too long: {tokens} tokens > {window} maximum",
    summary="The prompt fits the model's window.",
    repair="trim at user boundaries, then pair again",
    source="OpenHands/OpenHands#7512",
    unchecked="tokens are counted by the provider; so is `too many total text bytes`",
)
EXTRA_KEY = rule(
    "ANT-34",
    "hard",
    "{at}: Extra inputs are not permitted",
    summary="Messages, blocks and custom tools have known keys only.",
    repair="project them on a whitelist",
    source="the API's own schema",
)
EXTRA_PARAMETER = rule(
    "ANT-34b",
    "soft",
    EXTRA_KEY.message,
    summary="Parameters are known ones; new ones come with beta headers, which a body does not show.",
    repair="drop the parameter",
    source="the API's own schema",
)
SHAPE = rule(
    "ANT-35",
    "hard",
    "{at}: {words}",
    summary="Every value has its type and every required field is there.",
    repair="depends on the field",
    source="the API's own schema",
)
MESSAGE_SHAPE = rule(
    "ANT-35b",
    "hard",
    "{at}: Input does not match the expected shape.",
    summary="A message is an object.",
    repair="drop it",
    source="recorded",
)
BLOCK_TYPE = rule(
    "ANT-35c",
    "hard",
    "{at}: {words}",
    summary="A block is of a known type.",
    repair="drop it, or convert it",
    source="the API's own schema; recorded for sources",
)
TOO_LARGE = rule(
    "size",
    "hard",
    "Request exceeds the maximum size",
    summary="A request has at most 32 MiB.",
    repair="trim the history",
    source="anthropics/anthropic-sdk-python#938; earendil-works/pi#2734",
)

# Images, as far as the body shows them

IMAGE_TOO_WIDE = rule(
    "ANT-30b",
    "hard",
    "{at}: At least one of the image dimensions exceed max allowed size for many-image requests: "
    f"{CLAUDE.many_side} pixels",
    summary="Among more than 20 images, no side is longer than 2000 pixels.",
    repair="replace the larger images by stubs",
    source="anthropics/claude-code#49836, #3334; charmbracelet/crush#3810",
)
IMAGE_TOO_LONG = rule(
    "ANT-30e",
    "hard",
    f"{{at}}: At least one of the image dimensions exceed max allowed size: {CLAUDE.side} pixels",
    summary="No side of an image is longer than 8000 pixels.",
    repair="replace it by a stub",
    source="the API's documentation; anthropics/claude-code#3334",
)
_MEDIA_WORDS = "Too much media: {documents} document pages + {images} images > "
MANY_MEDIA = rule(
    "ANT-30f",
    "model",
    f"{_MEDIA_WORDS}{CLAUDE.media_of_some}",
    summary="A request has at most 100 images and documents (models with a context window of 200,000 tokens).",
    repair="replace the oldest by stubs",
    source="the API's documentation; anthropics/claude-code#3397, #19822, #24541",
    fact="many_media",
)
TOO_MANY_MEDIA = rule(
    "ANT-30g",
    "hard",
    f"{_MEDIA_WORDS}{CLAUDE.media}",
    summary="A request has at most 600 images and documents.",
    repair="replace the oldest by stubs",
    source="the API's documentation",
)
PDF_PAGES = rule(
    "ANT-30h",
    "soft",
    f"{{at}}: A maximum of {CLAUDE.pages} PDF pages may be provided.",
    summary="A PDF has at most 100 pages, by its page tree, where the model takes at most 100 media.",
    repair="replace it by a stub, or split it",
    source="the API's documentation",
)
FILE_SOURCE = rule(
    "ANT-31c",
    "soft",
    "{at}: Input tag 'file' found using 'type' does not match any of the expected tags: {tags}",
    summary="Uploaded files need a beta header, which a body does not show (recorded both ways).",
    repair="send the bytes",
    source="recorded",
)
FILE_WITHOUT_BETA = rule(
    "ANT-31d",
    "hard",
    FILE_SOURCE.message,
    summary="The beta features that are asked for, where they are known, hold `files-api` if a file is uploaded.",
    repair="send the bytes, or ask for the feature",
    source="recorded",
)
WITHOUT_BETA = rule(
    "ANT-41",
    "hard",
    "{at}: {words}",
    summary="The beta features that are asked for, where they are known, hold those of its parameters, tools, blocks.",
    repair="ask for the feature, or leave out what needs it",
    source="Arize-ai/phoenix#12976; anthropics/claude-code#14135; the SDK's types",
)
# fmt: on
