"""The Gemini API (generateContent on AI Studio and Vertex): its refusals, in its words, and its known values.

Ids, texts and sources are those of the published reports named with each rule; "recorded" means seen in recorded
traffic. The API merges neighbours of one role: order and counts are judged over such runs, as the recordings show.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.rules._media import GEMINI
from reknit.pipeline.rules._misfits import Anything
from reknit.pipeline.rules.base import Catalogue, Family


class GeminiFamily(Family, frozen=True):
    """Requests that one family of Gemini models takes.

    Attributes:
        name: the family.
        unsigned_calls: in the current turn, the first call of a step without its signature (refused by Gemini 3:
            lbjlaq/Antigravity-Manager#3202; 2.0 and 2.5 recorded without).
        json_with_functions: a JSON response type together with declared functions (2.5 recorded to refuse, 3 to take).
    """

    unsigned_calls: bool | None = None
    json_with_functions: bool | None = None


_FAMILIES = {
    "1": GeminiFamily("gemini-1", unsigned_calls=True),
    "2": GeminiFamily("gemini-2", unsigned_calls=True, json_with_functions=False),
    "3": GeminiFamily("gemini-3", unsigned_calls=False, json_with_functions=True),
}
_UNKNOWN = GeminiFamily("unknown")
_MODEL = re.compile(r"gemini-(?:[a-z]+-)*(\d)(?![0-9])")


def family_of(model: str | None) -> GeminiFamily:
    """Find the family of a Gemini model name (``models/gemini-2.5-flash``)."""
    named = _MODEL.search((model or "").lower())
    return _FAMILIES.get(named[1], _UNKNOWN) if named else _UNKNOWN


CATALOGUE = Catalogue("gemini", _FAMILIES.values())
rule = CATALOGUE.rule

MOST_STOPS = 5

_SIGNATURE = (
    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
    "correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call "
    "`default_api:{name}` , position {position}. Please refer to "
    "https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
)
_NAME = (
    "[FIELD_INVALID] Invalid function name. Must start with a letter or an underscore. Must be a-z, A-Z, 0-9, or "
    "contain underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64."
)

# fmt: off
# One paragraph a rule.

# Contents and their order

CALL_PLACE = rule("GEM-01", "hard",
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
    summary="A turn with calls follows a user's turn; it is never the first.",
    repair="prepend a user turn", source="google-gemini/gemini-cli#26486, #11814, #26956; lobehub/lobehub#10049")
CALL_BESIDE = rule("GEM-01b", "soft", CALL_PLACE.message,
    summary="A turn with calls does not follow another turn of the model's (never recorded, refused or taken).",
    repair="merge the model's turns", source="google-gemini/gemini-cli#26486; lbjlaq/Antigravity-Manager#3396")
RESPONSE_PLACE = rule("GEM-02", "hard",
    "Please ensure that function response turn comes immediately after a function call turn.",
    summary="Responses follow the turn with their calls (neighbouring user turns count as one: recorded 4 times).",
    repair="move or drop the response",
    source="langchain-ai/langchain#27799; GoogleCloudPlatform/generative-ai#368")
COUNT = rule("GEM-03", "hard",
    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
    "function call turn.",
    summary="A turn's calls have as many responses (neighbouring user turns count as one).",
    repair="group, drop or make responses", source="google-gemini/gemini-cli#4217, #16415, #14590, #5443")
UNANSWERED = rule("GEM-03b", "soft", COUNT.message,
    summary="Calls have responses at all (recorded accepted 6 times without, on 2.0 and 2.5).",
    repair="make responses", source="google-gemini/gemini-cli#4217")
NO_CONTENTS = rule("GEM-05", "hard", "* GenerateContentRequest.contents: contents is not specified",
    summary="There are contents (no recorded request goes without).",
    repair="insert a user turn", source="known; the recordings hold no breach")
NO_PARTS = rule("GEM-06", "hard", "* GenerateContentRequest.contents[{n}].parts: contents.parts must not be empty.",
    summary="A content has parts.",
    repair="drop the turn and merge its neighbours",
    source="vercel/ai#3775; coze-dev/coze-studio#46; genkit-ai/genkit#3690")
NO_DATA = rule("GEM-06b", "hard",
    "* GenerateContentRequest.contents[{n}].parts[{p}].data: required oneof field 'data' must have one initialized "
    "field",
    summary="A part is not empty.",
    repair="drop the part", source="router-for-me/CLIProxyAPI#1292")
ONLY_NOTES = rule("GEM-06c", "soft", NO_DATA.message,
    summary="A part holds data, not only a signature or video metadata (recorded accepted twice).",
    repair="drop the part", source="router-for-me/CLIProxyAPI#1292")
ROLE = rule("GEM-07", "hard", "Please use a valid role: user, model.",
    summary="Roles are user and model; none is the user's.",
    repair="map the role", source="songquanpeng/one-api#1385")
FUNCTION_ROLE = rule("GEM-07b", "soft", ROLE.message,
    summary="Responses are the user's (role function was recorded accepted).",
    repair="map the role", source="songquanpeng/one-api#1385")
LAST_MODEL = rule("GEM-09", "soft",
    "Please ensure that single turn requests end with a user role or the role field is empty.",
    summary="The last turn is the user's (recorded accepted otherwise once).",
    repair="append a user turn", source="microsoft/semantic-kernel#13288; crewAIInc/crewAI#6973")

# Calls and responses

SIGNATURE = rule("GEM-04", "model", _SIGNATURE,
    summary="In the current turn, the first call of each step carries its signature (Gemini 3; all 189 recorded do).",
    repair="keep it, or send the documented placeholder",
    source="lbjlaq/Antigravity-Manager#3202; nanbingxyz/5ire#405; langgenius/dify-official-plugins#2088",
    fact="unsigned_calls")
rule("GEM-04b", "hard",
    "Unable to submit request because function call `{name}` in the {position}. content block is missing a "
    "`thought_signature`.",
    summary="GEM-04, in Vertex's words.",
    repair="as GEM-04", source="Wei-Shaw/claude-relay-service#967; GewoonJaap/gemini-cli-openai#156",
    unchecked="Vertex's wording of GEM-04")
rule("GEM-04c", "hard", "Corrupted thought signature.",
    summary="A signature is the issuer's, unchanged.",
    repair="send the documented placeholder", source="alphaXiv/agents#61",
    unchecked="only its issuer can read a signature")
NO_NAME = rule(
    "GEM-08", "hard", "* GenerateContentRequest.contents[{n}].parts[{p}].{field}.name: Name cannot be empty.",
    summary="A response and a call name their function.",
    repair="look the name up by the id", source="public source files")
FUNCTION_NAME = rule("GEM-10", "hard", _NAME,
    summary="A declared function's name starts with a letter or _ and has 1 to 64 letters, digits, _ . : and -.",
    repair="rewrite it", source="kaitranntt/ccs#25; google-gemini/gemini-cli#7869, #2966")
CALL_NAME = rule("GEM-10b", "soft", _NAME,
    summary="Calls and responses use such names too (the reports are about declarations).",
    repair="rewrite it", source="kaitranntt/ccs#25")
rule("GEM-11", "hard", "Unknown name \"id\" at '{at}': Cannot find field.",
    summary="Some surfaces know no ids of calls.",
    repair="drop the id", source="known; recorded accepted 1,377 times on AI Studio and Vertex",
    unchecked="a body does not show its surface, and both recorded ones take ids")
STRUCT = rule("GEM-13", "hard", "Invalid value at '{at}' (type.googleapis.com/google.protobuf.Struct)",
    summary="A call's args and a response's response are objects (all recorded are).",
    repair="wrap it in an object", source="known; the recordings hold no breach")

# The members of a part.

MIME_TYPE = rule("GEM-12", "soft", "Unsupported MIME type: {mime}",
    summary="Media are of the documented types (the recordings hold no other).",
    repair="replace it by text", source="known; the API's documentation")
EMPTY_TEXT = rule("GEM-14", "soft",
    "Unable to submit request because it has an empty text parameter. Add a value to the parameter and try again.",
    summary="No text is empty (Vertex; AI Studio was recorded to take it 6 times).",
    repair="drop the part",
    source="google-gemini/deprecated-generative-ai-python#697; zuisong/gemini-openai-proxy#86")
UNKNOWN_NAME = rule(
    "GEM-15", "hard", "Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field.",
    summary="Contents and parts hold known fields only.",
    repair="drop the field", source="recorded, for other fields")
MEDIA_RESOLUTION = rule(
    "GEM-15b", "soft", "Invalid JSON payload received. Unknown name \"mediaResolution\" at '{at}': Cannot find field.",
    summary="AI Studio's v1beta knows no mediaResolution of a part (recorded twice); v1alpha and Vertex do.",
    repair="drop the field", source="recorded")
SHAPE = rule("GEM-16", "hard", "Invalid value at '{at}' ({kind})",
    summary="Every field is of its type.",
    repair="depends on the field", source="the API's own schema")
BAD_JSON = rule("GEM-17", "hard", "Invalid JSON payload received.",
    summary="The body is a JSON object.",
    repair="encode it again", source="the API's own front end")
HALF_CHARACTER = rule("GEM-17b", "soft", "Invalid JSON payload received. Half a surrogate pair at '{at}'.",
    summary="Text holds no half of a surrogate pair, which UTF-8 cannot carry.",
    repair="replace it by U+FFFD", source="Reknit's; the API's own words are not recorded")

# A request's parameters

SAME_FUNCTION = rule("GEM-18", "hard", "Duplicate function declaration found: {name}",
    summary="Names of declared functions are unique.",
    repair="rename or drop", source="recorded")
JSON_WITH_FUNCTIONS = rule(
    "GEM-19", "model", "Function calling with a response mime type: 'application/json' is unsupported",
    summary="A JSON response type goes with no functions (Gemini 2; 3 takes both, recorded).",
    repair="drop the response type", source="recorded",
    fact="json_with_functions")
ADDITIONAL = rule("GEM-20", "soft",
    "Invalid JSON payload received. Unknown name \"additionalProperties\" at '{at}': Cannot find field.",
    summary="Schemas under `parameters` hold no additionalProperties (recorded on AI Studio).",
    repair="send the schema as parametersJsonSchema", source="recorded")
COMBINATORS = rule(
    "GEM-20b", "soft", "Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field.",
    summary="Schemas under `parameters` hold no oneOf and no allOf.",
    repair="send the schema as parametersJsonSchema", source="the API's own schema")
NO_OBJECT_SCHEMA = rule("GEM-20c", "soft",
    "Unable to submit request because `{name}` functionDeclaration `parameters` schema should be of type OBJECT.",
    summary="A function's schema is of type OBJECT (Vertex).",
    repair="set the type", source="diegosouzapw/OmniRoute#3357; tetsuo-ai/agenc-core#1904")
TOP_LEVEL_UNION = rule("GEM-20d", "soft",
    "Unable to submit request because `{name}` functionDeclaration `parameters` schema specified other fields "
    "alongside any_of. When using any_of, it must be the only field set.",
    summary="The top level of a function's schema, which has a type, has no alternatives (Vertex).",
    repair="merge the branches into one set of properties", source="public source files")
UNKNOWN_PARAMETER = rule("GEM-21", "soft", 'Invalid JSON payload received. Unknown name "{name}": Cannot find field.',
    summary="Parameters are those of the API's schema.",
    repair="drop the parameter", source="recorded")
UNKNOWN_GENERATION = rule("GEM-21b", "soft",
    "Invalid JSON payload received. Unknown name \"{name}\" at 'generation_config': Cannot find field.",
    summary="Members of generationConfig are those of the API's schema; new ones come.",
    repair="drop the member", source="recorded")
NO_MODEL = rule("GEM-22", "soft", "model is not specified",
    summary="The model is named: by the body, or by the URL that the sender makes.",
    repair="set the model", source="the API's own URL", by_sender=True)
BOUNDS = rule("GEM-24", "hard",
    "* GenerateContentRequest.generation_config.{name}: {name} must be in the range {range}.",
    summary="The temperature lies between 0 and 2, topP between 0 and 1.",
    repair="clamp it", source="the API's documentation")
ANSWER_TYPE = rule("GEM-24b", "soft",
    "* GenerateContentRequest.generation_config.response_mime_type: allowed mimetypes are `text/plain`, "
    "`application/json`, `application/xml`, `application/yaml` and `text/x.enum`.",
    summary="The media type of an answer is a known one.",
    repair="drop it", source="the API's documentation")
STOPS = rule("GEM-24c", "soft",
    "* GenerateContentRequest.generation_config.stop_sequences: the number of stop_sequences must not exceed "
    f"{MOST_STOPS}.",
    summary=f"At most {MOST_STOPS} stop sequences (never recorded; Vertex took 16 for older models).",
    repair="keep the first ones", source="cheshire-cat-ai/core#822; continuedev/continue#7849")
NO_STOPS = rule("GEM-24d", "soft",
    "Unable to submit request because it has a stopSequences value of 0 but the supported range is from 1 (inclusive) "
    f"to {MOST_STOPS + 1} (exclusive). Update the value and try again.",
    summary="A list of stop sequences has at least one (Vertex).",
    repair="drop the list", source="google/generative-ai-go#233; binary-husky/gpt_academic#2092")
PENALTY = rule("GEM-25", "soft", "Penalty is not enabled for {model}",
    summary="Some models take no penalties, at the Gemini API.",
    repair="drop the penalties", source="recorded on gemini-2.5-flash")
NO_JSON = rule("GEM-25b", "hard", "JSON mode is not enabled for {model}",
    summary="Models of images do not answer in JSON.",
    repair="choose another model", source="recorded on gemini-2.5-flash-image")
NO_FUNCTIONS = rule("GEM-25c", "soft", "Function calling is not enabled for {model}",
    summary="Models of images and of speech call no functions.",
    repair="choose another model", source="the API's documentation")
NO_SYSTEM = rule("GEM-25d", "hard", "Developer instruction is not enabled for {model}",
    summary="Gemma 3 takes no system instruction.",
    repair="say it in the first message", source="recorded at a router, on gemma-3n-e4b-it")
SPEECH = rule("GEM-25e", "hard",
    "The requested combination of response modalities ({asked}) is not supported by the model. {model} accepts the "
    "following combination of response modalities:\n* AUDIO",
    summary="Models of speech answer in audio only, which is asked for.",
    repair="choose another model", source="recorded on gemini-2.5-flash-preview-tts and gemini-2.5-pro-preview-tts")
BUDGET = rule("GEM-26", "hard",
    "The thinking budget {budget} is invalid. Please choose a value between {least} and {most}.",
    summary="A thinking budget lies between the bounds of the model; 0 is none, -1 leaves it to the model.",
    repair="clamp it", source="RooCodeInc/Roo-Code#4399; the API's documentation")
ALWAYS_THINKS = rule("GEM-26b", "hard", "Budget 0 is invalid. This model only works in thinking mode.",
    summary="Gemini 2.5 Pro always thinks.",
    repair="take the least budget", source="vercel/ai#8027; earendil-works/pi#3460")
LEVEL = rule("GEM-26c", "hard", "Thinking level is not supported for this model.",
    summary="Levels of thinking are Gemini 3's.",
    repair="give a budget", source="RooCodeInc/Roo-Code#10700")
NO_THINKING = rule("GEM-26d", "soft", "Thinking is not enabled for {model}",
    summary="Gemini 2.0 and older models do not think.",
    repair="drop thinkingConfig", source="the API's documentation")
TOO_LARGE = rule("GEM-23", "soft", f"Request payload size exceeds the limit: {GEMINI.body_bytes} bytes.",
    summary="A request with inline data has at most 20 MiB.",
    repair="send media by reference, or trim the history",
    source="the API's documentation; google-gemini/deprecated-generative-ai-android#26")
# fmt: on


# The members of a content and of each kind of part. Fields are those of the API's own schema (v1beta and Vertex). A
# protobuf reads null as absent and takes both spellings of a name; structs know the one in camel case, and ``rename``
# changes the other before it reads again.


class Blob(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    mimeType: str | None = None
    data: str | None = None
    displayName: str | None = None


class FileData(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Media by reference."""

    mimeType: str | None = None
    fileUri: str | None = None
    displayName: str | None = None


class FunctionCall(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    name: str | None = None
    args: Anything | None = None
    id: str | None = None
    partialArgs: Raw | UnsetType = UNSET
    willContinue: Raw | UnsetType = UNSET


class ResponsePart(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Media in a function's answer."""

    inlineData: Blob | None = None
    fileData: FileData | None = None
    videoMetadata: Anything | None = None
    audioMetadata: Anything | None = None
    documentMetadata: Anything | None = None
    spreadsheetMetadata: Anything | None = None
    mediaProcessing: Raw | UnsetType = UNSET
    mediaResolution: Raw | UnsetType = UNSET


class FunctionResponse(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The answer to a call; the two are matched by order and count, the id is a hint."""

    name: str | None = None
    response: Anything | None = None
    id: str | None = None
    parts: list[ResponsePart] | None = None
    scheduling: Raw | UnsetType = UNSET
    willContinue: Raw | UnsetType = UNSET


class Part(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One part: one of the data fields (``DATA``), and what goes with it (``NOTES``)."""

    text: str | None = None
    functionCall: FunctionCall | None = None
    functionResponse: FunctionResponse | None = None
    thoughtSignature: str | None = None
    thought: bool | None = None
    inlineData: Blob | None = None
    fileData: FileData | None = None
    executableCode: Anything | None = None
    codeExecutionResult: Anything | None = None
    toolCall: Anything | None = None
    toolResponse: Anything | None = None
    videoMetadata: Anything | None = None
    partMetadata: Anything | None = None
    audioMetadata: Anything | None = None
    audioTranscription: Anything | None = None
    documentMetadata: Anything | None = None
    speechMetadata: Anything | None = None
    spreadsheetMetadata: Anything | None = None
    mediaProcessing: Raw | UnsetType = UNSET
    mediaResolution: Raw | UnsetType = UNSET


class Content(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One turn. An absent role is the user's."""

    role: str | None = None
    parts: list[Part] | None = None


_NUMBER = re.compile(r"\.(\d+)")

DATA = (
    "text", "functionCall", "functionResponse", "inlineData", "fileData", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
)  # fmt: skip
NOTES = (
    "thoughtSignature", "videoMetadata", "partMetadata", "audioMetadata", "audioTranscription", "documentMetadata",
    "speechMetadata", "spreadsheetMetadata",
)  # fmt: skip
_STRUCTS = (Content, Part, Blob, FileData, FunctionCall, FunctionResponse, ResponsePart)
# Free-form objects, whose keys are the caller's.
_FREE = frozenset(
    {
        "args", "response", "executableCode", "codeExecutionResult", "toolCall", "toolResponse", "videoMetadata",
        "partMetadata", "mediaResolution", "audioMetadata", "audioTranscription", "documentMetadata", "speechMetadata",
        "spreadsheetMetadata", "partialArgs",
    }
)  # fmt: skip


def snake(name: str) -> str:
    """Spell a field's name as the schema, and the API's messages, do."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


def place(path: str) -> str:
    """Write a path as the API does: ``contents.0.functionCall`` is ``contents[0].function_call``."""
    return snake(_NUMBER.sub(r"[\1]", path))


# The other spelling of each field.
_RENAMED = {snake(name): name for struct in _STRUCTS for name in struct.__struct_fields__ if snake(name) != name}


def rename(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Rename the fields of a content to camel case; a single part becomes a list, as in the API."""
    if isinstance(value, list):
        return [rename(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_RENAMED.get(name, name): inner for name, inner in value.items()}
    renamed = {name: inner if name in _FREE else rename(inner) for name, inner in named.items()}
    if isinstance(renamed.get("parts"), dict):
        renamed["parts"] = [renamed["parts"]]
    return renamed
