"""All filters in a row: order, arguments, paths around removed text, state."""

from functools import partial

from filter_runs import fed, in_halves, shown

from reknit.pipeline.providers.cascade.stream.speech import OutputFilter
from reknit.pipeline.text.jsontext import ToolCall
from reknit.pipeline.text.tool_calls import Removed

CALL = '<tool_call>{"name":"Read","arguments":{"path":"/opt/windsurf/x","n":1.0}}</tool_call>'
READ = ToolCall("Read", '{"path":"…","n":1.0}')
TEXT = f"I am Cascade, in /opt/windsurf/bin. {CALL}Built by Windsurf"
SHOWN = ["I am claude-x, in …. ", READ, "Built by Anthropic"]


def test_text_is_output_before_the_call_that_follows_it():
    assert fed(OutputFilter("claude-x"), [TEXT]) == SHOWN
    one = OutputFilter("claude-x")
    assert one.feed(f"see /opt/wind{CALL}") == ["see /opt/wind", READ]
    assert one.feed(f"I am{CALL}Cascade") == ["I am", READ]
    assert one.flush() == ["Cascade"]


def test_removed_text_never_joins_a_path():
    outputs = fed(OutputFilter("claude-x"), ["in /opt/wind<tool_result>x</tool_result>surf/bin now"])
    assert shown(outputs) == "in … now"
    assert Removed("<tool_result>x</tool_result>", "echoed_result") in outputs


def test_options_reach_their_filters():
    one = OutputFilter(None, tools=["A"], roots=["/srv/x"], marker="··", limit=100)
    text = 'I am Cascade {"name":"B","arguments":{}} /srv/x /opt/windsurf '
    assert one.feed(text) == ['I am Cascade {"name":"B","arguments":{}} ·· /opt/windsurf ']


def test_changes_of_all_filters_are_combined():
    one = OutputFilter("claude-x")
    fed(one, [TEXT])
    assert sorted((change.kind, count) for change, count in one.take_changes().items()) == [
        ("identity_renamed", 1),
        ("identity_renamed", 1),
        ("path_redacted", 1),
        ("path_redacted", 1),
    ]
    assert one.take_changes() == {}


def test_state_can_be_loaded_into_another_filter():
    for outputs, _ in in_halves(partial(OutputFilter, "claude-x"), TEXT):
        assert [output for output in outputs if not isinstance(output, str)] == [READ]
        assert shown(outputs) == SHOWN[0] + SHOWN[2]
