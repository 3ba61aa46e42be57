"""Histories longer than policy `fit` allows: what is cut, and equal requests whole, turn by turn, and from records."""

from __future__ import annotations

import json

import pytest
from build import answered, call, image, png, result, said, text, user
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.errors import PolicyError
from reknit.pipeline.session.fit import Cut
from reknit.pipeline.session.tokens import TokenEstimate

MODEL = "claude-sonnet-4-5"


def words(text):
    """Tokens of a text of these tests: each `w` is one."""
    return text.count("w")


def w(count):
    return "w" * count


def made(messages, fit=100, **given):
    return normalize({"model": MODEL, "messages": messages}, policy={"fit": fit, **given}, count_tokens=words)


def session_for(messages, fit=100, **given):
    session = Session(["anthropic"], {"fit": fit, **given}, model=MODEL, count_tokens=words)
    resets = 0
    for message in messages:
        session.append(message)
        resets += session.request().prefix_reset == "fit"
    return session, resets


def texts(done):
    return [
        block.get("text", block["type"]) if isinstance(block, dict) else block
        for message in json.loads(done.body)["messages"]
        for block in (message["content"] if isinstance(message["content"], list) else [message["content"]])
    ]


def called(call_id, size=0):
    return said(call(call_id, "t", a=w(size)))


def spoken(messages):
    """The texts of turns of these tests, each of which has one block."""
    return [message["content"][0]["text"] for message in messages]


def chat(count, size=10):
    """Turns of `size` tokens, a user's and an assistant's in turn, that differ."""
    return [(user, said)[at % 2](f"{w(size)} {at}") for at in range(count)]


def cuts(done):
    return [(fix.code, fix.path) for fix in done.fixes]


def test_a_history_of_the_limit_stays():
    done = made([*chat(9), user(w(10))])
    assert done.fixes == []
    assert done.body == normalize({"model": MODEL, "messages": [*chat(9), user(w(10))]}).body


def test_a_history_above_the_limit_is_cut_to_half():
    messages = chat(11)
    done = made(messages)
    assert texts(done) == spoken(messages[6:])
    assert cuts(done) == [("exchange_cut", f"messages.{at}") for at in range(6)]
    assert not any(fix.lossless for fix in done.fixes)
    assert [(entry.path, entry.fate) for entry in done.ledger if entry.fate == "dropped"] == [
        (f"messages.{at}.content.0", "dropped") for at in range(6)
    ]


def test_the_next_cut_comes_once_it_is_above_the_limit_again():
    messages = chat(17)
    session, resets = session_for(messages[:16])
    assert resets == 1
    assert texts(session.request())[0] == f"{w(10)} 6"
    session.append(messages[16])
    done = session.request()
    assert done.prefix_reset == "fit"
    assert texts(done)[0] == f"{w(10)} 12"
    assert done.body == made(messages).body
    assert done.fixes == made(messages).fixes
    assert done.ledger == made(messages).ledger


def test_a_turn_reports_what_it_cuts():
    session, _ = session_for(chat(10), summary="before")
    fixes = session.append(chat(11)[10])
    assert [(fix.code, fix.path) for fix in fixes] == [
        *(("exchange_cut", f"messages.{at}") for at in range(6)),
        ("summary_inserted", "messages.0.content.0"),
    ]


def loop(count, size=10):
    """A user's turn, then calls with their results."""
    turns = [user(f"task {w(5)}")]
    for at in range(count):
        turns += [called(f"c{at}", size), answered(f"c{at}", f"{w(size)} {at}")]
    return turns


def results_in(done):
    return [
        block["tool_use_id"]
        for message in json.loads(done.body)["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]


def test_the_users_turn_stays_before_exchanges_that_stay():
    messages = loop(6)
    done = made(messages)
    assert texts(done)[0] == f"task {w(5)}"
    assert results_in(done) == ["c3", "c4", "c5"]
    assert cuts(done) == [("exchange_cut", f"messages.{at}") for at in range(1, 7)]
    session, resets = session_for(messages)
    assert (session.request().body, session.request().fixes, resets) == (done.body, done.fixes, 1)


def test_the_users_turn_that_stayed_goes_with_the_next_cut():
    messages = [*loop(6), said(w(10)), *chat(9)]
    done = made(messages)
    assert texts(done)[0] == spoken(chat(9))[4]
    assert session_for(messages)[0].request().body == done.body


def test_words_among_results_stay_without_the_results():
    mixed = user(result("c0", w(10)), text(f"and this {w(5)}"))
    messages = [user(w(5)), called("c0"), mixed, *loop(6)[1:]]
    messages[3] = called("d0", 10)
    messages[4] = answered("d0", w(10))
    done = made(messages)
    assert texts(done)[0] == f"and this {w(5)}"
    assert ("exchange_cut", "messages.2.content.0") in cuts(done)
    assert ("exchange_cut", "messages.2") not in cuts(done)
    assert session_for(messages)[0].request().body == done.body


def test_no_cut_between_a_call_and_its_result():
    # The result comes after the user has spoken again.
    messages = [*chat(4), called("c", 10), user(w(10)), answered("c", w(10)), *chat(10)[7:]]
    done = made([*messages, user(w(30))])
    assert done.body is not None
    assert json.loads(done.body)["messages"][0]["content"] == w(30) or results_in(done) in ([], ["c"])
    sent = done.body.decode()
    assert sent.count('"tool_use"') == sent.count('"tool_result"')


def test_an_open_call_stays():
    messages = [*chat(8), user(w(10)), called("c", 40)]
    session, _ = session_for(messages)
    session.append(answered("c", w(60)))
    done = session.request()
    assert results_in(done) == ["c"]
    assert [fix.code for fix in done.fixes if fix.code != "exchange_cut"] == ["fit_exceeded"]
    assert done.body == made([*messages, answered("c", w(60))]).body


def test_a_result_of_a_call_that_was_cut_becomes_text():
    messages = [
        user("q"),
        said(call("c", "slow")),
        answered("c", "[Request interrupted by user]"),
        said("ok"),
        *chat(12),
    ]
    late = answered("c", "the real result")
    done = made([*messages, said("ok"), late])
    assert texts(done)[-1] == "[Tool result of an earlier call: slow, c]\nthe real result"
    assert session_for([*messages, said("ok"), late])[0].request().body == done.body


def test_a_last_turn_above_the_limit_is_sent():
    messages = [*chat(4), user(w(101))]
    done = made(messages)
    assert texts(done) == [w(101)]
    assert cuts(done) == [*(("exchange_cut", f"messages.{at}") for at in range(4)), ("fit_exceeded", "messages.4")]
    session, resets = session_for(messages)
    assert (session.request().body, resets) == (done.body, 1)
    assert made([user(w(101))]).fixes[0].code == "fit_exceeded"


def test_system_prompt_and_tools_count_and_stay():
    tool = {"name": "t", "description": w(20), "input_schema": {"type": "object"}}
    document = {"model": MODEL, "system": w(30), "tools": [tool], "messages": chat(7)}
    done = normalize(document, policy={"fit": 100}, count_tokens=words)
    assert texts(done) == spoken(chat(7))[4:]
    assert json.loads(done.body)["system"] == w(30)
    leading = [{"role": "system", "content": w(20)}, *chat(9)]
    done = made(leading)
    assert w(20) in json.dumps(json.loads(done.body)["system"])
    assert texts(done)[0] == spoken(chat(9))[6]


def test_a_summary_stands_at_the_cut():
    done = made(chat(11), summary="What was said before.")
    assert texts(done)[:2] == ["What was said before.", f"{w(10)} 6"]
    assert done.fixes[-1].code == "summary_inserted"
    assert done.fixes[-1].path == "messages.0.content.0"
    session, _ = session_for(chat(11), summary="What was said before.")
    assert session.request().body == done.body
    assert session.request().fixes == done.fixes
    after = made(loop(6), summary="What was done.")
    assert texts(after)[:2] == [f"task {w(5)}", "What was done."]
    assert made(chat(9), summary="x").fixes == []


def test_a_rewind_before_a_cut_restores_the_exchanges():
    messages = chat(30)
    session, _ = session_for(messages)
    session.take_segments(flush=True)
    session.rewind(8)
    assert texts(session.request()) == spoken(messages[:8])
    assert session.request().body == made(messages[:8]).body
    for message in messages[8:]:
        session.append(message)
    assert session.request().body == made(messages).body


@pytest.mark.parametrize("count", range(1, 30))
def test_a_rewind_anywhere_is_the_shorter_history(count):
    messages = chat(30)
    session = Session(["anthropic"], {"fit": 100}, model=MODEL, count_tokens=words)
    for message in messages:
        session.append(message)
        session.take_segments(flush=True)
    session.rewind(count)
    done = session.request()
    assert (done.body, done.fixes) == (made(messages[:count]).body, made(messages[:count]).fixes)
    session.append(user(f"again {w(10)}"))
    assert session.request().body == made([*messages[:count], user(f"again {w(10)}")]).body


def test_another_limit_restores_the_exchanges():
    session, _ = session_for(chat(30))
    session.configure(policy={"fit": "off"})
    assert session.request().body == normalize({"model": MODEL, "messages": chat(30)}).body
    session.configure(policy={"fit": 100})
    assert session.request().body == made(chat(30)).body


def test_state_of_a_format_without_it_cuts_nothing():
    session = Session(["anthropic"], {"fit": 100, "summary": "s"}, model=MODEL, count_tokens=words, state_format=2)
    session.keep_limits(on=False)
    for message in chat(30):
        session.append(message)
    assert session.request().fixes == []
    assert b"summary" not in session.head()
    assert b"fit" not in session.head()


def test_the_values_of_the_policy():
    assert session_for([user("q")], fit="100")[0].policy.fit == 100
    assert session_for([user("q")], fit="off")[0].policy.fit == "off"
    for value in ("on", 0, -1, True, 1.5):
        with pytest.raises(PolicyError):
            Session(policy={"fit": value})


def test_a_cut_of_a_session_of_three_targets_is_the_same_for_all():
    session = Session(["anthropic", "openai-chat", "claude-cli"], {"fit": 100}, model=MODEL, count_tokens=words)
    for message in chat(31):
        session.append(message)
    assert [len(session.request(name).fixes) for name in session.targets] == [24, 24, 24]


# Properties.

ids = st.sampled_from(["a", "b", "c", "call_0"])
sizes = st.integers(0, 40)
turn = st.one_of(
    sizes.map(lambda size: user(f"u {w(size)}")),
    sizes.map(lambda size: said(f"s {w(size)}")),
    st.tuples(ids, sizes).map(lambda each: called(*each)),
    st.tuples(ids, sizes).map(lambda each: answered(each[0], f"r {w(each[1])}")),
    st.tuples(ids, sizes).map(lambda each: user(result(each[0], "r"), text(f"t {w(each[1])}"))),
    st.tuples(ids, ids, sizes).map(
        lambda each: said(*(call(name, "t", a=w(each[2])) for name in dict.fromkeys(each[:2])))
    ),
    st.just(user(" ")),
    sizes.map(lambda size: {"role": "system", "content": f"y {w(size)}"}),
)


@pytest.mark.parametrize("target", ["anthropic", "openai-responses", "gemini", "claude-cli"])
@settings(max_examples=60)
@given(
    messages=st.lists(turn, min_size=1, max_size=30),
    late=st.sampled_from(["replace", "drop"]),
    summary=st.sampled_from(["", "said before"]),
)
def test_whole_turn_by_turn_and_records_are_equal(target, messages, late, summary):
    policy = {"fit": 100, "late_result": late, "summary": summary}
    session, kept = (Session([target], policy, model=MODEL, count_tokens=words) for _ in range(2))
    segments = []
    for count, message in enumerate(messages, 1):
        session.append(message)
        kept.append(message)
        segments += [data for _, data in kept.take_segments(flush=count % 3 == 0)]
        kept = Session.load(kept.head(), segments, count_tokens=words)
        whole = normalize({"model": MODEL, "messages": messages[:count]}, target, policy=policy, count_tokens=words)
        for done in (session.request(), kept.request()):
            assert done.unjudged == whole.unjudged
            assert done.fixes == whole.fixes
            assert done.ledger == whole.ledger
        if whole.body is not None:
            assert [each for each in validate(whole.body, target, MODEL) if each.severity == "hard"] == []


@settings(max_examples=200)
@given(messages=st.lists(turn, min_size=1, max_size=30))
def test_no_pair_is_broken_and_no_last_turn_removed(messages):
    session = Session(["anthropic"], {"fit": 100}, model=MODEL, count_tokens=words)
    last = None
    for at, message in enumerate(messages):
        session.append(message)
        cut = session._work.fit.cut
        if message["role"] == "user" and any(block.get("text", " ").strip() for block in message["content"]):
            last = at
        if last is not None and cut.at >= 0:
            assert last >= cut.start or last == cut.owner
        if cut.at == at:
            assert_pairs(messages[: at + 1], cut)


def assert_pairs(messages, cut):
    """No call that is left out has its result, in its open window, among what stays, and none that stays waits."""
    waiting = {}
    for at, message in enumerate(messages):
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_use":
                waiting[block["id"]] = at
            elif block["type"] == "tool_result" and block["tool_use_id"] in waiting:
                call = waiting.pop(block["tool_use_id"])
                if at - call < 8:
                    is_left_out = call < cut.start
                    assert is_left_out == (at < cut.start)


def test_no_cut_without_a_limit():
    assert session_for(chat(50), fit="off")[0]._work.fit.cut == Cut()


# The estimate.


def blocks(*given):
    found = normalize({"messages": [{"role": "user", "content": list(given)}]})
    assert found.body is not None
    session = Session()
    session.append({"role": "user", "content": list(given)})
    return session.turns[0].blocks


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-sonnet-4-5", 293),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", 293),
        ("claude-opus-4-7", 380),
        ("claude-sonnet-5", 380),
        ("anthropic/claude-3-5-haiku", 293),
        ("gpt-5", 257),
        ("o4-mini", 257),
        ("gemini-3-pro-preview", 257),
        ("deepseek-chat", 311),
        (None, 311),
    ],
)
def test_a_text_counts_by_its_family(model, tokens):
    text = {"type": "text", "text": "x" * 1000}
    assert TokenEstimate(model).of_blocks(blocks(text)) == tokens


def picture(width, height):
    return image(png(width, height))


def test_media_count_by_their_sides():
    of_claude, of_gemini = TokenEstimate("claude-sonnet-4-5"), TokenEstimate("gemini-3-pro")
    assert of_claude.of_blocks(blocks(picture(750, 1000))) == 1000
    assert of_claude.of_blocks(blocks(picture(7000, 7000))) == 1568
    assert TokenEstimate("claude-opus-4-8").of_blocks(blocks(picture(7000, 7000))) == 4784
    assert of_gemini.of_blocks(blocks(picture(10, 10))) == 258
    assert of_claude.of_blocks(blocks(picture(750, 1000))) == 1000


def test_a_rewind_before_the_first_words_forgets_them():
    lead = [{"role": "system", "content": f"s {w(5)}"}, *chat(30)]
    session = Session(["anthropic"], {"fit": 100}, model=MODEL, count_tokens=words)
    for message in lead:
        session.append(message)
    session.rewind(1)
    again = [user(f"first {w(10)}"), said(w(10)), {"role": "system", "content": w(10)}, *chat(20)]
    for message in again:
        session.append(message)
    assert session.request().body == made([lead[0], *again]).body
    assert session.request().fixes == made([lead[0], *again]).fixes
