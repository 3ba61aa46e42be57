"""Generated runs in the format of the Claude CLI: the final screen follows from the way the run was generated.

Messages stream in the order of old versions (all complete messages at the end, with a placeholder for blank texts) or
of new ones (each before its block's stop, blank texts left out). Starts are repeated, stops are lost. A message is
cut off and another replaces it, streamed or not, repeating a part of what was confirmed. A run ends without a result
and another one begins in the same pipe.
"""

import json

from claude_lines import INIT, block_delta, block_start, end, finish, result, start, stop, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_runs import items_of

from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import ItemCompleted, ItemRetracted, TurnStop
from reknit.topics.reducer import reduce

# The content of a block: a text, or the input of a call.
WORDS = st.sampled_from(["", "\n\n", " ", "Yes.", "Yes. And more.", "No.", "(no content)"])
SAID = st.one_of(st.tuples(st.just("text"), WORDS), st.tuples(st.just("call"), st.sampled_from(["1", "2"])))
CUTS = st.lists(st.integers(1, 6), max_size=20)


class Program:
    """Writes a run line by line, and records the screen that must result from it."""

    def __init__(self, draw):
        self.draw = draw
        self.lines = []
        self.expected = []
        self.incomplete = []
        self.retracted = 0
        self.calls = 0
        self.messages = 0
        # For the open attempt: the places in `expected` that it has confirmed, and the text of it that was cut off.
        self.confirmed = None
        self.cut = ""

    def flip(self):
        return self.draw(st.booleans())

    def block(self, said):
        kind, words = said
        if kind == "text":
            return {"type": "text", "text": words}
        self.calls += 1
        return {"type": "tool_use", "id": f"t{self.calls}", "name": "Bash", "input": {"n": words}}

    def started(self, index, block):
        empty = block | ({"text": ""} if block["type"] == "text" else {"input": {}})
        self.lines += [block_start(index, empty)] * self.draw(st.integers(1, 2))

    def streamed(self, index, block):
        words = block.get("text") or json.dumps(block.get("input"))
        key, kind = ("text", "text_delta") if block["type"] == "text" else ("partial_json", "input_json_delta")
        self.started(index, block)
        if block["type"] != "text" or block["text"]:
            self.lines.append(block_delta(index, type=kind, **{key: words}))

    def stopped(self, index):
        if self.flip():
            self.lines.append(end(index))

    def whole(self, block, said):
        self.lines.append(whole(f"m{self.messages}", block))
        if self.confirmed is not None:
            self.confirmed.append(len(self.expected))
        self.expected.append(said)

    def replaced(self):
        """Begin to stream another message: unconfirmed blocks of the open attempt are dropped."""
        self.retracted += bool(self.cut.strip())
        self.confirmed, self.cut = None, ""

    def message(self):
        """Stream a message completely, possibly without its stops, or cut it off."""
        self.replaced()
        self.messages += 1
        self.confirmed = []
        self.lines.append(start(f"m{self.messages}"))
        said = self.draw(st.lists(SAID, min_size=1, max_size=4))
        blocks = [self.block(one) for one in said]
        if self.flip():
            self.as_old_versions(said, blocks)
        else:
            self.as_new_versions(said, blocks)
        if self.flip():
            self.cut = self.draw(st.sampled_from(["", " ", "It was"]))
            self.streamed(len(blocks), {"type": "text", "text": self.cut})
        elif self.flip():
            self.lines.append(finish("end_turn"))
            if self.flip():
                self.lines.append(stop())
                self.confirmed = None

    def as_old_versions(self, said, blocks):
        for index, block in enumerate(blocks):
            self.streamed(index, block)
            self.stopped(index)
        for one, block in zip(said, blocks, strict=True):
            blank = one[0] == "text" and not one[1].strip()
            told = block | {"text": "(no content)"} if blank else block
            self.whole(told, ("text", "(no content)") if blank else one)

    def as_new_versions(self, said, blocks):
        for index, (one, block) in enumerate(zip(said, blocks, strict=True)):
            self.streamed(index, block)
            if one[0] == "call" or one[1].strip():
                self.whole(block, one)
            self.stopped(index)

    def silent(self):
        """Write a message that does not stream; it replaces an open attempt."""
        before = [self.expected[place] for place in self.confirmed or ()]
        again = self.draw(st.lists(st.sampled_from(before), max_size=3)) if before else []
        said = [one for one in [*again, *self.draw(st.lists(SAID, max_size=2))] if one[0] == "call" or one[1].strip()]
        if not said:
            return
        places = self.confirmed or []
        self.replaced()
        self.messages += 1
        for one in said:
            place = next((place for place in places if self.expected[place] == one), None)
            if place is not None:
                places.remove(place)
                self.expected[place] = ("gone", "")
            self.whole(self.block(one), one)

    def ended(self):
        """Keep what is open, because a result arrives or another run begins in the same pipe."""
        if self.cut.strip():
            self.incomplete.append(self.cut)
        self.confirmed, self.cut = None, ""

    def result(self):
        self.ended()
        self.lines.append(result())

    def init(self):
        self.ended()
        self.lines.append(INIT)


@st.composite
def programs(draw):
    program = Program(draw)
    steps = [program.message, program.message, program.silent, program.result, program.init]
    for step in draw(st.lists(st.sampled_from(steps), min_size=1, max_size=6)):
        step()
    program.result()
    program.expected = [said for said in program.expected if said[0] != "gone"]
    return program


def said_on(view):
    return [
        ("text", entry.text)
        if entry.item_type == "text"
        else ("call", json.loads(bytes(entry.input) if entry.input else entry.text)["n"])
        for entry in view.blocks("text", "tool_use")
        if not entry.incomplete
    ]


@settings(max_examples=500)
@given(programs(), CUTS)
def test_each_confirmed_block_is_on_the_screen_once(program, cuts):
    view = reduce(items_of("claude-cli", program.lines, sizes=cuts))
    assert said_on(view) == program.expected
    assert [entry.text for entry in view.entries if entry.incomplete] == program.incomplete
    assert all(entry.done for entry in view.entries)


@settings(max_examples=300)
@given(programs())
def test_the_log_equals_the_screen_without_leftovers_of_a_killed_run(program):
    recovery = Recovery("claude-cli")
    items = [item for line in program.lines for item in recovery.feed(json.dumps(line).encode())]
    turns = recovery.take_finished()
    recovery.end_run("end of input")
    assert recovery.take_finished() == []  # the result was the end
    blocks = [block for turn in turns for block in json.loads(turn.message)["content"]]
    said = [("text", block["text"]) if block["type"] == "text" else ("call", block["input"]["n"]) for block in blocks]
    entries = [entry for entry in reduce(items).entries if entry.item_type in {"text", "tool_use"}]
    kept = [entry for entry in entries if not entry.doubtful and entry.reason != "next run"]
    assert said == [
        ("text", entry.text)
        if entry.item_type == "text"
        else ("call", json.loads(entry.text or bytes(entry.input))["n"])
        for entry in kept
    ]


@settings(max_examples=300)
@given(programs())
def test_a_turn_that_a_result_ends_is_cut_only_if_something_of_it_was_cut(program):
    recovery = Recovery("claude-cli")
    for line in program.lines:
        items = recovery.feed(json.dumps(line).encode())
        left = [item for item in items if isinstance(item, ItemCompleted) and item.incomplete]
        if line["type"] == "result":
            assert [item.incomplete for item in items if isinstance(item, TurnStop)] in ([], [bool(left)])


@settings(max_examples=200)
@given(programs())
def test_another_run_in_the_pipe_retracts_only_blank_items(program):
    recovery = Recovery("claude-cli")
    seen = []
    for line in program.lines:
        new = recovery.feed(json.dumps(line).encode())
        if line["type"] == "system":
            gone = {item.item_id for item in new if isinstance(item, ItemRetracted)}
            texts = [entry.text for entry in reduce(seen).entries if entry.item_id in gone]
            assert [text for text in texts if text.strip()] == []
        seen += new
