"""For any input, readers return turns or raise an InputError; and a history reads like its messages one by one."""

import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.history.readers.message import UNDECIDED
from reknit.pipeline.history.readers.shapes import SHAPES, read, read_message, read_next
from reknit.pipeline.model import Turn

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0.5, -1.0, 1e3]),
    st.text(alphabet=st.characters(exclude_categories=()), max_size=6),
    st.sampled_from(['{"a": 1}', '{"a": ', "user", "text", "\ud83d", "\ude00", "data:image/png;base64,AAAA"]),
)
KEYS = re.findall(
    r"\w+",
    "role content type text id name input tool_use_id tool_calls tool_call_id function arguments args message_id "
    "message redact_message toolUse toolUseId toolResult json image source bytes format reasoningContent thinking "
    "signature cache_control issuer incomplete image_url url refusal reasoning_content is_error status messages "
    "system tools params model uuid parentUuid isSidechain function_call custom file cachePoint document "
    "parts call_id output phase",
)
TYPES = re.findall(
    r"[\w.]+",
    "text image document thinking redacted_thinking tool_use tool_result image_url refusal file function custom "
    "server_tool_use message user assistant reknit.unknown input_text output_text input_image reasoning function_call",
)
ROLES = ("user", "assistant", "system", "developer", "tool", "function", "model", "human")


def objects(values):
    known = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
    return st.one_of(
        st.dictionaries(st.text(max_size=3), values, max_size=3),
        known,
        st.builds(lambda given, kind: given | {"type": kind}, known, st.sampled_from(TYPES)),
        st.builds(lambda given, role: given | {"role": role}, known, st.sampled_from(ROLES)),
    )


values = st.recursive(scalars, lambda inner: st.one_of(st.lists(inner, max_size=4), objects(inner)), max_leaves=20)
blocks = st.builds(lambda given, kind: given | {"type": kind}, objects(values), st.sampled_from(TYPES))
messages = st.builds(
    lambda rest, role, content: rest | {"role": role, "content": content},
    objects(values),
    st.sampled_from(ROLES),
    st.one_of(values, st.lists(blocks, max_size=3)),
)


def attempt(function, *arguments, **options):
    """Return the result and None, or None and the InputError; any other exception is a failure."""
    try:
        return function(*arguments, **options), None
    except InputError as error:
        return None, error


@given(st.one_of(values, st.lists(messages, max_size=3)), st.sampled_from((*SHAPES, "auto")))
@settings(max_examples=300, deadline=None)
def test_any_json_gives_turns_or_an_input_error(value, source):
    result, error = attempt(read, value, source)
    if error is not None:
        assert error.code
        assert error.message
        return
    assert all(isinstance(turn, Turn) for turn in result.conversation.turns)
    assert all(fix.code in FIXES for fix in result.fixes)
    # Everything read can be stored: nothing in it is half a surrogate pair or broken JSON.
    msgspec.json.decode(msgspec.json.encode(result.conversation))


@given(st.binary(max_size=60), st.sampled_from((*SHAPES, "auto")))
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_turns_or_an_input_error(data, source):
    result, error = attempt(read, data, source)
    assert (result is None) != (error is None)


@given(st.lists(messages, max_size=4), st.sampled_from(("auto", "anthropic", "openai-chat", "bedrock-converse")))
@settings(max_examples=300, deadline=None)
def test_a_history_reads_like_its_messages_one_by_one(history, source):
    result, error = attempt(read, history, source)
    if error is not None and error.code == "unknown_shape":
        # Only a history that is given as a whole is refused for what most of it is.
        assert source == "auto"
        return
    turns, fixes, decided = [], [], UNDECIDED
    for index, message in enumerate(history):
        found, its_error = attempt(read_next, message, index=index, source=source, decided=decided)
        if its_error is not None:
            assert error is not None
            assert (its_error.code, its_error.path) == (error.code, error.path)
            return
        turns += found[0]
        fixes += found[1]
        decided = found[2]
    assert error is None
    assert (list(result.conversation.turns), list(result.fixes)) == (turns, fixes)
    assert [turn.index for turn in turns] == list(range(len(history)))
    document = read({"messages": history, "max_tokens": 1, "x": 2}, source)
    assert document.conversation.turns == result.conversation.turns


@given(messages, st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_every_block_has_a_path_inside_its_message(message, index):
    found, error = attempt(read_message, message, index=index)
    roots = tuple(f"{root}.{index}" for root in ("messages", "input", "contents"))
    if error is not None:
        assert error.path == "" or error.path.startswith(roots)
        return
    (turn,), fixes = found
    if turn.paths is not None:
        assert len(turn.paths) == len(turn.blocks)
        assert all(path.startswith(roots) for path in turn.paths)
    assert all(fix.path.startswith(roots) for fix in fixes)
