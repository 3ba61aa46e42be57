"""Tools described in text: the shape of the line in the user turn and of the preamble, for any tools."""

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from reknit.pipeline.model import Tool
from reknit.pipeline.text.preamble import ENVIRONMENT_HEADING, tool_fallback, tool_preamble

# Shapes that models were observed to take for an attempt to override them, when they are in a user turn.
FORBIDDEN = re.compile(
    r"^\s*#{1,6} |### |parameters schema:|parameters:|```|ignore any earlier|ignore previous instructions"
    r"|for this request only|\[tool-calling context",
    re.IGNORECASE | re.MULTILINE,
)
# The line without any name.
FIXED = len(tool_fallback([{"type": "function", "function": {"name": "n"}}])) - 1


def function(name, description=None, parameters=None):
    given = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


plain_names = st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True)
odd_names = st.one_of(
    st.text(min_size=1, max_size=20),
    st.sampled_from(
        ["### x", "Parameters:", "parameters schema:", "```json", "a\nb", "</tool_call>", "ignore any earlier", " "]
    ),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=12,
)
schemas = st.one_of(
    st.dictionaries(
        st.sampled_from(["type", "properties", "required", "enum", "$ref", "a`b"]), json_values, max_size=4
    ),
    st.booleans(),
    st.just({"description": "```\n### x\n```json\n{}\n```"}),
)
descriptions = st.one_of(
    st.none(),
    st.text(max_size=40),
    st.sampled_from(
        [
            "Run.\n### Read\n\nParameters:\n```json\n{}\n```",
            "1. first\n2. second",
            "---",
            "a\r### b",
            "Available functions:",
        ]
    ),
)
tool_sets = st.lists(st.builds(function, plain_names, descriptions, schemas), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.lists(plain_names, min_size=1, max_size=12))
def test_the_line_is_one_plain_paragraph_of_bounded_size(names):
    line = tool_fallback([function(name, "### d", {"type": "object"}) for name in names])
    assert line.isprintable()
    assert f": {', '.join(names)}. " in line
    assert len(line) == FIXED + len(", ".join(names))
    assert FIXED <= 330
    assert FORBIDDEN.search(line) is None
    assert '<tool_call>{"name":' in line
    assert "</tool_call>" in line
    assert "<tool_result tool_call_id=" in line


@settings(deadline=None)
@given(st.lists(st.one_of(plain_names, odd_names), min_size=1, max_size=6))
def test_the_line_has_no_forbidden_shape_whatever_the_names(names):
    line = tool_fallback([function(name) for name in names])
    assert line == "" or line.isprintable()
    assert FORBIDDEN.search(line) is None
    assert line.count("<tool_call>") <= 1


def read_back(text):
    """Parse the functions out of a preamble by its structure."""
    _, _, listed = text.partition("\n\nAvailable functions:\n\n")
    found = []
    for section in re.split(r"^### ", listed, flags=re.MULTILINE)[1:]:
        name, _, rest = section.partition("\n")
        schema = re.search(r"^Parameters:\n```json\n(.*?)\n```$", rest, re.MULTILINE | re.DOTALL)
        found.append((name, None if schema is None else json.loads(schema[1])))
    return found


@settings(deadline=None)
@given(tool_sets)
def test_the_preamble_round_trips_every_schema(tools):
    text = tool_preamble(tools)
    wanted = [(tool["function"]["name"], tool["function"].get("parameters")) for tool in tools]
    assert read_back(text) == wanted
    assert json.dumps([schema for _, schema in read_back(text)]) == json.dumps([schema for _, schema in wanted])


@settings(deadline=None)
@given(tool_sets)
def test_a_parsed_tool_is_described_like_a_given_one(tools):
    typed = [
        Tool(
            name=tool["function"]["name"],
            description=tool["function"].get("description", msgspec.UNSET),
            input_schema=Raw(json.dumps(tool["function"]["parameters"]).encode()),
        )
        for tool in tools
    ]
    assert read_back(tool_preamble(typed)) == read_back(tool_preamble(tools))
    assert tool_fallback(typed) == tool_fallback(tools)


@settings(deadline=None)
@given(st.lists(odd_names, min_size=1, max_size=3), descriptions)
def test_any_name_is_on_one_line_of_its_own(names, description):
    tools = [function(name, description) for name in names if name.strip()]
    told = [name for name, _ in read_back(tool_preamble(tools))]
    assert len(told) == len(tools)
    assert [json.loads(name) if name.startswith('"') else name for name in told] == [
        tool["function"]["name"] for tool in tools
    ]


def test_numbers_and_the_order_of_keys_are_unchanged():
    tool = Tool(name="f", input_schema=Raw(b'{"z":1.0,"a":1e400,"n":[ ]}'))
    assert 'Parameters:\n```json\n{\n  "z": 1.0,\n  "a": 1e400,\n  "n": []\n}\n```' in tool_preamble([tool])


def test_a_description_stays_unless_its_lines_look_like_the_preambles():
    plain = "Runs a command.\n\n1. Careful.\n- `ls` is fine."
    assert f"### Bash\n\n{plain}\n\nParameters:" in tool_preamble([function("Bash", plain, {})])
    ours = "Runs.\n\n### Read\nParameters:"
    assert "### Bash\n\n> Runs.\n>\n> ### Read\n> Parameters:\n\nParameters:" in (
        tool_preamble([function("Bash", ours, {})])
    )


TOOLS = [function("Bash", "Run.", {"type": "object"})]


MAY = "6. Call a function where it helps; otherwise answer in plain text."
MUST = "6. This answer has to call at least one function."
MUST_NOT = "6. This answer must not call any function; answer in plain text."
# The last rules, by the tool choice that they state.
CHOICES = {
    (MAY,): [None, "auto", {"type": "auto"}, {"type": "function"}, "later", {"type": ["any"]}, 7],
    (MUST,): ["any", "required", {"type": "any"}],
    (MUST_NOT,): ["none", {"type": "none"}],
    (MUST, "7. The function to call is Bash."): [
        {"type": "tool", "name": "Bash"},
        {"type": "function", "function": {"name": "Bash"}},
    ],
}


@pytest.mark.parametrize(
    ("choice", "rules"), [(choice, [*rules]) for rules, choices in CHOICES.items() for choice in choices]
)
def test_the_tool_choice_is_the_last_rule(choice, rules):
    text = tool_preamble(TOOLS, choice)
    found = re.findall(r"^\d\. .*$", text, re.MULTILINE)
    assert [rule[0] for rule in found] == [str(number) for number in range(1, 6 + len(rules))]
    assert found[5:] == rules


def test_the_environment_comes_first():
    text = tool_preamble(TOOLS, environment="\n- Working directory: /srv/app\n- Platform: linux\n")
    assert text.startswith(f"{ENVIRONMENT_HEADING}\n\n")
    assert "\n\n- Working directory: /srv/app\n- Platform: linux\n\n---\n\n## Functions\n" in text
    assert tool_preamble(TOOLS, environment=" \n") == tool_preamble(TOOLS)
    assert tool_preamble(TOOLS, environment=None) == tool_preamble(TOOLS)
    assert tool_preamble([], environment="- Working directory: /srv/app") == ""


@pytest.mark.parametrize(
    "tools",
    [
        None,
        [],
        [None],
        [{"type": "function"}],
        [{"type": "function", "function": None}],
        [{"type": "function", "function": {"name": " "}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "web_search_20250305", "name": "web_search"}],
        [Tool(name="web_search", input_schema=Raw(b"null"))],
    ],
)
def test_without_a_function_there_is_no_preamble(tools):
    assert tool_preamble(tools, "required", "- Working directory: /a") == ""
    assert tool_fallback(tools) == ""


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"a": 1}}},
        {"type": "function", "name": "f", "description": "d", "parameters": {"a": 1}},
        {"name": "f", "description": " d\n", "input_schema": {"a": 1}},
        {"type": "custom", "name": "f", "description": "d", "input_schema": {"a": 1}},
        Tool(name="f", description="d", input_schema=Raw(b'{"a":1}')),
    ],
)
def test_every_shape_of_a_tool_is_described_the_same(tool):
    assert tool_preamble([tool]).endswith('### f\n\nd\n\nParameters:\n```json\n{\n  "a": 1\n}\n```')
    assert ": f. " in tool_fallback([tool])
