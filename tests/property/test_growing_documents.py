"""A document that grows message by message has the requests of the whole document at every length."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SCALE, policies, reasoned, spiced, with_members
from target_cases import TARGET_CASES

from reknit.pipeline.errors import InputError
from reknit.pipeline.registry import target_named
from reknit.pipeline.session import normalize_answered
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.session.bindings import end_of
from reknit.pipeline.session.documents import GrowingDocument
from reknit.pipeline.testing.strategies import broken_histories, mixed_histories, open_histories, perturbed_histories

each_target = pytest.mark.parametrize("target_case", TARGET_CASES, ids=str)
any_history = st.one_of(
    broken_histories, open_histories(), mixed_histories, perturbed_histories(), reasoned, spiced, with_members
)

answers = st.dictionaries(st.integers(0, 8), st.booleans(), max_size=2)


def requested(make):
    try:
        done, end = make()
    except InputError as error:
        return error.code
    return end, done.body, done.sha256, done.violations, sorted(done.fixes, key=repr)


class Growing:
    """Requests as the gateway makes them: a document that cannot grow is read again as a whole."""

    def __init__(self, target, policy, **options):
        self.target, self.policy, self.options = target_named(target), policy_from(policy), options
        self.document, self.messages = None, []

    def request(self, body, messages):
        added, document = messages[len(self.messages) :], self.document
        self.document, self.messages = None, messages
        try:
            is_grown = document is not None and document.add([json.dumps(each).encode() for each in added])
        except InputError:
            is_grown = False
        kept = document if is_grown else GrowingDocument(body, self.target, self.policy, **self.options)
        self.document = kept
        made = kept.request()
        return made, end_of(made.account)


@each_target
@settings(max_examples=15 * SCALE)
@given(messages=any_history, policy=policies, answered=answers, data=st.data())
def test_each_length_has_the_request_of_the_whole_document(target_case, messages, policy, answered, data):
    target, model = target_case.target, target_case.model or None
    root = data.draw(st.sampled_from(["messages", target_case.root or "messages"]))
    head = {"tools": [], "max_tokens": 64} if root == "messages" else {}
    growing, end = Growing(target, policy, model=model, answered=answered), 0
    while end < len(messages):
        end += data.draw(st.integers(1, 3))
        # The same request may be sent twice.
        for _ in range(data.draw(st.integers(1, 2))):
            body = json.dumps({**head, root: messages[:end]}).encode()
            found = requested(lambda body=body, end=end: growing.request(body, messages[:end]))
            assert found == requested(lambda body=body: normalize_answered(body, target, answered, policy, model=model))
