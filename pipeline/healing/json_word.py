"""The word JSON in a message, which OpenAI's APIs and DeepSeek require for an answer that is a JSON object."""

from __future__ import annotations

from typing import Any, Final

from reknit.pipeline.healing.body import RESPONSES, JsonObject, RefusedBody, members_of
from reknit.pipeline.healing.errors import Refusal
from reknit.pipeline.providers.openai.writer import JSON_NOTE

_SPEAKERS: Final = frozenset({"system", "developer", "user"})


def ask_for_json(body: RefusedBody, _words: dict[str, str], _refusal: Refusal) -> None:
    """Ask for JSON in the first message of the system or the user, which later requests have as well.

    Later messages may have the word. The first one keeps the note, so that requests begin with the same bytes.
    """
    if not _wants_object(body.value):
        return
    given = body.value.get(body.turns_name)
    if isinstance(given, str):
        _ask_in(body, body.value, body.turns_name, body.turns_name)
        return
    for at, turn in enumerate(body.turns):
        if turn.get("role") in _SPEAKERS:
            _ask_in(body, turn, "content", f"{body.turns_name}.{at}.content")
            return


def _ask_in(body: RefusedBody, holder: JsonObject, name: str, path: str) -> None:
    asked = _with_note(body, holder.get(name))
    if asked != holder.get(name):
        holder[name] = asked
        body.note(path, "asks for JSON")


def _wants_object(body: JsonObject) -> bool:
    """Return True if the answer is a JSON object without a schema, in Chat Completions or in Responses."""
    forms = (body.get("response_format"), members_of(body.get("text")).get("format"))
    return any(members_of(form).get("type") == "json_object" for form in forms)


def _with_note(body: RefusedBody, content: Any) -> Any:  # noqa: ANN401  any JSON
    """Return content that ends with the note."""
    if isinstance(content, str) and not content.endswith(JSON_NOTE):
        return f"{content}\n\n{JSON_NOTE}" if content else JSON_NOTE
    note = {"type": "input_text" if body.target in RESPONSES else "text", "text": JSON_NOTE}
    if isinstance(content, list) and note not in content:
        return [*content, note]
    return content
