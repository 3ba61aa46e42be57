"""One pass over decoded contents, a step of the fold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from pipeline.rules._shape import Hole
from pipeline.rules.base import Severity, Violation
from pipeline.rules.gemini import catalogue as rules
from pipeline.rules.gemini.shape import place
from pipeline.rules.gemini.state import Role, State, Unsigned
from pipeline.rules.gemini.wire import DATA, Blob, Content, FileData, FunctionCall, FunctionResponse, Part, snake

LEGAL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}").fullmatch
# The documentation's list, and what was recorded besides (text/csv, audio/mpeg, audio/x-wav).
_MIME_TYPES: Final = re.compile(
    r"image/(png|jpe?g|webp|heic|heif)|audio/(x-)?(wav|mp3|mpeg|mpga|mp4|m4a|aiff|aac|ogg|opus|pcm|flac|webm|l16).*"
    r"|video/(mp4|mpe?g|mov|quicktime|avi|x-flv|flv|webm|wmv|3gpp|mpegps|x-ms-wmv|x-msvideo)|text/.*"
    r"|application/(pdf|json|xml|rtf|x-javascript|javascript|x-python.*|typescript|x-typescript)",
    re.IGNORECASE,
).fullmatch


class Walk:
    """The fold's state while a step works on it; ``state`` returns what it leaves behind."""

    def __init__(self, state: State, index: int) -> None:
        self.found: list[Violation] = []
        self.family = state.family
        self.index = index
        self.role: Role = state.role
        self.calls = state.calls
        self.responses = state.responses
        self.called_at = state.called_at
        self.unsigned = state.unsigned

    def state(self) -> State:
        """Return what the next step goes on from."""
        return State(self.family, self.role, self.calls, self.responses, self.called_at, self.unsigned)

    def contents(self, contents: Iterable[Content | None]) -> None:
        """Judge contents; None stands for one that could not be read and was reported already."""
        for content in contents:
            if content is not None:
                self._content(content)
            self.index += 1

    def _content(self, content: Content) -> None:
        if content.role not in ("user", "model", None, ""):
            rule = rules.FUNCTION_ROLE if content.role == "function" else rules.ROLE
            self.found.append(rule.broken(f"contents.{self.index}.role"))
        role: Role = "model" if content.role == "model" else "user"
        before = self.role
        if role != before:
            self._enter(role)
        if not content.parts:
            self.found.append(rules.NO_PARTS.broken(f"contents.{self.index}.parts", n=self.index))
            return
        calls = responses = said = 0
        for at, part in enumerate(content.parts):
            if part.functionCall is not None:
                self._call(part, part.functionCall, at, first=not calls and (role != before or not self.calls))
                calls += 1
            elif part.functionResponse is not None:
                self._response(part.functionResponse, at)
                responses += 1
            else:
                said += 1
                if part.text is None or not part.text or part.mediaResolution is not UNSET:
                    self._other(part, at)
        if calls:
            self._calls(calls, role, before)
        if responses:
            self._responses(responses, role)
        if said and role == "user":
            self.unsigned = ()

    def _enter(self, role: Role) -> None:
        """Begin a run of ``role``; the one before is complete."""
        if role == "model":
            self.judge_counts()
            self.calls = self.responses = 0
        self.role = role

    def judge_counts(self) -> None:
        """Compare the calls of a model run with the responses of the user run after it."""
        if self.role == "user" and self.calls and self.responses != self.calls:
            rule = rules.COUNT if self.responses else rules.UNANSWERED
            self.found.append(rule.broken(f"contents.{self.called_at}"))

    def _calls(self, count: int, role: Role, before: Role) -> None:
        if role != "model" or not before:
            self.found.append(rules.CALL_PLACE.broken(f"contents.{self.index}"))
        elif before == "model":
            self.found.append(rules.CALL_BESIDE.broken(f"contents.{self.index}"))
        if role == "model":
            self.calls += count
            self.called_at = self.index

    def _responses(self, count: int, role: Role) -> None:
        if role == "model" or not self.calls:
            self.found.append(rules.RESPONSE_PLACE.broken(f"contents.{self.index}"))
        else:
            self.responses += count

    def _call(self, part: Part, call: FunctionCall, at: int, *, first: bool) -> None:
        if not call.name or LEGAL_NAME(call.name) is None:
            self._name(call.name, at, "functionCall")
        if first and not part.thoughtSignature and self.family.signed_calls is not False:
            self.unsigned += (Unsigned(f"contents.{self.index}.parts.{at}", call.name or "", self.index + 1),)

    def _response(self, response: FunctionResponse, at: int) -> None:
        if not response.name or LEGAL_NAME(response.name) is None:
            self._name(response.name, at, "functionResponse")
        for inner_at, inner in enumerate(response.parts or ()):
            if isinstance(inner, Hole):
                continue  # it could not be read, and was reported
            path = f"contents.{self.index}.parts.{at}.functionResponse.parts.{inner_at}"
            self._media(inner.inlineData or inner.fileData, path)

    def _name(self, name: str | None, at: int, field: str) -> None:
        path = f"contents.{self.index}.parts.{at}.{field}.name"
        rule = rules.CALL_NAME if name else rules.NO_NAME
        self.found.append(rule.broken(path, n=self.index, p=at, field=snake(field)))

    def _other(self, part: Part, at: int) -> None:
        """Judge a part that is not plain text."""
        path = f"contents.{self.index}.parts.{at}"
        if part.mediaResolution is not UNSET:
            self.found.append(rules.MEDIA_RESOLUTION.broken(f"{path}.mediaResolution", at=place(path)))
        if part.text == "":
            # An empty text with a signature is the model's own, sent back as it came.
            if not part.thoughtSignature:
                self.found.append(rules.EMPTY_TEXT.broken(f"{path}.text"))
        elif all(getattr(part, name) is None for name in DATA):
            notes = part.thoughtSignature is not None or part.videoMetadata is not None or part.partMetadata is not None
            rule = rules.ONLY_NOTES if notes else rules.NO_DATA
            self.found.append(rule.broken(path, n=self.index, p=at))
        self._media(part.inlineData or part.fileData, path)

    def _media(self, media: Blob | FileData | None, path: str) -> None:
        if media is not None and media.mimeType and _MIME_TYPES(media.mimeType) is None:
            field = "inlineData" if isinstance(media, Blob) else "fileData"
            self.found.append(rules.MIME_TYPE.broken(f"{path}.{field}.mimeType", mime=media.mimeType))


def judge_end(state: State, count: int) -> list[Violation]:
    """Judge the end of the contents; the state stays as it is."""
    walk = Walk(state, count)
    if not count:
        walk.found.append(rules.NO_CONTENTS.broken("contents"))
    walk.judge_counts()
    if state.role == "model":
        walk.found.append(rules.LAST_MODEL.broken(f"contents.{count - 1}"))
    severity: Severity = "hard" if state.family.signed_calls else "model"
    walk.found += [
        rules.SIGNATURE.broken(f"{call.path}.thoughtSignature", severity, name=call.name, position=call.position)
        for call in state.unsigned
    ]
    return walk.found
