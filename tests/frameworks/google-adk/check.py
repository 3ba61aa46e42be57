"""The callback keeps the contents of ADK's requests; run in the environment of google-adk."""

import base64
import logging
import sys

from google.adk.models.llm_request import LlmRequest
from google.genai.types import Blob, Content, ModelContent, Part, UserContent

from reknit.integrations.google_adk import repair_contents

warnings, fixes = [], []
logging.getLogger("reknit.integrations").addFilter(warnings.append)
callback = repair_contents(on_fixes=fixes.extend)


def repaired(contents):
    """Return the contents of the request after the callback."""
    request = LlmRequest(model="gemini-2.5-flash", contents=contents)
    before = request.contents
    assert callback(callback_context=None, llm_request=request) is None
    return request.contents, request.contents is before


def call(name, **more):
    part = Part.from_function_call(name=name, args={"n": 1.5})
    return part.model_copy(update=more)


def response(name):
    return Part.from_function_response(name=name, response={"rows": 3})


# Its two alphabets of base64 differ.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
image = Part(inline_data=Blob(data=base64.b64decode(PNG), mime_type="image/png"))
question = UserContent(["Look.", image])
asking = ModelContent([Part(text="I will look."), call("a", thought_signature=b"\xfb\xff\xfe"), call("b")])
both = UserContent([response("a"), response("b")])
more = UserContent("And?")

# Valid: the same list.
for valid in ([question, asking, both, more], [question], [question, asking, both]):
    assert repaired(valid) == (valid, True)
assert fixes == []

# One response is missing: it joins the other one, and the other contents are the same objects.
found, _ = repaired([question, asking, UserContent([response("a"), image]), more])
assert found[0] is question
assert found[1] is asking
assert found[-1] is more
assert all(isinstance(content, Content) for content in found)
assert [part.function_response.name for part in found[2].parts[:2]] == ["a", "b"]
assert found[2].parts[2].inline_data == image.inline_data
assert found[2].parts[0].function_response.response == {"rows": 3}
assert {fix.code for fix in fixes} == {"result_synthesised"}
assert repaired(found)[1]

# A response without its call.
found, _ = repaired([question, both, ModelContent("Done."), more])
assert all(part.function_response is None for content in found for part in content.parts)

# Claude, by LiteLLM, refuses a call without its result, and knows calls by their ids.
named = call("a")
named.function_call.id = "adk-1"
other = LlmRequest(model="anthropic/claude-sonnet-4-5", contents=[question, ModelContent([named]), more])
assert repaired(other.contents)[1]
repair_contents("anthropic")(callback_context=None, llm_request=other)
(made,) = (part.function_response for content in other.contents for part in content.parts if part.function_response)
assert (made.id, made.name, list(made.response)) == ("adk-1", "a", ["error"])

# Unreadable: passed on, with a warning.
assert warnings == []
wrong = LlmRequest.model_construct(contents=[question, "no content"])
callback(callback_context=None, llm_request=wrong)
assert wrong.contents == [question, "no content"]
assert len(warnings) == 1
sys.stdout.write("checked\n")
