"""The forms of signatures, compared with every recorded one: their counts, and whose they are."""

import json

import pytest
from recorded import needs_corpus, rows

from reknit.pipeline.targets.signatures import FORMS, form_of

pytestmark = needs_corpus

# The issuers whose signatures each file may hold; one with several vendors behind one address has no entry.
ISSUERS = {
    "anthropic": {"anthropic"},
    "anthropic-compat": {"anthropic"},
    "bedrock-converse": {"anthropic"},
    "bedrock-invoke": {"anthropic"},
    "gemini": {"google"},
    "openai-responses": {"openai"},
    "responses-compat": {"openai"},
}
FILES = (*ISSUERS, "openai-chat", "openai-compat", "other")
_SIGNED = ("signature", "thoughtSignature", "thought_signature")
_SEALED = {"redacted_thinking": "data", "reasoning": "encrypted_content", "reasoning.encrypted": "data"}


def signatures_in(value):
    """Yield every signature of reasoning, and all encrypted reasoning, below a value."""
    if isinstance(value, list):
        for item in value:
            yield from signatures_in(item)
    elif isinstance(value, dict):
        names = (*_SIGNED, _SEALED.get(value.get("type") if isinstance(value.get("type"), str) else "", ""))
        yield from (value[name] for name in names if isinstance(value.get(name), str) and value[name])
        for item in value.values():
            yield from signatures_in(item)


def payload(event):
    try:
        return json.loads(event) if isinstance(event, str) else event
    except json.JSONDecodeError:
        return None


def recorded(name):
    """Return the distinct signatures of one file."""
    return {
        signature
        for row in rows(name)
        for part in (row.get("request"), row.get("response"), *map(payload, row.get("stream") or ()))
        for signature in signatures_in(part)
    }


@pytest.fixture(scope="module")
def found():
    return {name: recorded(name) for name in FILES}


def test_no_recorded_signature_has_the_form_of_another_issuer(found):
    for name, issuers in ISSUERS.items():
        forms = [form for form in map(form_of, found[name]) if form is not None]
        assert [form.name for form in forms if issuers.isdisjoint(form.issuers)] == []


def test_the_table_has_the_counts_of_the_recordings(found):
    counts = dict.fromkeys((form.name for form in FORMS), 0)
    for signature in set().union(*found.values()):
        if (form := form_of(signature)) is not None:
            counts[form.name] += 1
    assert counts == {form.name: form.recorded for form in FORMS}
