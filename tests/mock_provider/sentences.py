"""The sentences of refusals, with status and codes, copied from the reference on refusals."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs


class Sentence(Struct, frozen=True, kw_only=True):
    """A refusal before its variable parts are filled in.

    Attributes:
        words: with ``{names}`` for what varies.
        status: of the answer.
        type: of the error.
        code: of the error, in OpenAI's envelope.
        param: of the error, in OpenAI's envelope.
        healable: a narrower request may be accepted.
    """

    words: str
    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    healable: bool = True


class RefusedError(Exception):
    """A request that is not accepted: the sentence's name, the filled sentence, and the refused value."""

    def __init__(self, name: str, value: str = "", /, **words: object) -> None:
        given = SENTENCES[name]
        self.name = name
        self.value = value
        self.sentence = structs.replace(
            given,
            words=given.words.format(**words),
            param=None if given.param is None else given.param.format(**words),
        )
        super().__init__(self.sentence.words)


_COULD_NOT: Final = "could not be verified. Reason: Encrypted content could not be decrypted or parsed."
_ENCRYPTED: Final = "invalid_encrypted_content"
SENTENCES: Final = {
    # A: thinking.
    "signature": Sentence(words="{at}: Invalid `signature` in `thinking` block"),
    "redacted": Sentence(words="{at}: Invalid `data` in `redacted_thinking` block"),
    "modified": Sentence(
        words="{at}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."
        " These blocks must remain as they were in the original response."
    ),
    "unsigned": Sentence(words="{at}.thinking.signature: Field required"),
    "empty_thinking": Sentence(words="{at}.thinking: each thinking block must contain thinking"),
    "bare_loop": Sentence(
        words="{at}.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When `thinking` is enabled, "
        "a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and "
        "`tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this "
        "requirement, disable `thinking`. Please consult our documentation at "
        "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
    ),
    "prefix": Sentence(
        words="{at}: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove "
        'the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
    ),
    "block_binding": Sentence(words="thinking.adaptive.block_binding: Extra inputs are not permitted"),
    "search": Sentence(words="{at}: Invalid `encrypted_content` in `search_result` block"),
    "search_field": Sentence(words="{at}.web_search_tool_result.content.0.encrypted_content: Field required"),
    # B: encrypted content.
    "excerpt": Sentence(words="The encrypted content {head}...{tail} " + _COULD_NOT, code=_ENCRYPTED),
    "by_item": Sentence(words="The encrypted content for item {id} " + _COULD_NOT, code=_ENCRYPTED),
    "item_mismatch": Sentence(
        words="The encrypted content for item {id} could not be verified. Reason: Encrypted content item_id did not "
        "match the target item id.",
        code=_ENCRYPTED,
    ),
    "caller": Sentence(
        words="Error from provider (Console): Upstream request failed: [invalid_request_error] reasoning "
        "`encrypted_content` was not issued to this caller",
        code="invalid_request_error",
    ),
    "compaction": Sentence(
        words="Could not decode the compaction blob. Ensure it is unmodified from the compact response.",
        code="invalid_request_error",
    ),
    # C: ids of items.
    "item_unknown": Sentence(
        words="Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with "
        "`store` set to true, or remove this item from your input.",
        status=404,
        param="input",
    ),
    "connection": Sentence(words="input item ID does not belong to this connection", status=401, code="", type=""),
    "no_follower": Sentence(
        words="Item '{id}' of type 'reasoning' was provided without its required following item.", param="input"
    ),
    "no_reasoning": Sentence(
        words="Item '{id}' of type '{type}' was provided without its required 'reasoning' item: '{reasoning}'.",
        param="input",
    ),
    "duplicate": Sentence(
        words="Duplicate item found with id {id}. Remove duplicate items from your input and try again.", param="input"
    ),
    # D: chained responses.
    "previous": Sentence(
        words="Previous response with id '{id}' not found.",
        code="previous_response_not_found",
        param="previous_response_id",
    ),
    "retention": Sentence(
        words="Previous response cannot be used for this organization due to Zero Data Retention.",
        code="unsupported_parameter",
        param="previous_response_id",
    ),
    "output_alone": Sentence(words="No tool call found for function call output with call_id {id}.", param="input"),
    # E: uploads, caches and containers.
    "gemini_file": Sentence(
        words="You do not have permission to access the File {name} or it may not exist.",
        status=403,
        type="PERMISSION_DENIED",
    ),
    "cache": Sentence(words="CachedContent not found (or permission denied)", status=403, type="PERMISSION_DENIED"),
    "cache_expired": Sentence(words="Cache content {name} is expired."),
    "openai_file": Sentence(words="No such File object: {name}", status=404, param="id"),
    "container": Sentence(words="Container is expired."),
    # F: tool references.
    "tool_reference": Sentence(words="Tool reference '{name}' not found in available tools"),
    # G: media.
    "image_bytes": Sentence(words="{at}: image exceeds 5 MB maximum: {bytes} bytes > 5242880 bytes"),
    "image_side": Sentence(
        words="{at}.data: At least one of the image dimensions exceed max allowed size: 8000 pixels"
    ),
    "many_side": Sentence(
        words="{at}.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 "
        "pixels"
    ),
    "media_count": Sentence(words="Too much media: 0 document pages + {images} images > {most}"),
    "vllm_count": Sentence(words="At most {most} image(s) may be provided in one request.", type="BadRequestError"),
    "undecodable": Sentence(words="Could not process image"),
    "undecodable_gemini": Sentence(words="Provided image is not valid."),
    "undecodable_chat": Sentence(words="One of the image(s) could not be processed (possibly corrupt)"),
    "download": Sentence(words="Unable to download the file. Please verify the URL and try again."),
    "download_named": Sentence(words="Error while downloading {url}.", code="invalid_image_url"),
    "download_gemini": Sentence(
        words="Cannot fetch content from the provided URL. Please ensure the URL is valid and accessible by Vertex AI. "
        "Vertex AI respects robots.txt rules, so confirm the URL is allowed to be crawled. "
        "Status: URL_ROBOTED-ROBOTED_DENIED"
    ),
    "download_timeout": Sentence(words="Timeout while downloading {url}", code="invalid_value", param="url"),
    "no_vision": Sentence(
        words="Failed to deserialize the JSON body into the target type: messages[{n}]: unknown variant `image_url`, "
        "expected `text` at line 1 column {column}",
        code="invalid_request_error",
    ),
    "string_content": Sentence(words="Param Incorrect", type="", code="400", param="text is not set"),
    "too_large": Sentence(words="Request exceeds the maximum size", status=413, type="request_too_large"),
    # H: parameters.
    "deprecated": Sentence(words="`{name}` is deprecated for this model."),
    "unsupported": Sentence(words="Unsupported parameter: '{name}' is not supported with this model.", param="{name}"),
    "adaptive": Sentence(
        words='"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.'
    ),
    "max_tokens": Sentence(
        words="max_tokens: {now} > {most}, which is the maximum allowed number of output tokens for {model}"
    ),
    # J: Gemini's signatures.
    "corrupted": Sentence(words="Corrupted thought signature."),
    "missing_signature": Sentence(
        words="Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
        "correctly, and missing thought_signature may lead to degraded model performance. Additional data, function "
        "call `default_api:{name}` , position {position}. Please refer to "
        "https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
    ),
    # K: reasoning of look-alikes.
    "deepseek": Sentence(
        words="The `reasoning_content` in the thinking mode must be passed back to the API.",
        code="invalid_request_error",
    ),
    "kimi": Sentence(
        words="thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}",
        code="invalid_request_error",
    ),
    # Sentences that are not healed.
    "key": Sentence(words="invalid x-api-key", status=401, type="authentication_error", healable=False),
    "length": Sentence(words="prompt is too long: 200016 tokens > 200000 maximum", healable=False),
    "policy": Sentence(words="Output blocked by content filtering policy", healable=False),
    "other_modified": Sentence(words="system: cannot be modified for this deployment", healable=False),
    "account": Sentence(
        words="Permission denied on resource project acme-prod.",
        status=403,
        type="PERMISSION_DENIED",
        healable=False,
    ),
    "busy": Sentence(words="Overloaded", status=529, type="overloaded_error", healable=False),
    # A rule of the request's shape, in the rule's own words.
    "shape": Sentence(words="{words}", healable=False),
}
