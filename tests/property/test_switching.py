"""Sessions that change their provider midway, over arbitrary histories."""

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_results import hard
from strategies import SCALE, histories, policies

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS

NAMES = sorted(TARGETS)
ISSUERS = ["anthropic", "bedrock-converse", "gemini", "openai-chat", "openai-responses", "vllm"]
# Fixes that report reasoning, or a signature, as issued by another provider or no longer usable.
OF_REASONING = ("thinking_", "reasoning_", "signature_")


@st.composite
def written_by_many(draw):
    """Histories whose reasoning was written by several providers."""
    changed = []
    for message in draw(histories):
        content = message["content"]
        if message["role"] == "assistant" and isinstance(content, list):
            content = reissued_blocks(content, draw(st.sampled_from(ISSUERS)))
        changed.append(message | {"content": content})
    return changed


def reissued_blocks(blocks, provider):
    return [block | {"issuer": {"provider": provider}} if "thinking" in block["type"] else block for block in blocks]


def parts(messages, cuts):
    """Split the messages at the cuts."""
    places = sorted({0, len(messages), *(cut % (len(messages) + 1) for cut in cuts)})
    return [messages[start:end] for start, end in pairwise(places)]


@settings(max_examples=150 * SCALE)
@given(
    messages=written_by_many(),
    policy=policies,
    cuts=st.lists(st.integers(0, 20), max_size=3),
    tour=st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), min_size=5, max_size=5),
)
def test_a_request_after_switches_equals_that_of_the_whole_history(messages, policy, cuts, tour):
    session = Session(tour[-1], policy)
    for stretch, targets in zip(parts(messages, cuts), tour, strict=False):
        session.configure(targets=targets)
        for message in stretch:
            session.append(msgspec.json.encode(message))
            for target in targets:
                session.request(target)
    session.configure(targets=tour[0])
    for target in tour[0]:
        done = session.request(target)
        whole = normalize(msgspec.json.encode(messages), to=target, policy=policy)
        assert done.unjudged == whole.unjudged
        assert sorted(done.fixes, key=repr) == sorted(whole.fixes, key=repr)
        assert sorted(done.ledger, key=repr) == sorted(whole.ledger, key=repr)
        if done.body is None:
            assert not done.ids or policy.get("tail") in {"reject", "prefill"}
        else:
            assert hard(done) == []


@settings(max_examples=150 * SCALE)
@given(messages=written_by_many(), target=st.sampled_from(NAMES), other=st.sampled_from(ISSUERS))
def test_the_issuer_of_reasoning_affects_only_the_reasoning(messages, target, other):
    """With all reasoning given to one issuer, the rest of the request is unchanged."""
    first = normalize(msgspec.json.encode(reissued(messages, "nobody")), to=target)
    second = normalize(msgspec.json.encode(reissued(messages, other)), to=target)
    assert others(first.fixes) == others(second.fixes)
    assert kept(first) == kept(second)


def reissued(messages, provider):
    return [
        message | {"content": reissued_blocks(content, provider)}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def others(fixes):
    """Return the fixes of everything except reasoning, and without turns that had only reasoning."""
    ours = [fix for fix in fixes if not fix.code.startswith(OF_REASONING)]
    return sorted((fix.code, fix.path, fix.detail) for fix in ours if fix.code != "turn_stubbed")


def kept(done):
    return sorted(
        (entry.path, entry.fate, entry.code)
        for entry in done.ledger
        if not entry.code.startswith(OF_REASONING) and entry.code != "turn_stubbed" and entry.fate != "kept"
    )
