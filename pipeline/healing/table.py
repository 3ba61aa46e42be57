"""The table of repairs: for each sentence of a provider the narrowest change, what it loses, and where it was seen.

The first row that has the target and whose pattern is in the sentence applies. Sentences are matched case-sensitively,
backticks optional, and their variable parts are groups. Keys, rights, quotas, models, lengths, policies and overload
have no row, so their refusals are not healed.

A chained response, a compaction and a cache need the history, so only a session repairs them (``IN_SESSIONS``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from reknit.pipeline.healing import chat, claude, converse, gemini, items, json_word, media, parameters
from reknit.pipeline.healing.body import CHAT, CLAUDE, EVERY, GEMINI, RESPONSES, RefusedBody
from reknit.pipeline.healing.errors import Refusal

Repair = Callable[[RefusedBody, dict[str, str], Refusal], None]


class Healing(Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        name: of the row.
        targets: the targets that write this sentence.
        pattern: finds the sentence; its named groups are what the sentence names.
        repair: changes the body.
        loss: the content that the model does not see any more: ``""``, ``reasoning``, ``media``,
            ``history`` or ``setting``.
        source: where the sentence was seen.
        retry_first: the cause may pass by itself.
        param: the parameter that the error names, instead of a sentence.
        alone: repairs a request of no session if ``repair`` changes nothing: without a session, no request is known to
            have been accepted.
    """

    name: str
    targets: frozenset[str]
    pattern: re.Pattern[str]
    repair: Repair
    loss: str
    source: str
    retry_first: bool = False
    param: str = ""
    alone: Repair | None = None

    def words_in(self, refusal: Refusal) -> dict[str, str] | None:
        """Return what a refusal names if it is of this row, else None."""
        if self.param and refusal.param != self.param:
            return None
        found = self.pattern.search(refusal.sentence.replace("`", ""))
        if found is None:
            return None
        # Alternatives of one pattern cannot share a group's name: ``name_`` is ``name`` of the second.
        return {name.rstrip("_"): value for name, value in found.groupdict(default="").items() if value}


def _row(
    name: str,
    targets: frozenset[str],
    pattern: str,
    repair: Repair,
    *,
    loss: str,
    source: str,
    retry_first: bool = False,
    param: str = "",
    alone: Repair | None = None,
) -> Healing:
    return Healing(
        name=name,
        targets=targets,
        pattern=re.compile(pattern),
        repair=repair,
        loss=loss,
        source=source,
        retry_first=retry_first,
        param=param,
        alone=alone,
    )


# Some gateways write indexes in brackets, or the block's type and member after them; others leave the place out.
_AT: Final = r"^(?P<path>messages[.\[]\d+\]?\.content[.\[]\d+\]?)(?:\.[a-z_]+)*"
_MAYBE_AT: Final = rf"^(?:{_AT.removeprefix('^')}: |(?=Invalid ))"
_REASONING: Final = (
    _row(
        "prefix_bound",
        CLAUDE,
        _AT + r": Invalid signature in thinking block\. The block is bound to a different",
        claude.drop_from_named,
        loss="reasoning",
        source="build-with-claude/preserved-thinking; pydantic/pydantic-ai#7984",
    ),
    _row(
        "thinking_signature",
        CLAUDE,
        _MAYBE_AT
        + r"Invalid ['\"]?(?:signature['\"]? in ['\"]?thinking|data['\"]? in ['\"]?redacted_thinking)['\"]? block",
        claude.drop_named,
        loss="reasoning",
        source="anthropics/anthropic-sdk-python#1598; openclaw/openclaw#97019, #84430",
    ),
    _row(
        "latest_turn_modified",
        CLAUDE,
        r"^(?:(?P<path>messages\S*): )?"
        r"thinking or redacted_thinking blocks in the latest assistant message cannot be modified",
        claude.drop_of_last_answer,
        loss="reasoning",
        source="openclaw/openclaw#92201; NousResearch/hermes-agent#36087",
    ),
    _row(
        "thinking_unsigned",
        CLAUDE,
        _AT + r"\.thinking(?:\.signature: Field required|: each thinking block must contain thinking)",
        claude.drop_named_only,
        loss="reasoning",
        source="can1357/oh-my-pi#12006",
    ),
    _row(
        "thinking_in_final_message",
        CLAUDE,
        _AT + r": When thinking is disabled, an assistant message in the final position cannot contain thinking",
        claude.drop_of_named_turn,
        loss="reasoning",
        source="reference on refusals, A6",
    ),
    _row(
        "thinking_wanted_back",
        frozenset({"anthropic"}),
        r"thinking in the thinking mode must be passed back",
        chat.disable_thinking,
        loss="setting",
        source="NousResearch/hermes-agent#17992 (DeepSeek)",
    ),
    _row(
        "loop_without_thinking",
        CLAUDE,
        r"Expected thinking or redacted_thinking, but found ",
        claude.switch_off,
        loss="setting",
        source="recorded: ANT-23",
    ),
    _row(
        "forced_tool",
        CLAUDE,
        r"Thinking may not be enabled when tool_choice forces tool use",
        claude.switch_off,
        loss="setting",
        source="reference on refusals, H",
    ),
    _row(
        "search_result",
        CLAUDE,
        _AT + r": [Ii]nvalid (?:encrypted_content in (?:search_result|web_search_result)"
        r"|encrypted_stdout in encrypted_code_execution_result) block",
        claude.write_search,
        loss="reasoning",
        source="code-yeongyu/senpi#150, #208",
    ),
    _row(
        "tool_reference",
        frozenset({"anthropic"}),
        r"^Tool reference '(?P<name>[^']+)' not found in available tools",
        claude.drop_reference,
        loss="",
        source="anthropics/claude-code#78485, #79970; headroom#2507, #3172",
    ),
)

_RSP_ITEM: Final = r"The encrypted content for item (?P<id>[A-Za-z]+_\w+) could not be verified"
_ITEMS: Final = (
    _row(
        "encrypted_item",
        RESPONSES,
        _RSP_ITEM,
        items.drop_by_id,
        loss="reasoning",
        source="pydantic/pydantic-ai#5482; BerriAI/litellm#27702",
    ),
    _row(
        "encrypted_excerpt",
        RESPONSES,
        r"The encrypted content (?P<head>\S{1,8}?)\.\.\.(?P<tail>\S{1,8}) could not be verified",
        items.drop_by_excerpt,
        loss="reasoning",
        source="experientiallabs/experiential#965; openai/codex#8119",
    ),
    _row(
        "encrypted_caller",
        RESPONSES,
        r"reasoning encrypted_content was not issued to this caller"
        r"|encrypted reasoning was created for a different account or model",
        items.drop_all,
        loss="reasoning",
        source="manaflow-ai/subrouter#259",
    ),
    _row(
        "item_not_found",
        RESPONSES,
        r"Item with id '[^']+' not found\. Items are not persisted",
        items.drop_unstored,
        loss="reasoning",
        source="openai/openai-agents-python; Wei-Shaw/sub2api#3139",
    ),
    _row(
        "connection_ids",
        RESPONSES,
        r"input item ID does not belong to this connection",
        items.drop_connection_ids,
        loss="reasoning",
        source="NousResearch/hermes-agent#62242; openclaw/openclaw#66424",
    ),
    _row(
        "reasoning_alone",
        RESPONSES,
        r"Item '(?P<id>[^']+)' of type 'reasoning' was provided without its required following item",
        items.drop_by_id,
        loss="reasoning",
        source="recorded: RSP-03",
    ),
    _row(
        "reasoning_missing",
        RESPONSES,
        r"Item '(?P<id>[^']+)' of type '\w+' was provided without its required 'reasoning' item",
        items.drop_id,
        loss="",
        source="recorded: RSP-04",
    ),
    _row(
        "item_repeated",
        RESPONSES,
        r"Duplicate item found with id (?P<id>\w+)",
        items.drop_repeated,
        loss="",
        source="reference on refusals, C5",
    ),
    _row(
        "item_id_too_long",
        RESPONSES,
        r"^Invalid '(?P<path>input\[\d+\])\.id': string too long",
        items.drop_id,
        loss="",
        source="reference on refusals, C6",
    ),
    _row(
        "container_expired",
        RESPONSES,
        r"^Container is expired\.|^Container not found|^Expected container_id: cntr_",
        items.drop_container,
        loss="reasoning",
        source="pydantic/pydantic-ai#7461; BerriAI/litellm#30936",
    ),
)

_MEDIA: Final = (
    _row(
        "image_at_place",
        CLAUDE,
        r"^(?P<path>messages[.\[][\w.\[\]]+): (?:image exceeds \d+ MB maximum(?:: \d+ bytes > (?P<bytes>\d+))?"
        r"|image cannot be empty"
        r"|At least one of the image dimensions exceed max allowed size[^:]*(?:: (?P<side>\d+) pixels)?"
        r"|The file format is invalid or unsupported"
        r"|Unable to download the file\. Please verify the URL"
        r"|Could not process image)",
        media.stub_named,
        loss="media",
        source="recorded; anthropics/claude-code#2939, #3397",
    ),
    _row(
        "image_unprocessable",
        EVERY,
        r"^Could not process image|^Provided image is not valid\.|^One of the image\(s\) could not be processed"
        r"|^Failed to load image or audio file|^The image data you provided does not represent a valid image",
        media.stub_since_answer,
        loss="media",
        source="recorded; refusals.md, G5",
    ),
    _row(
        "too_much_media",
        CLAUDE,
        r"Too much media: (?P<documents>\d+) document pages \+ (?P<images>\d+) images > (?P<most>\d+)"
        r"|too many images and documents: (?P<images_>\d+) \+ (?P<documents_>\d+) > (?P<most_>\d+)",
        media.stub_oldest,
        loss="media",
        source="anthropics/claude-code#3397, #49836",
    ),
    _row(
        "image_count",
        CHAT,
        r"At most (?P<most>\d+) image\(s\) may be provided in one (?:request|prompt)",
        media.keep_newest,
        loss="media",
        source="vllm-project/vllm",
    ),
    _row(
        "request_too_large",
        frozenset({"anthropic"}),
        r"^Request exceeds the maximum size",
        media.stub_until_small,
        loss="media",
        source="reference on refusals, G9",
    ),
    _row(
        "no_images",
        CHAT,
        r"unknown variant image_url, expected text|is not a multimodal model"
        r"|does not have the 'vision' capability|Content blocks are expected to be either text or image_url type",
        media.stub_all,
        loss="media",
        source="recorded (DeepSeek); vllm-project/vllm",
    ),
    _row(
        "image_download_timeout",
        EVERY,
        r"Timeout while downloading (?P<name>\S+?)\.?$",
        media.stub_address,
        loss="media",
        source="recorded",
        retry_first=True,
    ),
    _row(
        "image_download",
        EVERY,
        r"^Error while downloading (?P<name>\S+?)\.?$|^Unable to download the file\. Please verify the URL"
        r"|^Failed to download image from (?P<name_>\S+)\.|^Cannot fetch content from the provided URL\.",
        media.stub_address,
        loss="media",
        source="recorded; refusals.md, G7",
    ),
    _row(
        "file_gone",
        GEMINI,
        r"You do not have permission to access the File (?P<name>\S+) or it may not exist",
        media.stub_address,
        loss="media",
        source="reference on refusals, E1: uploads live 48 hours",
    ),
    _row(
        "file_unknown",
        CLAUDE | RESPONSES | CHAT,
        r"^(?:File not found|No such File object): (?P<name>file[-_]\w+)",
        media.stub_address,
        loss="media",
        source="reference on refusals, E4 and E5",
    ),
    _row(
        "tool_text",
        CHAT,
        r"tool message content must be a string",
        media.join_tool_texts,
        loss="",
        source="reference on refusals, G10",
    ),
    _row(
        "tool_text_param",
        CHAT,
        r"",
        media.join_tool_texts,
        loss="",
        source="reference on refusals, G10",
        param="text is not set",
    ),
    # It says nothing, so only media that no request was accepted with can be meant.
    _row(
        "generic_with_media",
        CHAT,
        r"^Invalid request\.$",
        media.stub_new_only,
        loss="media",
        source="kimi-code#3087",
        alone=media.stub_since_answer,
    ),
)

_SIGNATURES: Final = (
    _row(
        "gemini_signature",
        GEMINI,
        r"^(?:Corrupted|Invalid) thought signature\.|Thought signature is not valid",
        gemini.replace_signatures,
        loss="reasoning",
        source="google-gemini/gemini-cli#13467; Antigravity-Manager#3337",
    ),
    _row(
        "gemini_unsigned",
        GEMINI,
        r"Function call is missing a thought_signature|content block is missing a thought_signature",
        gemini.sign_calls,
        loss="",
        source="RooCodeInc/Roo-Code#10554",
    ),
    _row(
        "deepseek_reasoning",
        CHAT | RESPONSES,
        r"reasoning_(?:content|text) in the thinking mode must be passed back",
        chat.disable_thinking,
        loss="setting",
        source="recorded (DeepSeek)",
    ),
    _row(
        "forced_tool_while_thinking",
        CHAT,
        r"^Thinking mode does not support this tool_choice",
        chat.let_choose,
        loss="setting",
        source="recorded (DeepSeek)",
    ),
    _row(
        "kimi_reasoning",
        CHAT,
        r"reasoning_content is missing in assistant tool call message",
        chat.add_empty_reasoning,
        loss="",
        source="openclaw/openclaw#74846",
    ),
)

_PARAMETERS: Final = (
    _row(
        "cache_points",
        frozenset({"bedrock-converse"}),
        r"your request did not allow prompt caching|"
        r"#/(?P<place>system|messages|toolConfig/tools)/\S+ extraneous key \[cachePoint\] is not permitted",
        converse.drop_cache_points,
        loss="",
        source="BerriAI/litellm#39210; danny-avila/LibreChat#13838; NousResearch/hermes-agent#97327",
    ),
    _row(
        "json_word",
        CHAT | RESPONSES,
        r"must contain the word 'json' in some form,? to use '",
        json_word.ask_for_json,
        loss="",
        source="recorded (Responses); mem0ai/mem0#3559; vercel/ai#7913 (DeepSeek)",
    ),
    _row(
        "deprecated",
        EVERY,
        r"^(?P<name>\w+) is deprecated for this model",
        parameters.leave_out,
        loss="setting",
        source="recorded (Claude Opus 4.7)",
    ),
    _row(
        "one_value",
        CHAT,
        r"^invalid (?P<name>temperature|top_p|n|presence_penalty|frequency_penalty): only [\d.]+ is allowed for this",
        parameters.leave_out,
        loss="setting",
        source="NousResearch/hermes-agent#12668; HKUDS/nanobot#4962 (Kimi)",
    ),
    _row(
        "only_one",
        CLAUDE,
        r"temperature and (?P<name>top_p) cannot both be specified for this model"
        r"|(?P<name_>top_p) and temperature cannot both be specified for this model",
        parameters.leave_out,
        loss="setting",
        source="recorded (Claude 4.5)",
    ),
    _row(
        "temperature_with_thinking",
        CLAUDE,
        r"(?P<name>temperature) may only be set to 1 when thinking is enabled"
        r"|(?P<name_>temperature|top_p|top_k) must be (?:greater than or equal to [\d.]+ or )?"
        r"unset when thinking is enabled",
        parameters.leave_out,
        loss="setting",
        source="recorded; quarkiverse/quarkus-langchain4j#1812, n8n-io/n8n#14288",
    ),
    _row(
        "thinking_adaptive",
        CLAUDE,
        r"thinking\.type\.enabled\"? is not supported for this model",
        parameters.think_adaptively,
        loss="setting",
        source="reference on refusals, H",
    ),
    _row(
        "block_binding",
        CLAUDE,
        r"block_binding: Extra inputs are not permitted",
        parameters.drop_binding,
        loss="setting",
        source="Wei-Shaw/sub2api#6677; BerriAI/litellm#41203",
    ),
    _row(
        "max_tokens",
        CLAUDE,
        r"^(?P<name>max_tokens): \d+ > (?P<most>\d+), which is the maximum allowed number",
        parameters.lower,
        loss="setting",
        source="recorded",
    ),
    _row(
        "budget",
        CLAUDE,
        r"max_tokens must be greater than thinking\.budget_tokens",
        parameters.lower_budget,
        loss="setting",
        source="recorded",
    ),
    _row(
        "effort",
        CLAUDE,
        r"does not support effort level '(?P<value>\w+)'\. Supported levels: (?P<list>[\w, ]+)",
        parameters.nearest_effort,
        loss="setting",
        source="recorded",
    ),
    _row(
        "effort_listed",
        RESPONSES | CHAT,
        r"Unsupported value: '(?P<value>\w+)' is not supported with the '[^']+' model\. "
        r"Supported values are: (?P<list>[^.]+)",
        parameters.nearest_effort,
        loss="setting",
        source="recorded (gpt-5)",
    ),
    _row(
        "renamed",
        CHAT,
        r"Unsupported parameter: '(?P<name>max_tokens)' is not supported with this model\. "
        r"Use '(?P<other>max_completion_tokens)'",
        parameters.rename,
        loss="",
        source="recorded (gpt-5, o-series)",
    ),
    _row(
        "unsupported",
        RESPONSES | CHAT,
        r"Unsupported parameter: '(?P<name>[\w.]+)' is not supported with this model"
        r"|Unsupported value: '(?P<name_>[\w.]+)' does not support \S+ with this model",
        parameters.leave_out,
        loss="setting",
        source="recorded (gpt-5, o-series)",
    ),
    _row(
        "below_minimum",
        RESPONSES | CHAT,
        r"Invalid '(?P<name>\w+)': integer below minimum value\. Expected a value >= (?P<least>\d+)",
        parameters.raise_to,
        loss="",
        source="recorded",
    ),
    _row(
        "penalty",
        GEMINI,
        r"^Penalty is not enabled for ",
        parameters.leave_out_penalties,
        loss="setting",
        source="recorded",
    ),
)

IN_SESSIONS: Final[tuple[Healing, ...]] = (
    _row(
        "chained",
        RESPONSES,
        r"^Previous response with id '[^']+' not found\.|^Previous response cannot be used for this organization"
        r"|^Invalid previous_response_id\.|^No tool call found for function call output with call_id ",
        items.drop_chain,
        loss="",
        source="SamSaffron/term-llm#251; Soju06/codex-lb#395, #448",
    ),
    _row(
        "compaction",
        RESPONSES,
        r"The encrypted content for item (?P<id>cmp_\w+) could not be verified|^Could not decode the compaction blob",
        items.drop_compaction,
        loss="history",
        source="Wei-Shaw/sub2api#5084; maximhq/bifrost#6041",
    ),
    _row(
        "cache_gone",
        GEMINI,
        r"^CachedContent not found \(or permission denied\)|^Cache content \S+ is expired",
        gemini.drop_cache,
        loss="",
        source="reference on refusals, E2 and E3",
    ),
)
"""Rows for what only a session can repair: it has the whole history. They are tried before the others."""

HEALINGS: Final[tuple[Healing, ...]] = (*_REASONING, *_ITEMS, *_MEDIA, *_SIGNATURES, *_PARAMETERS)


def row_for(
    target: str, refusal: Refusal, rows: tuple[Healing, ...] = HEALINGS
) -> tuple[Healing, dict[str, str]] | None:
    """Return the first row that has a refusal of a target, with what the sentence names."""
    for row in rows:
        if target in row.targets and (words := row.words_in(refusal)) is not None:
            return row, words
    return None


def may_pass(refusal: Refusal) -> bool:
    """Return True if the cause of a refusal may pass by itself, so that only a second attempt decides."""
    return any(row.retry_first and row.words_in(refusal) is not None for row in HEALINGS)


_PREFIX: Final = "healed_"
_SUMMARIES: Final = {
    "": "the cause of a refusal was changed, and the model sees everything that it saw before",
    "reasoning": "reasoning that a provider refused was left out",
    "media": "a medium that a provider refused became a line of text",
    "history": "a part of the history that a provider refused was left out",
    "setting": "a parameter that a provider refused was left out or changed",
}
HEALED_CODES: Final = {f"{_PREFIX}{row.name}": row for row in (*IN_SESSIONS, *HEALINGS)}
"""The rows by the codes of their fixes."""


def healed_summary(code: str) -> str:
    """Return the summary of a healing's fix; "" for another code."""
    return _SUMMARIES[HEALED_CODES[code].loss] if code in HEALED_CODES else ""
