"""Additional promises of the planner target, whose tools are emulated in text."""

import json
import re

import msgspec
from build import answered, call, said
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LINE, SCALE, SPICES, TOOLS, beside_spiced, healthy_histories, policies, spiced

from reknit.pipeline import Session, normalize, validate

TARGET = "cascade"
documents = st.fixed_dictionaries({"messages": spiced}, optional=beside_spiced)


def normalized(document, policy):
    return normalize(msgspec.json.encode(document), to=TARGET, policy=policy)


@settings(max_examples=200 * SCALE)
@given(document=documents, policy=policies)
def test_each_message_of_the_body_has_a_ledger_entry_and_an_id(document, policy):
    done = normalized(document, policy)
    if done.body is not None:
        messages = {entry.output.split(".")[1] for entry in done.ledger if entry.output.startswith("messages")}
        assert messages == {str(at) for at in range(len(json.loads(done.body)["messages"]))}
        assert len(done.ids) == len(messages)


@settings(max_examples=100 * SCALE)
@given(messages=spiced, policy=policies)
def test_settled_bytes_never_change_once_the_directory_is_known(messages, policy):
    session = Session((TARGET,), policy, system="Working directory: /srv/app", tools=TOOLS)
    before = None
    for message in messages:
        session.append(message)
        now = session.request()
        if before is not None:
            assert now.unjudged.startswith(before.unjudged[: before.prefix_bytes])
            assert now.prefix_bytes >= before.prefix_bytes
        before = now if now.prefix_bytes else before


@settings(max_examples=150 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_valid_history_keeps_every_word(messages, policy):
    done = normalized({"messages": messages, "tools": TOOLS}, policy | {"strip_tools": False})
    shown = [message["content"] for message in json.loads(done.body)["messages"]]
    for message, text in zip(messages, shown, strict=True):
        content = message["content"]
        for block in [{"text": content}] if isinstance(content, str) else content:
            assert block.get("text", "") in text
            assert f'<tool_result tool_call_id="{block.get("tool_use_id")}">\nr\n' in text or "tool_use_id" not in block
            assert '<tool_call>{"name":"read","arguments":{"a":1}}</tool_call>' in text or "input" not in block


@settings(max_examples=200 * SCALE)
@given(document=documents, policy=policies)
def test_the_tools_line_is_only_on_the_latest_user_turn(document, policy):
    done = normalized(document, policy)
    if done.body is None:
        return
    messages = json.loads(done.body)["messages"]
    users = [message["content"] for message in messages if message["role"] == "user"]
    announced = [text for text in users if text.startswith(f"{LINE}\n\n")]
    wanted = "tools" in document and document.get("tool_choice") != "none" and users
    if not wanted or users[-1].lstrip().startswith("<tool_result"):
        assert users == [] or not users[-1].startswith(f"{LINE}\n\n")
    else:
        assert announced[-1] is users[-1]
    # A history may contain the line itself; the target adds no second one.
    held = json.dumps(document["messages"]).count(json.dumps(LINE)[1:-1])
    assert sum(text.startswith(LINE) for text in users) <= held + 1


TAG = re.compile(r"</?tool_(?:call|result)|<\|tool_", re.IGNORECASE)


@settings(max_examples=300 * SCALE)
@given(output=st.lists(st.one_of(st.sampled_from(SPICES), st.text(max_size=8)), min_size=1, max_size=4).map("".join))
def test_tool_output_cannot_forge_tags_and_rules_detect_raw_ones(output):
    history = [{"role": "user", "content": "go"}, said(call("a", "read")), answered("a", output)]
    done = normalized({"messages": history, "tools": TOOLS}, None)
    shown = json.loads(done.body)["messages"][2]["content"]
    opening, closing = '<tool_result tool_call_id="a">\n', "\n</tool_result>"
    assert shown.startswith(opening)
    assert shown.endswith(closing)
    inner = shown.removeprefix(opening).removesuffix(closing)
    assert TAG.search(inner) is None
    naive = json.loads(done.body)
    naive["messages"][2]["content"] = f"{opening}{output}{closing}"
    found = [violation.rule for violation in validate(naive, TARGET) if violation.severity == "hard"]
    assert found == (["CAS-09"] if TAG.search(output) else [])
    assert ("wrapper_broken" in {fix.code for fix in done.fixes}) == bool(TAG.search(output))
