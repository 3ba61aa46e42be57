"""A target as CONTRIBUTING says that one is added: a writer, rules, a line and vectors, and nothing else."""

import json
import subprocess
import sys
import textwrap

import pytest
from msgspec import structs

from reknit import Session, normalize, validate
from reknit.pipeline.errors import InputError
from reknit.pipeline.providers.openai_chat.writer import OPENAI_CHAT
from reknit.pipeline.registry import TARGETS, register, unregister
from reknit.testing import Kit, broken_histories, healthy_histories

# The two modules and the line that a person would write.
MODULE = textwrap.dedent(
    '''
    """The house's own gateway: a chat in OpenAI's shape that wants a user first and words in every user turn."""

    import msgspec
    from reknit.pipeline.registry import register
    from reknit.pipeline.rules.base import Catalogue
    from reknit.pipeline.options import Structure
    from reknit.pipeline.providers.openai.writer.parameters import chat_model
    from reknit.pipeline.providers.openai_chat.writer import OPENAI_CHAT

    CATALOGUE = Catalogue("house")
    ROLE = CATALOGUE.rule(
        "HOUSE-01", "hard", "{at}: unknown speaker {role}",
        summary="Every message has a role that the gateway knows", repair="name the role", source="the gateway's log",
    )
    EMPTY = CATALOGUE.rule(
        "HOUSE-02", "hard", "messages: nothing to answer",
        summary="There is a message", repair="insert a user turn", source="the gateway's log",
    )
    ROLES = ("system", "developer", "user", "assistant", "tool")


    def house_model(model):
        return msgspec.structs.replace(
            chat_model(model), structure=Structure(), joined_system=True, reasoning=False, user_blocks=frozenset()
        )


    HOUSE = msgspec.structs.replace(
        OPENAI_CHAT,
        name="house",
        tail_rule="HOUSE-02",
        tail_rules=frozenset({"HOUSE-02"}),
        models=house_model,
        owners=frozenset(),
    )


    class HouseRules:
        """The state is how many messages there were."""

        target = "house"

        def judge_head(self, head, model=None):
            return 0, []

        def judge_messages(self, state, messages):
            found = []
            for at, message in enumerate(msgspec.json.decode(b"[%b]" % messages), start=state):
                if message.get("role") not in ROLES:
                    found.append(ROLE.broken(f"messages.{at}.role", role=message.get("role")))
            return state + len(msgspec.json.decode(b"[%b]" % messages)), found

        def judge_end(self, state):
            return [] if state else [EMPTY.broken("messages")]

        def validate(self, body, model=None):
            messages = msgspec.json.decode(body).get("messages", [])
            state, found = self.judge_messages(0, msgspec.json.encode(messages)[1:-1])
            return [*found, *self.judge_end(state)]


    TARGET = register(HOUSE, HouseRules(), CATALOGUE.rules, shape="openai-chat")
    '''
)

# One body that breaks only the rule, and a near miss.
VECTORS = [
    ({"messages": [{"role": "narrator", "content": "x"}]}, ["HOUSE-01"]),
    ({"messages": [{"role": "user", "content": "x"}]}, []),
    ({"messages": []}, ["HOUSE-02"]),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, []),
]
BROKEN = [
    {"role": "user", "content": "Go"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "ls", "input": {}}]},
]


@pytest.fixture
def house():
    names = {}
    exec(compile(MODULE, "house_gateway.py", "exec"), names)  # noqa: S102  the module that a person would write
    yield names["TARGET"]
    unregister("house")


@pytest.fixture
def gateway(tmp_path):
    (tmp_path / "house_gateway.py").write_text(MODULE)
    return tmp_path


def checked(cwd, *arguments):
    case = json.dumps({"history": BROKEN, "to": "house", "fixes": ["result_synthesised"]})
    command = [sys.executable, "-m", "reknit", "test", *arguments]
    return subprocess.run(command, cwd=cwd, input=case, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("body", "broken"), VECTORS)
def test_its_rules_judge_its_vectors(house, body, broken):
    assert [violation.rule for violation in validate(body, "house")] == broken


def test_its_requests_are_written_and_judged_whole_and_turn_by_turn(house):
    whole = normalize(BROKEN, to="house")
    assert [fix.code for fix in whole.fixes] == ["result_synthesised"]
    assert [row["role"] for row in json.loads(whole.body)["messages"]] == ["user", "assistant", "tool"]
    session = Session(("house", "anthropic"))
    for message in BROKEN:
        session.append(message)
    assert session.request("house").body == whole.body
    assert Session.load(session.head(), []).request("house").body == whole.body


@pytest.mark.parametrize("sample", [*broken_histories(), *healthy_histories()], ids=lambda sample: sample.name)
def test_it_keeps_every_promise(house, sample):
    assert Kit("house").check(sample.history).body


def test_reknit_test_loads_the_module_that_registers_it(gateway):
    done = checked(gateway, "--load", "house_gateway")
    assert (done.returncode, json.loads(done.stdout)["passed"]) == (0, True), done.stderr
    assert checked(gateway).returncode == 2


def test_a_missing_module_cannot_be_loaded(tmp_path):
    done = checked(tmp_path, "--load", "house_gateway")
    assert (done.returncode, done.stdout) == (2, "")
    assert "module 'house_gateway' cannot be imported: No module named 'house_gateway'" in done.stderr


def test_a_kit_without_the_shape_of_a_body_does_not_skip_the_check(house):
    class Rules(type(house.rules)):
        target = "silent"

    register(structs.replace(OPENAI_CHAT, name="silent"), Rules())
    try:
        with pytest.raises(InputError, match="a body of target 'silent' can be read again is not known") as caught:
            Kit("silent")
        assert caught.value.code == "no_shape"
        assert Kit("silent", shape="openai-chat").shape == "openai-chat"
        assert Kit("silent", shape=None).shape is None
    finally:
        unregister("silent")


def test_every_target_has_rules_and_every_rule_set_a_target():
    named = {name: {t.writer.name, t.rules.target, t.catalogue.target} for name, t in TARGETS.items()}
    assert named == {name: {name} for name in TARGETS}
