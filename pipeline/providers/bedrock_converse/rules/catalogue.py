"""The Bedrock Converse API's rules: what it, or a model behind it, refuses, in its words.

Ids, texts and sources are those of the published reports named with each rule; "recorded" means seen in recorded
traffic. A model's refusal follows the words "The model returned the following errors: ".
"""

from __future__ import annotations

import re

from msgspec import structs

from reknit.pipeline.providers.anthropic.rules.catalogue import FAMILIES as CLAUDE
from reknit.pipeline.providers.anthropic.rules.catalogue import UNKNOWN, Claude
from reknit.pipeline.providers.anthropic.rules.catalogue import family_of as claude_of
from reknit.pipeline.rules._media import CONVERSE
from reknit.pipeline.rules.base import Catalogue, Family


class Converse(Family, frozen=True):
    """Requests that one family of models takes through Bedrock's Converse API.

    Attributes:
        name: the family; for Claude, that of ``family``.
        assistant_first: a conversation may start with the assistant (refused for Claude 3.5: langgenius/dify#12340;
            recorded for Sonnet 4.5).
        neighbours: two messages of one role in a row (refused for Claude 3.5: langgenius/dify#9294; recorded for Nova
            and Titan).
        blank_text: text blocks of whitespace (refused for Claude: aws/aws-sdk-net#4015; recorded for Nova).
        mixed_results: tool results next to other blocks (refused for Llama and Mistral:
            strands-agents/harness-sdk#1223, langchain-ai/langchain-aws#141; recorded for Claude and Nova).
        reasoning: reasoning may be sent back (refused for DeepSeek: langchain-ai/langchain-aws#401).
        unsigned_reasoning: reasoning without a signature.
        foreign_signature: reasoning with a signature of another issuer's form, or of Vertex's.
        unlike_anthropic: repeated ids and blocks of the other role, which Anthropic's own API refuses.
        prefill: a conversation may end with the assistant (accepted by Nova 2).
        prefill_with_tools: also when it has tools (Claude 3 recorded to refuse).
        video, s3_images: video blocks; images by S3 location (Claude recorded to refuse, Nova to take).
        files_in_results: documents and videos inside a tool result (Nova 2 recorded to refuse).
        large_images: images of more than 5 MiB of base64, or with a side over 8000 pixels, or over 2000 among more than
            20 (refused for Claude; the documentation states the first two for all models).
        cache_points: cache points (refused for Claude 3: posit-dev/positron#12142, and for Llama:
            strands-agents/harness-sdk#1807; recorded for later Claude and for Nova).
        five_cache_points: more than four of them in a request (refused for Claude: Bike4Mind/bike4mind#2208).
        cache_points_in_tools: cache points after tools (refused for Nova: danny-avila/LibreChat#13838; recorded for
            Claude).
        more_than_20: more than 20 images and documents (refused for Claude 3.5 and 4: cline/cline#1844,
            boto/boto3#4632; Sonnet 5 took 29: accelerated-intelligent-document-processing-on-aws#994).
    """

    assistant_first: bool | None = None
    neighbours: bool | None = None
    blank_text: bool | None = None
    mixed_results: bool | None = None
    reasoning: bool | None = None
    unsigned_reasoning: bool | None = None
    foreign_signature: bool | None = None
    unlike_anthropic: bool | None = None
    prefill: bool | None = None
    prefill_with_tools: bool | None = None
    video: bool | None = None
    s3_images: bool | None = None
    files_in_results: bool | None = None
    large_images: bool | None = None
    cache_points: bool | None = None
    five_cache_points: bool | None = None
    cache_points_in_tools: bool | None = None
    more_than_20: bool | None = None


# Of Claude 3.5, some models take them.
_CACHE_POINTS = {"claude-3": False, "claude-3-5": None, "claude": None}
_MORE_THAN_20 = {"claude-3-5": False, "claude-4": False, "claude-5": True}


def _through_converse(known: Claude) -> Converse:
    old = known.name in ("claude-3", "claude-3-5")
    return Converse(
        name=known.name if known is not UNKNOWN else "claude",
        assistant_first=False if old else True if known.name == "claude-4-5" else None,
        neighbours=False if known.name == "claude-3-5" else None,
        blank_text=False,
        mixed_results=True,
        reasoning=True,
        unsigned_reasoning=False,
        foreign_signature=False,
        unlike_anthropic=False,
        prefill=known.prefill,
        prefill_with_tools=False if known.name == "claude-3" else None,
        video=False,
        s3_images=False,
        files_in_results=True,
        large_images=False,
        cache_points=_CACHE_POINTS.get(known.name, True),
        five_cache_points=False,
        cache_points_in_tools=True,
        more_than_20=_MORE_THAN_20.get(known.name),
    )


_CLAUDE = {known.name: _through_converse(known) for known in (*CLAUDE, UNKNOWN)}
_NOVA = Converse(
    "nova",
    unlike_anthropic=True,
    neighbours=True,
    blank_text=True,
    mixed_results=True,
    video=True,
    s3_images=True,
    files_in_results=False,
    cache_points=True,
    cache_points_in_tools=False,
)
_OTHERS: dict[str, Converse] = {
    "nova": _NOVA,
    "nova-2": structs.replace(_NOVA, name="nova-2", prefill=True),
    "titan": Converse("titan", unlike_anthropic=True, neighbours=True),
    "llama": Converse("llama", unlike_anthropic=True, mixed_results=False, files_in_results=True, cache_points=False),
    "mistral": Converse("mistral", unlike_anthropic=True, mixed_results=False, files_in_results=True),
    "deepseek": Converse("deepseek", unlike_anthropic=True, reasoning=False),
}
FAMILIES = (*_CLAUDE.values(), *_OTHERS.values())
_UNKNOWN = Converse("unknown")
# A family's name is a word of the id (us.amazon.nova-pro-v1:0, meta.llama3-1-70b), not some letters of another.
_WORDS = re.compile(r"(?<![a-z])(?:claude|nova-2(?![\w.])|nova|titan|llama|mistral|deepseek)(?![a-z])")


def family_of(model: str | None) -> Converse:
    """Find the family of a Bedrock model id or inference profile (``us.amazon.nova-pro-v1:0``)."""
    name = (model or "").lower()
    word = _WORDS.search(name)
    if word is None:
        return _UNKNOWN
    return _CLAUDE[claude_of(name).name] if word[0] == "claude" else _OTHERS[word[0]]


CATALOGUE = Catalogue("bedrock-converse", FAMILIES)
rule = CATALOGUE.rule

MODEL_ERRORS = "The model returned the following errors: "

# fmt: off
# One paragraph a rule.

# Messages and their order

NO_MESSAGES = rule("BED-01", "hard",
    "A conversation must start with a user message. Try again with a conversation that starts with a user message.",
    summary="There is a message (a prompt of the service's own, with variables, needs none).",
    repair="insert a user turn", source="elastic/kibana#246393")
FIRST_USER = rule("BED-01b", "model", NO_MESSAGES.message,
    summary="The first message is the user's (Sonnet 4.5 was recorded to take another).",
    repair="drop leading turns, or prepend a user turn",
    source="langgenius/dify#12340; deepgram/deepgram-python-sdk#760; strands-agents/sdk-typescript#727",
    fact="assistant_first")
ALTERNATE = rule("BED-02", "model",
    "A conversation must alternate between user and assistant roles. Make sure the conversation alternates between "
    "user and assistant roles and try again.",
    summary="Roles alternate (Nova and Titan were recorded to take neighbours of one role).",
    repair="merge the neighbours",
    source="langgenius/dify#9294; langchain-ai/langchain-aws#130; Portkey-AI/gateway#748",
    fact="neighbours")
EMPTY_MESSAGE = rule("BED-07", "hard",
    "The content field in the Message object at {at} is empty. Add a ContentBlock object to the content field and try "
    "again.",
    summary="No message is empty.",
    repair="drop the turn and merge its neighbours", source="aws/aws-sdk-net#4015")
BLANK_TEXT = rule("BED-08", "model",
    "The text field in the ContentBlock object at {at} is blank. Add text to the text field, and try again.",
    summary="No text is empty, no message blank (Nova was recorded to take it).",
    repair="drop the block", source="aws/aws-sdk-net#4015; coasys/ad4m#996",
    fact="blank_text")
BLANK_BESIDE = rule("BED-08c", "soft", BLANK_TEXT.message,
    summary="No text is whitespace only (next to other blocks, Claude itself takes one; recorded on Anthropic's API).",
    repair="drop the block", source="aws/aws-sdk-net#4015")
BLANK_IN_RESULT = rule("BED-08b", "soft", BLANK_TEXT.message,
    summary="No text in a tool result is blank (Nova was recorded to take it 8 times).",
    repair="drop the block", source="coasys/ad4m#996")
PREFILL = rule("BED-11", "model",
    "This model does not support assistant message prefill. The conversation must end with a user message.",
    summary="The last message is the user's (of unknown models nothing is said).",
    repair="append a user turn", source="XiaomiMiMo/MiMo-Code#1702; aws/bedrock-agentcore-sdk-python#547, #548",
    fact="prefill")
PREFILL_TOOLS = rule("BED-11b", "model",
    MODEL_ERRORS + "Your API request included an `assistant` message in the final position, which would pre-fill the "
    "`assistant` response. When using tools, pre-filling the `assistant` response is not supported.",
    summary="With tools, the last message is the user's (Claude 3; of unknown models nothing is said).",
    repair="append a user turn", source="recorded on Claude 3",
    fact="prefill_with_tools")
ROLE = rule("BED-27", "hard",
    "1 validation error detected: Value '{value}' at '{at}' failed to satisfy constraint: Member must satisfy enum "
    "value set: [user, assistant]",
    summary="Roles are user and assistant.",
    repair="map the role", source="the service's own model")
SYSTEM_ROLE = rule("BED-27b", "soft", ROLE.message,
    summary="System messages are outside of the list (the service's newest model lists the role).",
    repair="hoist it", source="the service's own model")

# Calls and results

UNANSWERED = rule("BED-03", "hard", "Expected toolResult blocks at {at} for the following Ids: {ids}",
    summary="Every call is answered in the next turn.",
    repair="move the result back, or make an error result",
    source="agno-agi/agno#6698; gethnet/litellm-connector-copilot#101")
OPEN_END = rule("BED-03b", "soft", UNANSWERED.message,
    summary="A conversation does not end with open calls (Nova was recorded to take unanswered ones).",
    repair="make an error result", source="agno-agi/agno#6698")
TOO_MANY_RESULTS = rule("BED-04", "hard",
    "The number of toolResult blocks at {at} exceeds the number of toolUse blocks of previous turn.",
    summary="There are no more results than calls in the turn before.",
    repair="drop what is too much", source="langgenius/dify-official-plugins#765")
SAME_RESULT = rule("BED-05", "hard", "The toolResult blocks at {at} contain duplicate Ids: {ids}",
    summary="A call has one result.",
    repair="keep the first real one", source="BerriAI/litellm#15178, #20048, #20049")
SAME_CALL = rule("BED-06", "hard", "The toolUse blocks at {at} contain duplicate Ids: {ids}",
    summary="Ids of calls are unique in their turn.",
    repair="drop exact repeats, give the others new ids", source="LiteLLM _deduplicate_bedrock_content_blocks")
REUSED_ID = rule("BED-06b", "soft", MODEL_ERRORS + "{at}: `tool_use` ids must be unique",
    summary="No id of a call comes again in a later turn (Claude).",
    repair="give the later call a new id", source="as ANT-11b")
CONSTRAINT = rule("BED-09", "hard",
    "1 validation error detected: Value '{value}' at '{at}' failed to satisfy constraint: Member must {constraint}",
    summary="Ids of calls have 1 to 64 letters, digits, _ . : and -.",
    repair="rewrite both sides, injectively", source="the service's own model; LiteLLM _sanitize_bedrock_tool_use_id")
NARROW_ID = rule("BED-09b", "soft", CONSTRAINT.message,
    summary="Ids of calls have no . and : (the service's older model).",
    repair="rewrite both sides, injectively", source="LiteLLM _sanitize_bedrock_tool_use_id")
NO_TOOLS = rule(
    "BED-10", "hard", "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
    summary="Calls and results need a toolConfig (no recorded request goes without).",
    repair="declare a stub, or flatten them to text",
    source="langgenius/dify#16421, #17545; vxcontrol/pentagi#196; patriceckhart/zot#18")
TOOL_NAME = rule("BED-12", "hard", CONSTRAINT.message,
    summary="Names of tools have 1 to 64 letters, digits, _ and -.",
    repair="rewrite it in tools and history together", source="LiteLLM make_valid_bedrock_tool_name")
NOT_OBJECT = rule("BED-13", "hard",
    "The format of the value at {at} is invalid. Provide a json object for the field and try again.",
    summary="A call's input and a result's json are objects.",
    repair="wrap it", source="public source files")
SCHEMA_TYPE = rule("BED-38", "hard", "The value at {at} must be one of the following: object.",
    summary="A tool's schema is of type object.",
    repair="set the type", source="earendil-works/pi#8279")
TOP_LEVEL_UNION = rule("BED-38b", "model",
    MODEL_ERRORS + "{at}: input_schema does not support oneOf, allOf, or anyOf at the top level",
    summary="A tool's schema has no oneOf, allOf or anyOf at its top level (Claude).",
    repair="merge the branches into one set of properties", source="as ANT-36b",
    fact="unlike_anthropic")
EMPTY_ERROR = rule("BED-14", "hard", "The content field at {at} cannot be empty when status value is error.",
    summary="An error result says something.",
    repair="add a text", source="aws-samples/sample-multi-agent-orchestration-chat-on-agentcore#15")
MIXED_RESULTS = rule("BED-17", "model",
    "{at}: Conversation blocks and tool result blocks cannot be provided in the same turn.",
    summary="Results are alone in their turn (Llama, Mistral; Claude and Nova were recorded to mix).",
    repair="split the turn", source="strands-agents/harness-sdk#1223; langchain-ai/langchain-aws#141",
    fact="mixed_results")
BLOCK_ROLE = rule("BED-28", "model", MODEL_ERRORS + "{at}: `{kind}` blocks can only be in `{role}` messages",
    summary="Calls are the assistant's, results the user's (Claude; others use the service's own tools so).",
    repair="split the turn", source="as ANT-15",
    fact="unlike_anthropic")

# Reasoning and media

REASONING = rule("BED-15", "model",
    "User messages cannot contain reasoning content. Please remove the reasoning content and try again.",
    summary="Reasoning is the assistant's, and not sent back at all to DeepSeek.",
    repair="drop it", source="langchain-ai/langchain-aws#401",
    fact="reasoning")
SIGNATURE = rule("BED-18", "model", MODEL_ERRORS + "{at}: Field required",
    summary="Reasoning sent back is signed (Claude; all recorded is).",
    repair="drop the block", source="openclaw/openclaw#88020",
    fact="unsigned_reasoning")
FOREIGN_SIGNATURE = rule("BED-18b", "model", MODEL_ERRORS + "{at}: Invalid `signature` in `thinking` block",
    summary="A signature is not of a form that another issuer or platform makes (Claude).",
    repair="drop the block",
    source="openclaw/openclaw#88020, #110080; NanmiCoder/cc-haha#382; can1357/oh-my-pi#12006",
    fact="foreign_signature")
IMAGE_FORMAT = rule("BED-16", "hard",
    "1 validation error detected: Value '{value}' at '{at}' failed to satisfy constraint: Member must satisfy enum "
    "value set: [png, jpeg, gif, webp]",
    summary="Images are PNG, JPEG, GIF or WebP.",
    repair="replace it by text", source="LiteLLM and langchain-aws raise the same; the service's own model")
IMAGE_TOO_BIG = rule("BED-16b", "model",
    MODEL_ERRORS + f"{{at}}: image exceeds 5 MB maximum: {{bytes}} bytes > {CONVERSE.image_bytes} bytes",
    summary="The base64 text of an image has at most 5 MiB.",
    repair="replace it by text",
    source="accelerated-intelligent-document-processing-on-aws#778; aws/aws-sdk-js-v3#6785",
    fact="large_images")
IMAGE_TOO_LONG = rule("BED-16c", "model",
    MODEL_ERRORS + f"{{at}}: At least one of the image dimensions exceed max allowed size: {CONVERSE.side} pixels",
    summary="No side of an image is longer than 8000 pixels.",
    repair="replace it by text",
    source="the service's documentation; accelerated-intelligent-document-processing-on-aws#994",
    fact="large_images")
IMAGE_TOO_WIDE = rule("BED-16d", "model",
    MODEL_ERRORS + "{at}: At least one of the image dimensions exceed max allowed size for many-image requests: "
    f"{CONVERSE.many_side} pixels",
    summary="Among more than 20 images, no side is longer than 2000 pixels.",
    repair="replace the larger images by text", source="accelerated-intelligent-document-processing-on-aws#994, #998",
    fact="large_images")
TOO_MANY_MEDIA = rule("BED-16e", "model",
    MODEL_ERRORS + f"too many images and documents: {{images}} + {{documents}} > {CONVERSE.media_of_some}",
    summary="A request has at most 20 images and documents (Claude 3.5 and 4; Sonnet 5 took more).",
    repair="replace the oldest by text", source="cline/cline#1844; boto/boto3#4632",
    fact="more_than_20")
TOO_LARGE = rule("BED-36", "soft", MODEL_ERRORS + "Input is too long for requested model.",
    summary="A request has at most 20 MiB (19 MB were taken, 28 MB refused).",
    repair="replace media by text, or trim the history",
    source="accelerated-intelligent-document-processing-on-aws#994")
SAME_DOCUMENT = rule("BED-20", "hard", "Messages can not contain duplicate document names",
    summary="Documents have names of their own.",
    repair="rename the later one", source="public source files; LiteLLM")
LONE_DOCUMENT = rule("BED-21", "hard",
    "A text block must be included when using documents. Add a text block and retry your request.",
    summary="A document has a text next to it; the text in a tool result does not count.",
    repair="add a text", source="recorded; LiteLLM _ensure_document_messages_have_text")
S3_IMAGE = rule("BED-23", "model", "This model doesn't support the s3Uri field. Remove s3Uri and try again.",
    summary="Images are inline (Claude; Nova takes S3 locations).",
    repair="send the bytes", source="recorded",
    fact="s3_images")
VIDEO = rule("BED-24", "model",
    "This model doesn't support the video content block that you provided. Update the content block and try again.",
    summary="No videos (Claude).",
    repair="replace it by text", source="recorded",
    fact="video")
FILE_IN_RESULT = rule("BED-25", "model",
    MODEL_ERRORS + "Malformed input request: #/messages/{n}/content/{p}: extraneous key [toolResult] is not permitted, "
    "please reformat your input and try again.",
    summary="No documents and videos inside tool results (Nova).",
    repair="move it after the result, with a text", source="recorded on Nova 2",
    fact="files_in_results")

# Cache points

CACHE_POINT = rule("BED-39", "model",
    "You invoked an unsupported model or your request did not allow prompt caching. See the documentation for more "
    "information.",
    summary="No cache points for a model that keeps no prompts (Claude 3, Llama).",
    repair="drop them", source="posit-dev/positron#12142; BerriAI/litellm#39210",
    fact="cache_points")
POINT_AFTER_REASONING = rule("BED-40", "hard",
    "Cache point cannot be inserted after reasoning block. Please remove the invalid cache point and try again.",
    summary="No cache point directly after reasoning.",
    repair="drop it", source="anomalyco/opencode#36517")
TOO_MANY_POINTS = rule("BED-41", "model",
    MODEL_ERRORS + "A maximum of 4 blocks with cache_control may be provided. Found {count}.",
    summary="A request has at most four cache points (Claude).",
    repair="drop those beyond", source="Bike4Mind/bike4mind#2208; willdady/platypus#744",
    fact="five_cache_points")
POINT_IN_TOOLS = rule("BED-42", "model",
    MODEL_ERRORS + "Malformed input request: #/toolConfig/tools/{n}: extraneous key [cachePoint] is not permitted, "
    "please reformat your input and try again.",
    summary="No cache points among the tools (Nova).",
    repair="drop them", source="danny-avila/LibreChat#13838; NousResearch/hermes-agent#97327",
    fact="cache_points_in_tools")

# Shape

UNION = rule("BED-29", "hard", "The {kind} object at {at} must set one of the following keys: {keys}.",
    summary="A block sets exactly one of its keys.",
    repair="drop or split the block", source="the service's own model")
MISSING = rule("BED-30", "hard",
    "1 validation error detected: Value null at '{at}' failed to satisfy constraint: Member must not be null",
    summary="Required fields are there.",
    repair="depends on the field", source="the service's own model")
SHAPE = rule("BED-31", "hard", "{at}: {words}",
    summary="Every field is of its type.",
    repair="depends on the field", source="the service's own model")
EXTRA = rule("BED-32", "soft", "{at}: Unknown parameter in input",
    summary="Only keys of the service's model (its clients refuse others).",
    repair="drop the key", source="the AWS SDKs")
BAD_JSON = rule("BED-33", "hard", "SerializationException: the body is not a JSON object",
    summary="The body is a JSON object.",
    repair="encode it again", source="the service's own front end")
HALF_CHARACTER = rule("BED-33b", "soft", "{at}: half a surrogate pair",
    summary="Text holds no half of a surrogate pair, which UTF-8 cannot carry.",
    repair="replace it by U+FFFD", source="Reknit's; the service's own words are not recorded")

# A request's parameters

NO_MODEL = rule(
    "BED-26", "soft", "1 validation error detected: Value null at 'modelId' failed to satisfy constraint: Member must "
    "not be null",
    summary="The model is named: by the body, or by the URL that the sender makes.",
    repair="set the model", source="the service's own URL", by_sender=True)
RANGE = rule("BED-34", "hard",
    "1 validation error detected: Value '{value}' at '{at}' failed to satisfy constraint: Member must have value "
    "{bound}",
    summary="maxTokens is at least 1; temperature and topP lie between 0 and 1.",
    repair="clamp it", source="the service's own model")
EMPTY_STRING = rule("BED-35", "hard", CONSTRAINT.message,
    summary="No system text, no description of a tool and no stop sequence is empty.",
    repair="drop it", source="the service's own model")
# fmt: on


def member(path: str) -> str:
    """Write a path as the service's constraints do: ``messages.0.role`` is ``messages.1.member.role``."""
    return ".".join(f"{int(part) + 1}.member" if part.isdecimal() else part for part in path.split("."))
