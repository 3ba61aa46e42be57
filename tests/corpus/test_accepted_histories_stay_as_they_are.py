"""Recorded requests that Anthropic took: normalised, they are still valid, whole and turn by turn."""

import msgspec
from recorded import accepted, needs_corpus

from reknit.pipeline import Session, normalize

pytestmark = needs_corpus


def requests():
    return [row["request"] for row in accepted("anthropic")]


def test_what_was_accepted_stays_valid_and_is_mended_once():
    for request in requests():
        if request.get("messages"):
            done = normalize(msgspec.json.encode(request), policy={"tail": "prefill"})
            assert done.body is not None
            assert normalize(done.body, policy={"tail": "prefill"}).fixes == []


def test_what_was_accepted_is_the_same_turn_by_turn():
    for request in requests()[::5]:
        messages = request.get("messages") or []
        session = Session(policy={"tail": "prefill"})
        for message in messages:
            session.append(msgspec.json.encode(message))
        whole = normalize(msgspec.json.encode(messages), policy={"tail": "prefill"})
        assert session.request().unjudged == whole.unjudged
