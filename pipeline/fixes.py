"""The fix catalogue: every change that Reknit makes to a history has a code here.

A code is also the label of a metric and the anchor of a page, so it never changes its meaning. Whether a repair is
lossless is a property of its code, not of the case. A lossless repair keeps all content and adds none. A repair that
synthesises content is lossy, and a lossless code that drops something states why nothing is lost.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

Fate: TypeAlias = Literal["moved", "rewritten", "flattened", "dropped", "synthesised"]
Severity: TypeAlias = Literal["lossy", "lossless", "observed"]


def severity_of(*, lossless: bool, observed: bool = False) -> Severity:
    """The weight of a fix in one word, for people and for lists."""
    return "observed" if observed else "lossless" if lossless else "lossy"


class FixCode(Struct, frozen=True, kw_only=True):
    """One kind of repair. ``code`` is also the metric label and the anchor in the docs.

    ``spared`` states why nothing is lost by a repair that is ``dropped`` and still ``lossless``; exactly those codes
    have it. ``always`` states why a policy cannot only observe the repair (``mend.CODE=observe``), ``""`` where it can.
    """

    code: str
    summary: str
    fate: Fate
    lossless: bool
    spared: str = ""
    always: str = ""
    # The provider's refusal that this repair avoids, and where it was seen.
    error: str = ""
    source: str = ""


class Fix(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One repair: the place of the change, and digests of the content before and after.

    Attributes:
        path: the place in the input, in the provider's notation (``messages.3.content.1``). Additions have none:
            ``result_synthesised``, ``lead_inserted`` and ``tail_continued`` name the place in the repaired history, in
            the canonical notation for every target; so does ``placeholder_dropped`` where a later result replaces it.
            ``assistant_inserted`` and ``tools_stubbed`` name the place in the target's own body, ``json_word_added``
            names ``system``; ``turn_stubbed`` and ``document_text_added`` the input block that would have been sent, or
            that is next to the addition. Output of a stream is named by its item's id, and a block that a provider
            dropped by its place in the request.
        lossless: false where content is lost, and where the output has content that no party wrote.
        target: the target that needed it, ``""`` where all of a session's targets do; for a stream, its source.
        before: digest of the content before: the first 16 hex digits of the SHA-256 of the block's canonical JSON.
        after: digest of the content after.
        id: if the repaired block is a tool call or a result, or is in one, the call's id in the input, or the id that
            the reader gave it.
        observed: by policy (``mend.CODE=observe``) the repair was not made; the body is unchanged.
    """

    code: str
    path: str
    lossless: bool
    target: str = ""
    detail: str = ""
    before: str = ""
    after: str = ""
    id: str = ""
    observed: bool = False


_encode = msgspec.json.Encoder(order="deterministic").encode


def name_where_not_shared(made: Mapping[str, Sequence[Fix]]) -> dict[str, Sequence[Fix]]:
    """The fixes by target, with the target's name in each that names none and that not all of the targets made."""
    if len(made) == 1 or not any(made.values()):
        return dict(made)
    shared = reduce(and_, map(Counter, made.values()))
    named: dict[str, Sequence[Fix]] = {}
    for target, fixes in made.items():
        left = shared.copy()
        named[target] = found = []
        for fix in fixes:
            alike = bool(fix.target) or left[fix] > 0
            left[fix] -= 1
            found.append(fix if alike else structs.replace(fix, target=target))
    return named


def digest(value: Any) -> str:  # noqa: ANN401  anything that msgspec encodes
    """The first 16 hex digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(_encode(value)).hexdigest()[:16]


def make(
    code: str,
    path: str,
    *,
    before: object = None,
    after: object = None,
    target: str = "",
    detail: str = "",
    tool_id: str = "",
) -> Fix:
    """A fix of the catalogue's ``code`` at ``path``; ``before`` and ``after`` are the values, not their digests."""
    return Fix(
        code=code,
        path=path,
        lossless=FIXES[code].lossless,
        target=target,
        detail=detail,
        before="" if before is None else digest(before),
        after="" if after is None else digest(after),
        id=tool_id,
    )


def _kept(code: str, fate: Fate, summary: str, error: str = "", source: str = "") -> FixCode:
    return FixCode(code=code, fate=fate, lossless=True, summary=summary, error=error, source=source)


def _lost(code: str, fate: Fate, summary: str, error: str = "", source: str = "") -> FixCode:
    return FixCode(code=code, fate=fate, lossless=False, summary=summary, error=error, source=source)


def _spared(code: str, spared: str, summary: str, error: str = "", source: str = "") -> FixCode:
    return FixCode(code=code, fate="dropped", lossless=True, spared=spared, summary=summary, error=error, source=source)


def _added(code: str, summary: str, error: str = "", source: str = "") -> FixCode:
    return FixCode(code=code, fate="synthesised", lossless=False, summary=summary, error=error, source=source)


_UNANSWERED = "`tool_use` ids were found without `tool_result` blocks immediately after"
_UNEXPECTED = "unexpected `tool_use_id` found in `tool_result` blocks"
_MULTIPLE = "each tool_use must have a single result"
_NOT_UNIQUE = "`tool_use` ids must be unique"
_ID_PATTERN = "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
_THINKING_CHANGED = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified"

# Repairs of the structure, for every target.
_STRUCTURE = (
    _spared("blank_dropped", "whitespace says nothing", "a text block with nothing but whitespace was left out",
         "messages: text content blocks must be non-empty", "anthropics/claude-code#59812"),
    _kept("blank_in_result", "rewritten", "a blank text block inside a tool result was left out",
         "messages: text content blocks must be non-empty", "anthropics/claude-code#23440"),
    _spared("turn_empty", "nothing was in it", "a message without any content was left out",
         "messages.N: all messages must have non-empty content", "anthropics/claude-code#6774"),
    _kept("turns_merged", "moved", "a message was joined to the one before it, which has the same role",
         'messages: roles must alternate between "user" and "assistant"',
         "mattermost/mattermost-plugin-agents#180"),
    _lost("leading_dropped", "dropped", "content before the first user turn was left out",
         'messages: first message must use the "user" role', "langbot-app/LangBot#867"),
    _added("lead_inserted", "the history began with the assistant and got a short user turn before it",
           "Please ensure that function call turn comes immediately after a user turn or after a function response "
           "turn.", "google-gemini/gemini-cli#26486; lobehub/lobehub#10049"),
    _kept("block_moved", "moved", "a block stood in a message of the wrong role and got a turn of its own",
         "messages.N: `tool_result` blocks can only be in `user` messages", "vercel/ai: provider-executed tools"),
    _lost("thinking_misplaced", "dropped", "reasoning in a user turn was left out",
         "User messages cannot contain reasoning content"),
    _kept("system_inlined", "rewritten", "a system message inside the history became marked user text",
         'messages: Unexpected role "system"'),
    _kept("system_block_as_text", "flattened", "a block that only a system message has was kept as its JSON text",
         'messages: Unexpected role "system"'),
    _lost("system_media_dropped", "dropped", "content other than text in a leading system message was left out"),
    _kept("result_moved", "moved", "a tool result was moved back to directly after its call",
         _UNANSWERED, "anthropics/claude-code#1237; langchain-ai/langgraph#5109"),
    _spared("result_repeated", "the same result stays", "a second, identical result of a call was left out",
         _MULTIPLE, "sipeed/picoclaw#1792"),
    _lost("result_duplicate", "dropped", "a second, different result of a call was left out; the first stays",
         _MULTIPLE, "sipeed/picoclaw#1792; BerriAI/litellm#20049"),
    _lost("result_replaced", "dropped", "a result gave way to a later one of its call, which the model sees instead",
         _MULTIPLE, "langchain-ai/langgraph#4397; google/adk-python#5064"),
    _kept("result_late_turn", "flattened", "a later result of a call became a user turn that names the call",
         _UNEXPECTED, "langchain-ai/langgraph#4397; google/adk-python#5064"),
    _spared("placeholder_dropped", "it stood for the real result", "a placeholder gave way to the call's real result",
         _MULTIPLE, "sipeed/picoclaw#1792"),
    _lost("result_orphan", "dropped", "a result that answers no call was left out",
         _UNEXPECTED, "anthropics/claude-code#13460; router-for-me/CLIProxyAPI#497"),
    _kept("result_orphan_text", "flattened", "a result that answers no call was kept as text",
         _UNEXPECTED, "anthropics/claude-code#13460"),
    _lost("result_late", "dropped", "a result came after its call had been settled as unanswered",
         _UNEXPECTED, "imzodev/openaidy#487"),
    _kept("result_late_text", "flattened", "a result that came too late was kept as text",
         _UNEXPECTED, "imzodev/openaidy#487"),
    _added("result_synthesised", "a call without a result got an error result that says so",
         _UNANSWERED, "anthropics/claude-code#1237, #5989; OpenHands/OpenHands#7512"),
    _kept("call_moved", "moved", "a call was moved after the text of its turn",
         _UNANSWERED, "anthropics/claude-code#15205"),
    _lost("call_unanswered", "dropped", "a call without a result was left out",
         _UNANSWERED, "anthropics/claude-code#1237"),
    _spared("call_repeated", "the same call stays", "a repetition of the same call in one turn was left out",
         _NOT_UNIQUE, "Kilo-Org/kilocode#5150; anthropics/claude-code#20901"),
    _spared("item_repeated", "the same item stays", "an item that came twice in a row was left out once",
         "Duplicate item found with id rs_X. Remove duplicate items from your input and try again.", "vercel/ai#7883"),
    _spared("message_extended", "the later message has all of it",
         "a message gave way to the next one, which has its id and extends it",
         source="messages of AG-UI, the AI SDK and ADK come again under their id while an answer arrives"),
    _lost("call_incomplete", "dropped", "a call whose input was cut off was left out; the detail holds it",
         "tool_use.input: Input should be a valid dictionary", "ballerina-platform/ballerina-vscode#973"),
    _kept("call_incomplete_text", "flattened", "a call whose input was cut off was kept as text",
         "tool_use.input: Input should be a valid dictionary", "ballerina-platform/ballerina-vscode#973"),
    _kept("cut_text_marked", "rewritten", "a text that was cut off got a line that says so",
          source="shown as whole, a beginning is taken for what the model said"),
    _lost("cut_text_dropped", "dropped", "a text that was cut off was left out",
          source="shown as whole, a beginning is taken for what the model said"),
    _kept("call_unnamed", "rewritten", "a call without a name got one",
         "tool_use.name: String should have at least 1 character", "sipeed/picoclaw#1739"),
    _kept("input_parsed", "rewritten", "a call's input was a JSON text and became the object it holds",
         "tool_use.input: Input should be a valid dictionary", "anthropics/claude-code#6696"),
    _kept("input_wrapped", "rewritten", "a call's input was not an object and was put into one",
         "tool_use.input: Input should be a valid dictionary", "prism-php/prism#659"),
    _kept("media_data_mended", "rewritten", "an image's or document's data became plain base64 of the same bytes",
         "Could not process image", "anthropics/claude-code#4083"),
    _kept("id_rewritten", "rewritten", "a tool id used twice, or refused by providers, was rewritten on both sides",
         f"{_ID_PATTERN}; {_NOT_UNIQUE}", "maximhq/bifrost#5097; HKUDS/nanobot#4356; anthropics/claude-code#20901"),
    _lost("tools_stripped", "dropped", "a tool block was left out by policy (strip_tools)",
         "toolResult blocks exceed toolUse blocks of previous turn", "aws/bedrock-agentcore-sdk-python#548"),
    _lost("reasoning_stripped", "dropped", "reasoning was left out by policy (reasoning=strip)"),
    _lost("reasoning_alone", "dropped", "an assistant turn of nothing but reasoning was left out",
         "messages.N: The final block in an assistant message cannot be `thinking`"),
    _added("tail_continued", "the history ended in an assistant turn and got a short user turn",
         "This model does not support assistant message prefill",
         "ericc-ch/copilot-api#261; XiaomiMiMo/MiMo-Code#1702"),
)  # fmt: skip

# Additional repairs of single targets.
_DIALECT = (
    _lost("thinking_unsigned", "dropped", "reasoning without a signature was left out",
         "thinking.signature: Field required", "openclaw/openclaw#84430; dirge-code/dirge#823"),
    _spared("thinking_empty", "it held no words", "an empty reasoning block was left out",
         "each thinking block must contain thinking", "Yeachan-Heo/gajae-code#4247"),
    _lost("thinking_foreign", "dropped", "reasoning of another provider or model was left out",
         "Invalid `signature` in `thinking` block", "openclaw/openclaw#94228; anthropics/anthropic-sdk-python#1598"),
    _lost("reasoning_foreign", "dropped", "reasoning was left out whose signature the endpoint is known to refuse",
         "Invalid `signature` in `thinking` block",
         "NanmiCoder/cc-haha#382; can1357/oh-my-pi#12006; router-for-me/CLIProxyAPI#1584; pydantic/pydantic-ai#7984"),
    _lost("thinking_trailing", "dropped", "reasoning at the end of an assistant turn was left out",
         "The final block in an assistant message cannot be `thinking`"),
    _lost("thinking_of_changed_turn", "dropped", "a turn was mended, so its reasoning could not stay verbatim",
         _THINKING_CHANGED, "anthropics/claude-code#63404; NousResearch/hermes-agent#26959"),
    _lost("thinking_dropped", "dropped", "the target takes no reasoning"),
    _lost("thinking_disabled", "dropped",
         "thinking was switched off for one request, whose tool loop does not begin with any",
         "Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
         "anomalyco/opencode#3077; Kilo-Org/kilocode#5219"),
    _lost("unknown_dropped", "dropped", "the target does not take blocks of this type",
         "Extra inputs are not permitted"),
    _lost("native_dropped", "dropped", "content of another provider was left out; the detail names it"),
    _kept("tool_as_function", "rewritten", "a tool, call or result that only another provider has became a function's"),
    _kept("item_id_dropped", "rewritten", "an item's id, which names what the provider keeps, was left out",
         "Item 'fc_X' of type 'function_call' was provided without its required 'reasoning' item: 'rs_Y'.",
         "omnigent-ai/omnigent#5066; vercel/ai#7883"),
    _lost("server_tool_unpaired", "dropped", "half of a provider-run tool call was left out",
         "tool use was found without a corresponding tool result block", "anthropics/claude-code#64383"),
    _lost("tool_reference_dropped", "rewritten", "a reference to a tool that the request does not declare was left out",
         "Tool reference 'get_time' not found in available tools",
         "anthropics/claude-code#78485, #79970, #81863; headroom#2507, #3172; dust-tt/dust#28479"),
    _kept("tool_search_as_text", "flattened",
         "a search for tools became text, because its tool or all tools that it found are not declared",
         "Tool reference 'get_time' not found in available tools", "dust-tt/dust#28479, #28498"),
    _kept("error_media_moved", "moved", "an image in an error result was moved after the results",
         "all content must be type `text` if `is_error` is true"),
    _kept("tool_name_rewritten", "rewritten", "a tool name that the target refuses was rewritten",
         "tools.N.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'", "home-assistant/core#147760"),
    _kept("schema_types_mapped", "rewritten", "types in a tool's schema were spelt as JSON Schema spells them",
         "tools.N.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12"),
    _kept("schema_typed", "rewritten", "a tool's schema was said to be one of an object",
         "tools.N.custom.input_schema.type: Field required",
         "diegosouzapw/OmniRoute#3357; earendil-works/pi#8279"),
    _lost("schema_merged", "rewritten",
         "the branches of a tool's schema became one schema of an object, which takes every call that they take",
         "tools.N.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
         "anthropics/claude-code#5319, #5973; nspady/google-calendar-mcp#39"),
    _kept("schema_wrapped", "rewritten", "a tool's schema accepts no object and became the member `_raw` of one",
          "tools.N.custom.input_schema.type: Input should be 'object'", "recorded refusals of Anthropic"),
    _lost("answer_schema_loosened", "rewritten",
         "the schema of an answer lost limits that the target refuses, or is no longer strict",
         "output_config.format.schema: For 'array' type, property 'maxItems' is not supported; "
         "Invalid schema for response_format 'answer': In context=(), 'additionalProperties' is required to be "
         "supplied and to be false.",
         "recorded refusals of Claude and of OpenAI's models"),
    _lost("answer_schema_closed", "rewritten",
          "the objects in the schema of an answer have no other members than the named ones",
          "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
          "recorded refusals of Anthropic"),
    _lost("tool_repeated", "dropped", "a second tool of the same name was left out",
         "tools: Tool names must be unique.", "danny-avila/LibreChat#13162"),
    _lost("tool_foreign", "dropped", "another provider's own tool was left out"),
    _kept("image_type_corrected", "rewritten", "an image's media type was set to what its bytes say",
         "The image was specified using the image/png media type, but the image appears to be a image/jpeg image"),
    _lost("image_stubbed", "rewritten", "an image that the target refuses was replaced by a line of text",
         "image exceeds 5 MB maximum; Could not process image", "anthropics/claude-code#2939, #49836"),
    _lost("media_over_limit", "rewritten",
         "an image or document was replaced by a line of text, because the history has more than a request may hold",
         "Too much media: 0 document pages + 103 images > 100", "anthropics/claude-code#3397, #49836"),
    _lost("image_scaled", "rewritten",
         "an image that exceeds a limit of the target was scaled down",
         "At least one of the image dimensions exceed max allowed size: 8000 pixels", "anthropics/claude-code#2939"),
    _lost("exchange_cut", "dropped",
         "a message was left out with its exchange, because the history is longer than policy fit allows",
         "prompt is too long: 219898 tokens > 200000 maximum", "earendil-works/pi#102, stackblitz/bolt.new#1748"),
    _added("summary_inserted", "the text of policy summary was inserted where exchanges were cut"),
    _spared("fit_exceeded", "nothing is left out",
         "the last user turn, with the last exchange, is longer than policy fit allows, and is sent"),
    _kept("prefill_trimmed", "rewritten", "whitespace at the end of a prefilled answer was cut",
         "messages: final assistant content cannot end with trailing whitespace", "tailcallhq/forgecode#1872"),
    _kept("cache_control_dropped", "rewritten", "a cache breakpoint beyond the fourth was taken off",
         "A maximum of 4 blocks with cache_control may be provided.", "bug-ops/zeph#1568"),
    _kept("cache_ttl_shortened", "rewritten",
          "a cache breakpoint of an hour after one of five minutes got the shorter lifetime",
          "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block.",
          "cnighswonger/claude-code-cache-fix#44; headroomlabs-ai/headroom#2939"),
    _lost("param_dropped", "dropped", "a parameter that the target has no name for was left out",
         "Unrecognized request argument supplied"),
    _lost("parameter_clamped", "rewritten",
          "a number that the target takes only between bounds became the nearest that it takes; the detail has both",
          "temperature: range: 0..1", "0xPlaygrounds/rig: a recorded refusal of Anthropic's"),
    _lost("thinking_yields", "rewritten",
          "thinking was switched off, since the request forces a call and the model takes no forced call while it "
          "thinks",
          "Thinking mode does not support this tool_choice", "cloudwego/eino#994; can1357/oh-my-pi#1077"),
    _lost("schema_described", "rewritten",
          "the schema of the answer went into the system prompt, since the target has JSON output without a schema",
          "This response_format type is unavailable now", "llm-exe/llm-exe#662; EvoScientist/EvoScientist#348"),
    _added("json_word_added",
           "the system prompt got a request for JSON, which the target requires in a message for JSON output",
           "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
           "mem0ai/mem0#3559; meta-llama/PurpleLlama#94"),
    _lost("parameter_unsupported", "dropped",
          "a parameter, or a value of it, that the model refuses was left out; the detail has the value",
          "Unsupported parameter: 'temperature' is not supported with this model.",
          "recorded of OpenAI's models; mnfst/modelparams.dev#238 of Claude's"),
    _lost("parameter_nearest", "rewritten",
          "a value that the model refuses became the nearest one that it takes; the detail has both",
          "Unsupported value: 'none' is not supported with the 'o4-mini' model.", "recorded"),
    _lost("setting_mapped", "rewritten",
          "another provider's setting became the nearest one of the target; the detail has both"),
    _kept("result_media_moved", "moved", "an image or document in a result was moved to the user message after it",
         "Image URLs are only allowed for messages with role 'user'", "OpenHands/OpenHands#7700"),
    _kept("document_as_text", "flattened", "a document of plain text became text under its title"),
    _lost("document_stubbed", "rewritten", "a document that the target cannot take was replaced by a line of text"),
    _lost("citations_dropped", "rewritten", "a text's citations were left out; the detail holds them"),
    _lost("caller_dropped", "rewritten", "the name of the code that made a call was left out; the detail holds it"),
    _kept("reasoning_joined", "moved", "reasoning inside a turn was joined to the reasoning in front of it"),
    _kept("calls_serialised", "moved", "one of several parallel calls got a separate message, after the last result",
         "This model only supports single tool-calls at once!"),
    _kept("calls_as_text", "flattened", "a call or result was written as text, for a chat template without tools",
         "Conversation roles must alternate user/assistant/user/assistant/...", "run-llama/llama_index#11731"),
    _added("assistant_inserted", "the assistant got a word between results and what the user said",
         "Unexpected role 'user' after role 'tool'", "BerriAI/litellm#6323"),
    _kept("cache_mark_dropped", "rewritten", "a cache breakpoint that the target has no place for was taken off"),
    _spared("cache_point_joined", "it is set on the block before it",
         "a cache breakpoint that was a block by itself was set on the block before it"),
    _spared("cache_point_dropped", "an order to a cache is nothing that was said",
         "a cache breakpoint that was a block by itself was left out"),
    _lost("document_notes_dropped", "rewritten", "a document's title or context was left out; the detail names it"),
    _kept("document_renamed", "rewritten",
          "a document got a name that the target takes and no other has; the detail is its own",
          "Messages can not contain duplicate document names"),
    _added("document_text_added", "a line of text was added next to a document"),
    _kept("error_filled", "rewritten", "an empty error result got a line of text",
          "The content field at messages.N.content.0.toolResult cannot be empty when status value is error.",
          "aws-samples/sample-multi-agent-orchestration-chat-on-agentcore#15"),
    _kept("thinking_moved", "moved", "reasoning inside a turn was moved to its beginning",
          source="aws/bedrock-agentcore-sdk-python#419"),
    _added("tools_stubbed", "tools that the history calls and the request does not declare were declared by their "
                            "names",
          "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
          "langgenius/dify#16421; vxcontrol/pentagi#196"),
    _kept("signature_joined", "moved", "a signature without words was put on the part that it belongs to"),
    _kept("signature_skipped", "rewritten", "a call that another model made got the placeholder for a signature",
          "Function call is missing a thought_signature in functionCall parts.",
          "lbjlaq/Antigravity-Manager#3202; nanbingxyz/5ire#405"),
    _lost("nul_replaced", "rewritten", "a NUL, at which a command line ends, became U+FFFD"),
    _added("turn_stubbed", "nothing of a turn is left for this target; a line of text holds its place",
         "messages.N: all messages must have non-empty content", "anthropics/claude-code#3196"),
    _kept("words_neutralised", "rewritten",
          "words that would make a program act, or pass for a line of Reknit's, got invisible characters, counted in"
          " the detail",
          source="runs of Claude Code 1.0.128 to 2.1.330: the file behind an @ in an old tool result is read and sent"),
    _kept("wrapper_broken", "rewritten",
         "a tag of the text protocol that only Reknit may write was broken with a backslash",
         source="dwgx/WindsurfAPI: tool output that forges a call"),
    _spared("environment_missed", "the words stay where they are",
         "a text that looks like an environment names no directory that was understood",
         source="dwgx/WindsurfAPI: four wordings in four releases"),
)  # fmt: skip

# Repairs of the readers (reknit.pipeline.history.readers).
_READING = (
    _lost("field_dropped", "dropped",
         "a key was left out that the canonical form, or the shape of a conversion, has no place for",
         "Extra inputs are not permitted"),
    _kept("field_missing", "rewritten", "a role or a tool input that was missing or null got its default",
         "Field required", "sipeed/picoclaw#1663"),
    _kept("role_renamed", "rewritten", "a role of another framework got its canonical name",
         'messages: Unexpected role "model"'),
    _kept("content_wrapped", "rewritten", "a block or an address stood bare where a list or an object of it belongs",
         "content: Input should be a valid list"),
    _kept("result_as_text", "rewritten", "a tool result that is neither text nor blocks became the text of its JSON",
         "tool_result.content: Input should be a valid list"),
    _kept("content_as_text", "rewritten", "a content that is neither text nor blocks became the text of its JSON",
         "messages.N.content: Input should be a valid list"),
    _kept("flag_read", "rewritten", "a flag that was no boolean was read as one by its truth",
         "tool_result.is_error: Input should be a valid boolean", "geny-executor"),
    _lost("refusal_as_text", "rewritten", "a refusal became plain text"),
    _kept("call_id_derived", "rewritten", "a call or result without an id got one from the tool's name",
         "tool_use.id: Field required"),
    _lost("message_redacted", "dropped", "the history's own redaction took the place of a message",
         source="aws/bedrock-agentcore-sdk-python#548"),
    _kept("surrogate_joined", "rewritten", "a character that was split over two text parts is whole again",
         "The request body is not valid JSON: no low surrogate in string", "anthropics/claude-code#3277"),
    _lost("surrogate_replaced", "rewritten", "half a surrogate pair became U+FFFD",
         "The request body is not valid JSON: no low surrogate in string", "anthropics/claude-code#60394"),
    _lost("line_unreadable", "dropped", "a transcript's line, or a message in it, could not be read and was left out",
         source="transcripts of programs that were killed while they wrote"),
    _lost("line_cut", "rewritten", "a transcript's last line ends in the middle, and was read up to there",
         source="transcripts of programs that were killed while they wrote"),
    _lost("line_skipped", "dropped",
         "a line of a transcript was left out: an unknown type, or a queued prompt that is lost",
         source="transcripts of programs that are newer than the reader"),
)  # fmt: skip

# Changes to a stream's words, where its source writes calls and internals into its text.
_SPEECH = (
    _lost("path_redacted", "rewritten", "a path of the planner's own machine became a marker",
         source="dwgx/WindsurfAPI: paths of the language server in answers"),
    _lost("identity_renamed", "rewritten", "the planner's name for itself became the model's",
         source="dwgx/WindsurfAPI: models that speak as Cascade"),
    _lost("tool_text_removed", "dropped", "an echoed tool result, or text next to a call, was left out of a text",
         source="dwgx/WindsurfAPI: results that the model repeats"),
)  # fmt: skip

# Changes to the calls in a stream.
_CALLS = (
    _kept("call_unwrapped", "rewritten",
          "a call of a tool that accepts no object became the value that it held in the member `_raw`",
          source="requests that declare the tool with this member (schema_wrapped)"),
)  # fmt: skip

# Changes that a provider made to a request, as its answer reports them.
_BY_PROVIDER = (
    _lost("provider_dropped", "dropped", "a provider accepted a request without one of its blocks, and reported that",
         source="anthropics/anthropic-sdk-python: input_transformations of BetaMessage"),
)  # fmt: skip

# Repairs that a policy cannot only observe, by the reason.
_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "the message could not be read without it": tuple(entry.code for entry in _READING),
    "reading makes an object of the text in which most shapes hold a call's input": ("input_parsed",),
    "it is made while a stream is read": tuple(entry.code for entry in (*_SPEECH, *_CALLS)),
    "the provider made it": tuple(entry.code for entry in _BY_PROVIDER),
    "an option of its own decides about it": (
        "tools_stripped", "reasoning_stripped", "cut_text_marked", "cut_text_dropped", "result_late_turn",
        "result_replaced", "media_over_limit", "image_scaled", "exchange_cut", "summary_inserted",
    ),
    "the history has no place for the original content": (
        "block_moved", "call_incomplete", "call_incomplete_text", "message_extended", "result_moved",
        "system_block_as_text", "system_media_dropped", "turn_empty",
    ),
    "results and calls could not be paired without it": (
        "call_repeated", "id_rewritten", "placeholder_dropped", "result_duplicate", "result_repeated",
    ),
    "the names of calls in a history and of tools in a request must agree": ("call_unnamed", "tool_name_rewritten"),
    "no provider can read the unchanged data": ("media_data_mended",),
    "the target has no place for the original content": (
        "cache_mark_dropped", "cache_point_dropped", "cache_point_joined", "caller_dropped", "citations_dropped",
        "document_as_text", "document_notes_dropped", "document_stubbed", "image_stubbed", "native_dropped",
        "nul_replaced", "reasoning_joined", "setting_mapped", "signature_joined", "thinking_dropped",
        "tool_as_function", "tool_foreign", "turn_stubbed", "unknown_dropped",
    ),
    "a request has a limited number of breakpoints, and the newest ones stay": ("cache_control_dropped",),
    "without it words of a tool or a model could make a program act": ("words_neutralised", "wrapper_broken"),
    "it changes nothing, and only says what was not understood": ("environment_missed",),
    "it changes nothing, and only says what was not possible": ("fit_exceeded",),
}  # fmt: skip
_WHY_ALWAYS = {code: reason for reason, codes in _ALWAYS.items() for code in codes}

FIXES: Mapping[str, FixCode] = MappingProxyType(
    {
        entry.code: structs.replace(entry, always=_WHY_ALWAYS.get(entry.code, ""))
        for entry in (*_READING, *_STRUCTURE, *_DIALECT, *_SPEECH, *_CALLS, *_BY_PROVIDER)
    }
)
OBSERVABLE: frozenset[str] = frozenset(code for code, entry in FIXES.items() if not entry.always)
"""The codes that a policy may name in ``mend.CODE``."""
