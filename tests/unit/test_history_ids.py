"""Tool ids: kept where they can be, rewritten injectively where not."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pipeline.history.ids import IdTable, SettledCall, is_legal


def test_a_legal_id_stays_the_first_time():
    ids = IdTable()
    assert ids.claim("toolu_1") == "toolu_1"
    assert ids.claim("toolu_1") != "toolu_1"


def test_ids_that_look_alike_stay_apart():
    ids = IdTable()
    finals = [ids.claim(each) for each in ("call.1", "call_1", "call:1", "call.1")]
    assert finals[1] == "call_1"
    assert len(set(finals)) == 4


def test_a_rewritten_id_is_taken_like_any_other():
    first = IdTable().claim("call.1")
    ids = IdTable()
    assert ids.claim(first) == first
    assert ids.claim("call.1") not in {first, "call_1"}


def test_the_length_is_that_of_the_strictest_provider():
    assert is_legal("x" * 64)
    assert not is_legal("x" * 65)
    assert len(IdTable().claim("x" * 116)) <= 64


@given(st.lists(st.one_of(st.sampled_from(["a", "a.b", "a:b", "a_b", "", "ü"]), st.text(max_size=90)), max_size=40))
def test_ids_are_unique_legal_and_the_same_each_time(originals):
    ids, again = IdTable(), IdTable()
    finals = [ids.claim(each) for each in originals]
    assert len(set(finals)) == len(finals)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", final) for final in finals)
    assert finals == [again.claim(each) for each in originals]


@given(st.lists(st.sampled_from(["a", "a.b", "a:b", ""]), max_size=12), st.sampled_from(["a", "a.b", ""]))
def test_a_table_made_again_from_its_calls_goes_on_the_same(originals, new):
    ids, again = IdTable(), IdTable()
    for original in originals:
        again.reload(SettledCall(original, ids.claim(original), answered=True))
    assert again.claim(new) == ids.claim(new)


def test_it_knows_how_a_settled_call_ended():
    ids = IdTable()
    assert ids.answered("a") is None
    ids.settle(SettledCall("a", "a", answered=False))
    assert ids.answered("a") is False
    ids.settle(SettledCall("a", "a-1", answered=True))
    assert ids.answered("a") is True
