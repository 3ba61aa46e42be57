"""Healing of sessions: the effect of a refusal on the next request, and the memory of it."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit import Session
from reknit.pipeline.errors import InputError, UnknownTargetError
from reknit.pipeline.explain import explain
from reknit.pipeline.explain.page_text import plain
from reknit.pipeline.healing.later import LATER
from reknit.pipeline.healing.table import HEALINGS, IN_SESSIONS
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.policy import Policy
from reknit.pipeline.validation import validate

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "refused_requests.jsonl").read_text("utf-8").splitlines()
]
BY_NAME = {case["name"]: case for case in CASES}
# The session's own repairs leave nothing of the cause in the request, so its provider does not refuse it.
NEVER_REFUSED = {
    "ant-foreign-hex-signature",
    "ant-thinking-empty",
    "ant-loop-without-thinking",
    "ant-tool-reference-in-tools",  # its tools have no schema, which a session refuses
    "ant-image-8000",
    "bed-signature-required",
    "bed-image-unprocessable",
    "bed-no-caching",
    "bed-no-cache-point-in-tools",  # the session has no tools
    "chat-tool-content-list",
    "ant-tool-reference-server",
    "ant-tool-reference-client",
    "ant-param-max-tokens",
    "ant-param-two-of-three",
    "ant-param-effort",
    "bed-json-in-words",
    "rsp-param-unsupported",
    "rsp-param-effort",
}
# The log does not have what the provider stored or took before.
NOT_HEALED = {"rsp-previous-not-found", "chat-kimi-media-generic"}
HEALED = [
    name
    for name, case in BY_NAME.items()
    if case["mend"] != "none" and name not in NEVER_REFUSED and name not in NOT_HEALED
]
# Facts that matter in a tool loop.
IN_LOOPS = {name for name, later in LATER.items() if later.at_first is not None}


def session_of(case, **arguments):
    """Return a session with the history of a refused request."""
    request = case["request"]
    found = read(json.dumps(request).encode(), "auto").conversation
    session = Session(
        [case["target"]],
        model=request.get("model") or found.model,
        system=found.system,
        tools=request.get("tools", ()) if case["target"] in {"anthropic", "openai-chat"} else (),
        params={name: json.loads(bytes(value)) for name, value in found.params.items()},
        **arguments,
    )
    session.replace(list(found.turns))
    return session


def refused(session, case):
    """Report a refusal; a cause that may pass by itself is reported a second time."""
    told = {"status": case["status"], "error": case["error"]}
    session.request(case["target"])
    return session.refused(case["target"], **told) or session.refused(case["target"], **told)


def text_of(request):
    return json.dumps(json.loads(request.unjudged), ensure_ascii=False)


def said(role, *texts, **more):
    return {"role": role, "content": [{"type": "text", "text": text, **more} for text in texts]}


def thought(signature, text="Hm."):
    return {"type": "thinking", "thinking": text, "signature": signature}


def called(number, *before):
    return {
        "role": "assistant",
        "content": [*before, {"type": "tool_use", "id": f"toolu_{number}", "name": "ls", "input": {}}],
    }


def result(number):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "a.py"}]}


def signature_refused(path):
    return {"error": {"type": "invalid_request_error", "message": f"{path}: Invalid `signature` in `thinking` block"}}


TOOLS = [{"name": "ls", "input_schema": {"type": "object", "properties": {}}}]
CLAUDE = {"model": "claude-sonnet-4-5", "tools": TOOLS, "params": {"max_tokens": 100}}
SIGNED = ("EqQBAAAAAAAAAAAA", "EqQBBBBBBBBBBBBB", "EqQBCCCCCCCCCCCC")


def thinking_session(**arguments):
    """Return a session of three closed turns with reasoning, and its last user turn."""
    session = Session(["anthropic"], **CLAUDE | arguments)
    for number, signature in enumerate(SIGNED):
        session.append(said("user", f"Question {number}?"))
        session.append(called(number, thought(signature)))
        session.append(result(number))
        session.append(said("assistant", f"Answer {number}."))
    session.append(said("user", "Thanks."))
    return session


# Cases of reports.


@pytest.mark.parametrize("name", HEALED)
def test_a_refused_session_heals_as_stated_and_remembers(name):
    case = BY_NAME[name]
    session = session_of(case)
    before = text_of(session.request())
    healed = refused(session, case)
    assert healed is not None
    text = text_of(healed)
    assert [words for words in case["gone"] if words in text] == []
    assert [words for words in case["kept"] if words in before and words not in text] == []
    codes = {fix.code for fix in healed.fixes if fix.code.startswith("healed_")}
    assert codes
    assert not healed.rejected or session_of(case).request().rejected
    # The next request is written without it the first time, and so is that of a session loaded from its state.
    assert session.request().unjudged == healed.unjudged
    loaded = Session.load(session.head(), [record for _, record in session.take_segments()])
    assert loaded.request().unjudged == healed.unjudged
    if not IN_LOOPS & {code.removeprefix("healed_") for code in codes}:
        session.append(said("assistant", "Well."))
        session.append(said("user", "Go on."))
        # A parameter that a tool loop could not have is back.
        gone = [words for words in case["gone"] if words != "budget_tokens"]
        assert [words for words in gone if words in text_of(session.request())] == []


@pytest.mark.parametrize("name", sorted(NEVER_REFUSED - {"ant-tool-reference-in-tools"}))
def test_the_own_repairs_of_a_session_leave_nothing_of_some_causes(name):
    text = text_of(session_of(BY_NAME[name]).request())
    assert [words for words in BY_NAME[name]["gone"] if words in text and words != '"thinking"'] == []


@pytest.mark.parametrize(
    "name", sorted({name for name, case in BY_NAME.items() if case["mend"] == "none"} | NOT_HEALED)
)
def test_what_no_row_has_changes_nothing(name):
    session = session_of(BY_NAME[name])
    before, state = session.request().unjudged, session.head()
    assert refused(session, BY_NAME[name]) is None
    assert (session.request().unjudged, session.head()) == (before, state)


@pytest.mark.parametrize("name", HEALED)
def test_every_block_is_accounted_for_after_healing(name):
    case = BY_NAME[name]
    session = session_of(case)
    paths = sorted(entry.path for entry in session.request().ledger if entry.path)
    healed = refused(session, case)
    entries = [entry for entry in healed.ledger if entry.path]
    assert sorted(entry.path for entry in entries) == paths
    named = {fix.path for fix in healed.fixes}
    for entry in entries:
        if entry.fate == "dropped":
            assert entry.code
            assert any(entry.path.startswith(path) or path.startswith(entry.path) for path in named)
        elif entry.output not in {"", "system"}:
            value = json.loads(healed.unjudged)
            for step in entry.output.split("."):
                if isinstance(value, str):
                    break  # a text that is its message's whole content
                value = value[int(step)] if isinstance(value, list) else value[step]


# Sessions that are never refused.


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_session_that_is_never_refused_stores_nothing_and_sends_the_same(case):
    on, off = (session_of(case, policy=Policy(heal=heal)) for heal in ("on", "off"))
    assert on.request().unjudged == off.request().unjudged
    assert on.log() == off.log()
    heads = [msgspec.msgpack.decode(session.head()) for session in (on, off)]
    assert heads[1]["policy"].pop("heal") == "off"
    assert heads[0] == heads[1]
    assert "refused" not in heads[0]


# Places.


def test_the_place_of_a_sentence_is_one_of_the_request_and_the_fix_names_that_of_the_history():
    session = thinking_session()
    session.request()
    healed = session.refused("anthropic", status=400, error=signature_refused("messages.5.content.0"), request_id="r-1")
    text = text_of(healed)
    assert [signature in text for signature in SIGNED] == [True, False, True]
    (fix,) = [fix for fix in healed.fixes if fix.code.startswith("healed")]
    assert (fix.code, fix.path, fix.lossless, fix.target) == (
        "healed_thinking_signature",
        "messages.5.content.0",
        False,
        "anthropic",
    )
    assert fix.detail == (
        "reasoning left out: messages.5.content.0: Invalid `signature` in `thinking` block (request r-1)"
    )


def test_places_are_mapped_where_messages_were_merged():
    session = Session(["anthropic"], **CLAUDE)
    for message in (
        said("user", "One."),
        said("user", "Two."),
        called(1, thought(SIGNED[0])),
        result(1),
        said("assistant", "Done."),
        said("user", "And?"),
    ):
        session.append(message)
    session.request()
    healed = session.refused("anthropic", status=400, error=signature_refused("messages.1.content.0"))
    assert [fix.path for fix in healed.fixes if fix.code.startswith("healed")] == ["messages.2.content.0"]


def test_a_late_refusal_heals_the_next_request_by_kind():
    session = thinking_session()
    session.request()
    session.append(said("user", "Are you there?"))
    healed = session.refused("anthropic", status=400, error=signature_refused("messages.1.content.0"))
    assert not any(signature in text_of(healed) for signature in SIGNED)
    assert "Are you there?" in text_of(healed)


def test_a_place_outside_of_the_request_heals_by_kind():
    session = thinking_session()
    session.request()
    healed = session.refused("anthropic", status=400, error=signature_refused("messages.1.content.39"))
    assert healed.unjudged != thinking_session().request().unjudged


def test_an_open_tool_loop_goes_on_without_thinking_until_the_user_speaks():
    params = {"max_tokens": 9000, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    session = Session(["anthropic"], **CLAUDE | {"params": params, "model": "acme-claude-large"})
    for message in (said("user", "List."), called(1, thought(SIGNED[0])), result(1)):
        session.append(message)
    session.request()
    healed = json.loads(session.refused("anthropic", status=400, error=signature_refused("messages.1.content.0")).body)
    assert "thinking" not in healed
    session.append(said("assistant", "One file."))
    session.append(said("user", "And?"))
    assert json.loads(session.request().body)["thinking"] == params["thinking"]
    assert SIGNED[0] not in text_of(session.request())


# Memory.


def healed_session(**arguments):
    session = thinking_session(**arguments)
    session.request()
    assert session.refused("anthropic", status=400, error=signature_refused("messages.1.content.0")) is not None
    return session


def test_memory_survives_rewinds_restores_and_other_targets():
    session = healed_session()
    session.rewind(4)
    session.append(said("user", "Again."))
    assert SIGNED[0] not in text_of(session.request())
    session.configure(targets=["openai-chat"])
    session.request()
    session.configure(targets=["anthropic"], system="Be brief.")
    assert SIGNED[0] not in text_of(session.request())
    session.replace([said("user", "Hi."), called(1, thought(SIGNED[0])), result(1), said("user", "So?")])
    assert SIGNED[0] not in text_of(session.request())


def test_memory_is_exported_and_imported_with_the_log():
    session = healed_session()
    other = Session(["anthropic"], **CLAUDE)
    other.replace_by_log(session.log())
    assert other.request().unjudged == session.request().unjudged
    assert other.log() == session.log()


def test_memory_is_of_one_target():
    session = thinking_session()
    both = Session(["anthropic", "bedrock-converse"], **CLAUDE)
    both.replace_by_log(session.log())
    untouched = both.request("bedrock-converse").unjudged
    both.request("anthropic")
    both.refused("anthropic", status=400, error=signature_refused("messages.1.content.0"))
    assert both.request("bedrock-converse").unjudged == untouched
    assert SIGNED[0] not in text_of(both.request("anthropic"))


def test_memory_ends_when_it_is_forgotten():
    session = healed_session()
    session.forget_refusals()
    assert session.request().unjudged == thinking_session().request().unjudged
    assert session.head() == healed_head_of(thinking_session())


def healed_head_of(session):
    session.request()
    return session.head()


def test_a_log_with_broken_memory_is_refused():
    log = json.loads(healed_session().log())
    log["refused"]["anthropic"][1][0][2] = 7
    with pytest.raises(InputError, match="healings"):
        Session(["anthropic"]).replace_by_log(json.dumps(log).encode())


def test_a_healed_history_keeps_its_prefix():
    session = healed_session()
    first = session.request()
    session.append(said("assistant", "Welcome."))
    session.append(said("user", "One more."))
    second = session.request()
    assert 0 < first.prefix_bytes < second.prefix_bytes
    assert second.unjudged[: first.prefix_bytes] == first.unjudged[: first.prefix_bytes]
    session.append(said("assistant", "Yes."))
    session.append(said("user", "Bye."))
    assert session.request().unjudged[: second.prefix_bytes] == second.unjudged[: second.prefix_bytes]


def test_a_fact_of_a_model_is_not_one_of_another():
    error = {"error": {"type": "invalid_request_error", "message": "`temperature` is deprecated for this model."}}
    session = Session(["anthropic"], model="acme-large", params={"max_tokens": 9, "temperature": 0.5})
    session.append(said("user", "Hi."))
    session.request()
    assert "temperature" not in json.loads(session.refused("anthropic", status=400, error=error).body)
    session.configure(model="acme-small")
    assert json.loads(session.request().body)["temperature"] == 0.5
    session.configure(model="acme-large")
    assert "temperature" not in json.loads(session.request().body)


# Bounds.


def refuse_next(session, at):
    session.request()
    return session.refused("anthropic", status=400, error=signature_refused(f"messages.{at}.content.0"))


def refuse_parameter(session, name):
    session.request()
    error = {"error": {"type": "invalid_request_error", "message": f"`{name}` is deprecated for this model."}}
    return session.refused("anthropic", status=400, error=error)


@pytest.mark.parametrize(("heal", "most"), [("off", 0), ("once", 1), ("on", 3)])
def test_healings_of_a_user_turn_are_limited(heal, most):
    params = {"max_tokens": 100, "temperature": 1, "top_p": 1, "top_k": 1, "service_tier": "auto"}
    session = Session(["anthropic"], model="acme-large", policy={"heal": heal}, params=params)
    session.append(said("user", "Hi."))
    healed = [refuse_parameter(session, name) for name in ("temperature", "top_p", "top_k", "service_tier")]
    assert [request is not None for request in healed] == [number < most for number in range(4)]


def test_the_second_healing_of_a_user_turn_leaves_all_reasoning_out():
    session = thinking_session()
    kept = []
    for at in (1, 5):
        assert refuse_next(session, at) is not None
        kept.append([signature in text_of(session.request()) for signature in SIGNED])
    assert kept == [[False, True, True], [False] * 3]


def test_a_new_user_turn_resets_the_count_and_not_the_memory():
    session = thinking_session(policy={"heal": "once"})
    assert refuse_next(session, 1) is not None
    assert refuse_next(session, 5) is None
    session.append(said("assistant", "Hm."))
    session.append(said("user", "Go on."))
    assert session.healings("anthropic") == 0
    assert refuse_next(session, 5) is not None
    assert [signature in text_of(session.request()) for signature in SIGNED] == [False, False, True]


def test_results_of_tools_are_no_new_user_turn():
    session = thinking_session(policy={"heal": "once"})
    assert refuse_next(session, 1) is not None
    session.append(called(9, thought("EqQBDDDDDDDDDDDD")))
    session.append(result(9))
    assert session.healings("anthropic") == 1


def test_the_same_bytes_are_never_sent_again():
    session = thinking_session()
    sent = {session.request().sha256}
    for _ in range(5):
        healed = refuse_next(session, 1)
        if healed is None:
            break
        assert healed.sha256 not in sent
        sent.add(healed.sha256)
    assert healed is None


def test_policy_off_sends_what_was_refused():
    session = healed_session()
    session.configure(policy={"heal": "off"})
    assert SIGNED[0] in text_of(session.request())
    assert refuse_next(session, 1) is None


def test_state_before_format_3_has_no_place_for_refusals():
    session = Session(["anthropic"], state_format=2, **CLAUDE)
    session.append(said("user", "Hi."))
    session.append(called(1, thought(SIGNED[0])))
    session.append(result(1))
    session.append(said("user", "So?"))
    assert refuse_next(session, 1) is None
    loaded = Session.load(healed_session().head(), [], 2)
    assert "refused" not in msgspec.msgpack.decode(loaded.head())


def test_only_targets_of_the_session_refuse():
    with pytest.raises(UnknownTargetError):
        thinking_session().refused("gemini", status=400, error="x")


def test_a_text_target_is_not_healed():
    session = Session(["claude-cli"])
    session.append(said("user", "Hi."))
    session.request()
    assert session.refused("claude-cli", status=400, error=signature_refused("messages.0.content.0")) is None


# Reasoning that is bound to its prefix.


def bound_session():
    session = Session(["anthropic"], **CLAUDE | {"model": "claude-fable-5-1"})
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    session.append({"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]})
    session.request()
    for number, signature in enumerate(SIGNED):
        session.append({"role": "assistant", "content": [thought(signature), {"type": "text", "text": f"A{number}."}]})
        session.append(said("user", f"Q{number}?"))
        session.request()
    return session


def test_a_repair_of_an_early_place_drops_the_reasoning_after_it():
    session = bound_session()
    healed = session.refused(
        "anthropic",
        status=400,
        error={"error": {"message": "Unable to download the file. Please verify the URL and try again."}},
    )
    text = text_of(healed)
    assert "Image or file left out" in text
    assert not any(signature in text for signature in SIGNED)
    # Reasoning that answers the healed request is valid.
    session.append({"role": "assistant", "content": [thought("EqQBDDDDDDDDDDDD"), {"type": "text", "text": "New."}]})
    session.append(said("user", "Go on."))
    text = text_of(session.request())
    assert "EqQBDDDDDDDDDDDD" in text
    assert not any(signature in text for signature in SIGNED)


def test_a_bound_block_takes_all_later_ones_with_it():
    session = bound_session()
    message = (
        "messages.3.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
    )
    healed = session.refused("anthropic", status=400, error={"error": {"message": message}})
    assert [signature in text_of(healed) for signature in SIGNED] == [True, False, False]


# All rows.


def test_every_row_that_a_session_continues_exists():
    assert LATER.keys() <= {row.name for row in (*HEALINGS, *IN_SESSIONS)}


@given(name=st.sampled_from(HEALED), turns=st.integers(0, 3), data=st.data())
def test_healing_never_repeats_a_request_or_breaks_a_rule(name, turns, data):
    case = BY_NAME[name]
    session = session_of(case)
    for number in range(turns):
        session.append(said("assistant", f"A{number}."))
        session.append(said("user", f"Q{number}?"))
    rules = {each.rule for each in validate(session.request().unjudged, case["target"]) if each.severity == "hard"}
    seen = {session.request().sha256}
    for _ in range(6):
        other = BY_NAME[data.draw(st.sampled_from(HEALED))]
        error = other["error"] if other["target"] == case["target"] else case["error"]
        healed = session.refused(case["target"], status=400, error=error)
        if healed is None:
            continue
        assert healed.sha256 not in seen
        seen.add(healed.sha256)
        assert healed.sha256 == session.request().sha256
        found = {each.rule for each in validate(healed.unjudged, case["target"]) if each.severity == "hard"}
        assert found <= rules
    assert len(seen) <= 4


def test_thinking_is_off_in_later_loops_without_reasoning_and_on_in_other_turns():
    session = Session(["openai-chat"], model="acme-large", tools=TOOLS)
    error = {"error": {"message": "The `reasoning_content` in the thinking mode must be passed back to the API."}}
    off = {"type": "disabled"}

    def sent():
        return json.loads(session.request().body).get("thinking")

    for message in (said("user", "List."), called(1), result(1)):
        session.append(message)
    session.request()
    assert json.loads(session.refused("openai-chat", status=400, error=error).body)["thinking"] == off
    session.append(said("assistant", "One."))
    session.append(said("user", "Again."))
    assert sent() is None
    session.append(called(2))
    session.append(result(2))
    assert sent() == off


def test_a_history_of_which_nothing_would_be_left_is_sent_as_it_is():
    session = healed_session()
    session.rewind(2)
    assert session.request().unjudged
    assert session.request().violations == [] or not session.request().rejected


@pytest.mark.parametrize("row", [*IN_SESSIONS, *HEALINGS], ids=lambda row: row.name)
def test_each_fix_of_a_healing_is_explained(row):
    page = explain(f"healed_{row.name}")
    assert page.lossless == (not row.loss)
    text = plain(page)
    assert row.source in text
    assert text.endswith("limits it.\n")
