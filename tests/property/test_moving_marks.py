"""A conversation whose cache breakpoints move is repaired as if each request were the first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_marks import Moving, drawn_marks, with_marks
from strategies import SCALE, policies, reasoned, spiced, with_members
from target_cases import TARGET_CASES

from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.testing.strategies import broken_histories, mixed_histories, open_histories, perturbed_histories

each_target = pytest.mark.parametrize("target_case", TARGET_CASES, ids=str)
any_history = st.one_of(
    broken_histories, open_histories(), mixed_histories, perturbed_histories(), reasoned, spiced, with_members
)
answers = st.dictionaries(st.integers(0, 8), st.booleans(), max_size=2)


@each_target
@settings(max_examples=6 * SCALE)
@given(messages=any_history, policy=policies, answered=answers, data=st.data())
def test_each_request_is_repaired_as_a_whole_one(target_case, messages, policy, answered, data):
    root = data.draw(st.sampled_from(["messages", target_case.root or "messages"]))
    moving = Moving(Endpoint(target_case.target, target_case.model or ""), policy_from(policy), root, answered)
    end = 0
    while end < len(messages):
        end += data.draw(st.integers(1, 3))
        for _ in range(data.draw(st.integers(1, 2))):
            found, whole = moving.results(with_marks(messages[:end], data.draw(drawn_marks)))
            assert found == whole
        if not data.draw(st.integers(0, 5)):  # the client goes back
            end = max(1, end - data.draw(st.integers(1, 3)))
            found, whole = moving.results(with_marks(messages[:end], data.draw(drawn_marks)))
            assert found == whole
