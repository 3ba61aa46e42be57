"""The cause of each recorded refusal: a rule that foresees it in the provider's words, or a fact that no body shows.

Run as a program, it writes them for the page in docs/ and for the tests in this folder:

    python tests/corpus/refusals.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import msgspec
from recorded import LOOK_ALIKES, host_of, rows

from reknit.pipeline.explain.documents import REFUSALS_FILE, Refused
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.validation import validate

# The rules that judge each recording. Hosts that imitate an API are judged by their own rules.
TARGETS: Final = {
    "anthropic": "anthropic",
    "gemini": "gemini",
    "bedrock-converse": "bedrock-converse",
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "responses-compat": "openai-responses",
    "openai-compat": "vllm",
    "mistral": "mistral",
    "deepseek": "deepseek",
}
# Hosts with words of their own for what a rule finds.
_OWN_WORDS: Final = {"responses-compat", "openai-compat", "mistral", "deepseek"}

_MODEL = "the limits of that model, which its name does not show"
_SCHEMA = "which schemas the provider's compiler takes for that model that day"
_SERVER = "the formats that this server reads, unlike others of its kind"
_BYTES = "the bytes of an image or document, which the recording leaves out"
# Class of the refusal ("" for any), a pattern at the beginning of its words, and what decided it.
FACTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("auth", "", "the key and its rights: a header"),
    ("quota", "", "the account's limits and the provider's load at that moment"),
    ("5xx", "", "the provider's state at that moment"),
    ("model", "", "which models there were that day, where, and for whom"),
    ("length", "", "how many tokens the prompt has, which the provider counts"),
    ("fetch", "", "the content of a URL on that day"),
    ("policy", "", "a filter's judgement of the words"),
    ("model-output", "", "the model's answer"),
    ("schema", "Invalid JSON payload", "which members the API had that day; now its types have this one"),
    ("schema", "", _SCHEMA),
    (
        "param",
        "container: ",
        "the header that offered containers as objects; now the API's types have them",
    ),
    ("param", "Invalid file data: 'file_id'", "the kind of the uploaded file"),
    ("param", "Validation: Temperature|Field 'temperature'", _SERVER),
    ("param", "", _MODEL),
    ("other", "", _MODEL),
    ("MESSAGE-STRUCTURE", "Previous response with id", "which responses the provider had kept"),
    ("MESSAGE-STRUCTURE", "Invalid input: Expected context stuffing", "the kind of the uploaded file"),
    ("MESSAGE-STRUCTURE", r"messages\.0\.content\.1\.image\.source\.base64\.data: The file format", _BYTES),
    ("MESSAGE-STRUCTURE", "Provided image is not valid|Failed to load image|One of the image|invalid image", _BYTES),
    ("MESSAGE-STRUCTURE", "A request containing images|Invalid 'messages|After the .optional.", _MODEL),
    ("MESSAGE-STRUCTURE", "Failed to deserialize|invalid message format|invalid input error", _SERVER),
)


def refused(provider: str) -> list[dict[str, Any]]:
    return [row for row in judged(provider) if row["status"] != 200]


def judged(provider: str) -> list[dict[str, Any]]:
    """Return the recordings that a target's rules judge; a host with a target of its own is not judged by another's."""
    found = [row for row in rows(provider) if isinstance(row["request"], dict)]
    return [row for row in found if provider != LOOK_ALIKES or host_of(row) not in TARGETS]


def judge(provider: str, row: dict[str, Any]) -> list[Violation]:
    # A request to count tokens holds the request whose tokens are counted.
    body = row["request"].get("generateContentRequest", row["request"])
    path_has_model = provider in {"gemini", "bedrock-converse"}
    betas = filter(None, [row.get("anthropic_beta")])
    return validate(json.dumps(body), TARGETS[provider], row["model"] if path_has_model else None, [*betas])


def fact_of(row: dict[str, Any]) -> str:
    """Return the cause of a refusal that no rule foresees, ``""`` if it is unknown."""
    words, kind = row["error_message"] or "", row["error_class"]
    return next((fact for each, start, fact in FACTS if each in {"", kind} and re.match(start, words)), "")


def decided(provider: str, row: dict[str, Any]) -> tuple[str, str]:
    """The rule that foresees a refusal and its severity, or "" and the fact."""
    found = judge(provider, row)
    # One refusal says several things in lines of their own, and a rule repeats no data.
    said = (row["error_message"] or "").split("\n")
    same = [each for each in found if each.message in said or said[0].startswith(f"{each.message},")]
    whole = [each for each in found if each.message == (row["error_message"] or "").rstrip("\n")]
    same = whole or (same if len({each.message for each in same}) == len(said) else [])
    if not same and provider in _OWN_WORDS and row["error_class"] == "MESSAGE-STRUCTURE":
        same = [each for each in found if each.severity == "hard"]
    best = min(same, key=lambda each: ("hard", "model", "soft").index(each.severity), default=None)
    return (best.rule, best.severity) if best else ("", fact_of(row))


def measured() -> list[Refused]:
    """All refusals, those together that the same decided."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for provider in TARGETS:
        for row in refused(provider):
            found.setdefault((provider, row["error_class"], *decided(provider, row)), []).append(row["id"])
    return [Refused(*key, sorted(requests)) for key, requests in sorted(found.items())]


def write(path: Path = REFUSALS_FILE) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in measured()))


if __name__ == "__main__":
    write()
