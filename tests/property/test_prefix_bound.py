"""Reasoning that is bound to its prefix: a mock that signs prefixes is the oracle.

The mock signs each block of reasoning with a digest of all that came before it: the system prompt, the tools, the
earlier messages, and the earlier blocks of its own. It refuses a request with a signature of another prefix, as Claude
Fable 5.1 and later do (pydantic/pydantic-ai#7984).
"""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

import pytest
from build import call, result, said, text, user
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_runs import OPENED, processed, records, turn
from strategies import SCALE

from reknit.pipeline import Session
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import PROVIDER_REQUESTS

FABLE, LATER, OTHER = "claude-fable-5-1", "claude-sonnet-5-5-20260910", "claude-sonnet-4-5"
TOOL = {"name": "ls", "input_schema": {"type": "object"}}


def unmarked(value):
    """The value without cache breakpoints, which a provider does not count as a change."""
    if isinstance(value, list):
        return [unmarked(each) for each in value if not (isinstance(each, dict) and set(each) == {"cachePoint"})]
    if isinstance(value, dict):
        return {key: unmarked(each) for key, each in value.items() if key != "cache_control"}
    return value


def blocks_of(message):
    content = message["content"]
    return [text(content)] if isinstance(content, str) else content


def signature_in(block):
    if block.get("type") == "thinking":
        return block["signature"]
    return block["reasoningContent"]["reasoningText"]["signature"] if "reasoningContent" in block else None


class Mock:
    """A provider that signs prefixes."""

    def __init__(self, target="anthropic"):
        self.target = target
        self.issued = {}
        self.answers = 0

    @staticmethod
    def head(body):
        return [body.get("system"), body.get("tools"), body.get("toolConfig", {}).get("tools")]

    def prefixes(self, body):
        """Yield each block of a body with the digest of all before it."""
        sum_of_all = hashlib.sha256(json.dumps(unmarked(self.head(body)), sort_keys=True).encode())
        for message in body["messages"]:
            sum_of_all.update(message["role"].encode())
            for block in blocks_of(message):
                yield block, sum_of_all.hexdigest()
                sum_of_all.update(json.dumps(unmarked(block), sort_keys=True).encode())

    def refused(self, body):
        """The signatures of a body whose prefix is not the one under which they were issued."""
        found = [(signature_in(block), prefix) for block, prefix in self.prefixes(body)]
        return [signature for signature, prefix in found if signature in self.issued.keys() - {None}
                and self.issued[signature] != prefix]  # fmt: skip

    def kept(self, body):
        return [signature for block, _ in self.prefixes(body) if (signature := signature_in(block))]

    def answer(self, body, calls=(), *, twice=False):
        """An assistant turn, whose reasoning is signed for this body."""
        self.answers += 1
        blocks = []
        for part in range(1 + twice):
            name = f"sig_{self.answers}_{part}"
            blocks += [self.thought(name), self.words(f"a{self.answers}.{part}")]
        message = {"role": "assistant", "content": [*blocks, *map(self.call, calls)]}
        for block, prefix in self.prefixes({**body, "messages": [*body["messages"], message]}):
            if (signature := signature_in(block)) is not None and signature not in self.issued:
                self.issued[signature] = prefix
        return message

    def thought(self, signature):
        if self.target == "anthropic":
            return {"type": "thinking", "thinking": "hm", "signature": signature}
        return {"reasoningContent": {"reasoningText": {"text": "hm", "signature": signature}}}

    def words(self, words):
        return text(words) if self.target == "anthropic" else {"text": words}

    def call(self, name):
        if self.target == "anthropic":
            return call(name)
        return {"toolUse": {"toolUseId": name, "name": "ls", "input": {}}}

    def result(self, name, words):
        if self.target == "anthropic":
            return result(name, words)
        return {"toolResult": {"toolUseId": name, "content": [{"text": words}]}}


class Run:
    """A session that talks to the mock, step by step, as drawn."""

    def __init__(self, draw, target, policy=None, model=FABLE):
        self.draw = draw
        self.mock = Mock(target)
        self.segments = []
        self.history = []
        self.called = []
        self.session = Session([target], policy, model=model, params={"max_tokens": 100}, tools=[TOOL])
        self.lost = []

    def append(self, message):
        self.history.append(message)
        self.session.append(message)

    def say(self):
        words = self.draw(st.sampled_from([f"u{len(self.history)}", " "]))
        self.append({"role": "user", "content": [self.mock.words(f"u{len(self.history)}"), self.mock.words(words)]})

    def give_results(self):
        """Results of any calls so far: late, again, some of several, with or without words after them."""
        if not self.called:
            return
        names = self.draw(st.lists(st.sampled_from(self.called[-4:]), min_size=1, max_size=3))
        blocks = [self.mock.result(name, self.draw(st.sampled_from(["pending", "done"]))) for name in names]
        if self.draw(st.booleans()):
            blocks.append(self.mock.words("and"))
        self.append({"role": "user", "content": blocks})

    def ask(self):
        """Make a request, judge it, and mostly answer it."""
        done = self.session.request()
        if done.rejected:
            return
        body = json.loads(done.body)
        if self.session.model != OTHER and self.session.policy.reasoning != "keep":
            assert self.mock.refused(body) == []
        self.lost += [fix for fix in done.fixes if fix.code == "reasoning_foreign"]
        if self.draw(st.integers(0, 4)):
            names = [f"c{len(self.called) + at}" for at in range(self.draw(st.integers(0, 2)))]
            self.called += names
            self.append(self.mock.answer(body, names, twice=self.draw(st.booleans())))

    def rewind(self):
        count = self.draw(st.integers(0, len(self.history)))
        self.session.rewind(count)
        del self.history[count:]

    def restart(self):
        self.segments += self.session.take_segments(flush=self.draw(st.booleans()))
        self.session = Session.load(self.session.head(), [record for _, record in self.segments])

    def configure(self):
        change = self.draw(
            st.sampled_from(
                [
                    {"tools": [TOOL]},
                    {"tools": [TOOL, TOOL | {"name": "cat"}]},
                    {"system": "Be brief."},
                    {"system": None},
                    {"policy": {"missing_result": "drop"}},
                    {"policy": {"tail": "keep"}},
                    {"policy": {"orphan_result": "text", "late_result": "drop"}},
                    {"policy": {"reasoning": "strip"}},
                    {"policy": {"reasoning": "keep"}},
                    {"policy": {"mend": {"thinking_trailing": "observe", "blank_dropped": "observe"}}},
                    {"policy": {"fit": 60, "summary": "More came before."}},
                    {"targets": [self.mock.target, "openai-chat"]},
                    {"targets": [self.mock.target]},
                    {"policy": {}},
                    {"model": LATER},
                    {"model": OTHER},
                    {"model": FABLE},
                    {"params": {"max_tokens": 200}},
                ]
            )
        )
        self.session.configure(**change)

    def compact(self):
        """Replace the history by a summary and its end, by all of it, or by all of it with one message changed."""
        how = self.draw(st.sampled_from(["compact", "same", "changed"]))
        if how == "compact":
            start = self.draw(st.integers(0, len(self.history)))
            self.history = [{"role": "user", "content": [self.mock.words("summary")]}, *self.history[start:]]
        elif how == "changed" and self.history:
            at = self.draw(st.integers(0, len(self.history) - 1))
            if self.history[at]["role"] == "user":
                self.history[at] = {"role": "user", "content": [self.mock.words("changed")]}
        self.session.replace(self.history or [{"role": "user", "content": [self.mock.words("q")]}])
        self.history = self.history or [{"role": "user", "content": [self.mock.words("q")]}]


TALK = ("say", "say", "give_results", "give_results", "ask", "ask", "ask")


@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse"])
@settings(max_examples=120 * SCALE, deadline=None)
@given(data=st.data())
def test_no_body_has_a_signature_of_another_prefix(target, data):
    run = Run(data.draw, target)
    run.say()
    steps = st.sampled_from((*TALK, "rewind", "restart", "configure", "compact"))
    for step in data.draw(st.lists(steps, min_size=4, max_size=25)):
        getattr(run, step)()


@pytest.mark.parametrize("policy", [{}, {"missing_result": "drop"}, {"late_result": "turn"}, {"late_result": "drop"}])
@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse"])
@settings(max_examples=60 * SCALE, deadline=None)
@given(data=st.data())
def test_what_the_model_has_answered_stays_so_that_no_reasoning_is_lost(target, policy, data):
    """Where only the agent and the model speak, nothing before an answer changes, whatever comes late."""
    run = Run(data.draw, target, policy)
    run.say()
    for step in data.draw(st.lists(st.sampled_from((*TALK, "restart", "rewind")), min_size=4, max_size=25)):
        getattr(run, step)()
    assert run.lost == []


class Log:
    """The records of one session, made as a stage publishes requests and the mock answers them."""

    def __init__(self, draw):
        self.draw = draw
        self.mock = Mock()
        self.stage = TurnsStage(Defaults())
        self.stage.use_format(3)
        self.events, self.called, self.messages, self.bodies = [], [], 0, []
        self.add(OPENED | {"model": FABLE, "tools": [TOOL]})

    def add(self, event):
        made = self.stage.process(records([event], first=len(self.events)))
        self.events.append(event)
        for output in made.outputs:
            if output.topic == PROVIDER_REQUESTS:
                self.bodies.append(json.loads(output.value))
                assert self.mock.refused(self.bodies[-1]) == []

    def append(self, message):
        self.add(turn(message))
        self.messages += 1

    def say(self):
        self.append(user(f"u{self.messages}"))

    def answer(self):
        """Answer the last request; an answer to an earlier one would come before it in the log."""
        if not self.bodies:
            return
        names = [f"c{len(self.called) + at}" for at in range(self.draw(st.integers(0, 2)))]
        self.called += names
        self.append(self.mock.answer(self.bodies[-1], names))
        self.bodies = []

    def give_results(self):
        if self.called:
            names = self.draw(st.lists(st.sampled_from(self.called[-4:]), min_size=1, max_size=3))
            self.append(user(*(result(name, self.draw(st.sampled_from(["pending", "done"]))) for name in names)))

    def want(self):
        self.add({"type": "request.wanted"})

    def rewind(self):
        count = self.draw(st.integers(0, self.messages))
        self.add({"type": "history.rewound", "to": count})
        self.messages, self.bodies = count, []

    def reopen(self):
        change = st.sampled_from([{"tools": []}, {"tools": [TOOL]}, {"system": "Be brief."}, {"params": None}])
        self.add({"type": "session.opened"} | self.draw(change))

    def restore(self):
        """The agent compacts its history."""
        self.add({"type": "history.restored", "messages": [user("summary"), said("I see."), user("go on")]})
        self.messages, self.bodies = 3, []


@settings(max_examples=60 * SCALE, deadline=None)
@given(data=st.data())
def test_records_give_no_signature_of_another_prefix_in_any_batches_and_after_restarts(data):
    log = Log(data.draw)
    log.say()
    steps = ("say", "answer", "answer", "answer", "give_results", "give_results", "want", "rewind", "reopen", "restore")
    for step in data.draw(st.lists(st.sampled_from(steps), min_size=4, max_size=20)):
        getattr(log, step)()
    of_all = records(log.events)
    edges = sorted({0, len(of_all), *data.draw(st.lists(st.integers(0, len(of_all)), max_size=4))})
    batches = [of_all[start:end] for start, end in pairwise(edges)]
    single, *_ = processed(lambda: TurnsStage(Defaults()), [[record] for record in of_all])
    for restart in (None, "changelog"):
        outputs, *_ = processed(lambda: TurnsStage(Defaults()), batches, restart)
        assert [each for each in outputs if each.topic == PROVIDER_REQUESTS] == [
            each for each in single if each.topic == PROVIDER_REQUESTS
        ]
