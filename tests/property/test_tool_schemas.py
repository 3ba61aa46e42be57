"""A tool's schema that is rewritten for a provider takes every object that it took before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reknit.pipeline.targets.schemas import COMBINATORS, WRAPPER, accepts_objects, is_plain, object_schema

NAMES = ("a", "b", "c", "kind")
OPENAI = COMBINATORS | {"enum", "not"}
VALUES = st.one_of(
    st.sampled_from([0, 1, True, False, None, 1.5, "x", "yy", [], [1], {}]),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0, "x", None]), max_size=2),
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
PLAIN = st.one_of(
    st.booleans(),
    st.just({}),
    st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]).map(lambda t: {"type": t}),
    st.just({"type": ["string", "null"], "description": "words"}),
    st.sampled_from([0, 1, True, "x"]).map(lambda value: {"const": value}),
    st.lists(st.sampled_from([0, 1, "x", None]), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.just({"type": "string", "minLength": 2}),
)
# A reference to the whole schema is one level below it, so that no value is read for ever.
LEAVES = st.one_of(PLAIN, st.just({"$ref": "#/$defs/other"}), st.just({"properties": {"a": {"$ref": "#"}}}))


def objects_of(inner):
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", ["object", "null"], "string"]),
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            "additionalProperties": st.one_of(st.booleans(), LEAVES),
            "patternProperties": st.just({"^k": {"type": "string"}}),
            "minProperties": st.just(1),
            "description": st.just("said"),
            "not": inner,
            "if": inner,
            "then": inner,
        },
    )


def combined(inner):
    some = st.lists(inner, min_size=1, max_size=3)
    more = st.fixed_dictionaries({}, optional={"anyOf": some, "oneOf": some, "allOf": some})
    return st.builds(lambda plain, joined: plain | joined, objects_of(inner), more)


SCHEMAS = st.recursive(LEAVES, combined, max_leaves=8)
TOOLS = st.builds(
    lambda schema, other: {**schema, "$defs": {"other": other}}, combined(SCHEMAS), st.one_of(PLAIN, objects_of(PLAIN))
)


def is_valid(schema, value):
    return Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("refused", [COMBINATORS, OPENAI])
@given(schema=TOOLS, values=st.lists(OBJECTS, min_size=3, max_size=8), other=VALUES)
def test_every_valid_call_stays_valid(refused, schema, values, other):
    written = object_schema(schema, refused)
    assert is_plain(written, refused)
    wraps = written["properties"].keys() == {WRAPPER} if "properties" in written else False
    assert wraps is not accepts_objects(schema)
    for value in values:
        if is_valid(schema, value):
            assert not wraps
            assert is_valid(written, value), (schema, written, value)
    if wraps and is_valid(schema, other):
        assert is_valid(written, {WRAPPER: other}), (schema, written, other)
