"""Redaction: tokens of a root, text that is not one, whole values, markers, roots and state."""

import hashlib

import pytest
from filter_runs import fed, in_halves, most_held
from reader_results import refusal

from reknit.pipeline.text.redaction import SOURCE_ROOTS, Redactor


def redacted(text, **options):
    return fed(Redactor(**options), [text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see /opt/windsurf, then", "see …, then"),
        ("is it /opt/windsurf/bin?", "is it …?"),
        ("in /opt/windsurf/src: three", "in …: three"),
        ("/root/WindsurfAPI/a.js:12:5 error", "… error"),
        ("(/opt/windsurf/a) [/opt/windsurf/b] `/opt/windsurf/c`", "(…) […] `…`"),
        ("PATH=/opt/windsurf:/root/WindsurfAPI:/usr/bin", "PATH=…:…:/usr/bin"),
        ("在/opt/windsurf目录", "在…目录"),
        ("/opt/windsurf/文件.txt。然后", "…。然后"),
        ("file:///opt/windsurf/x y", "file://… y"),
        ("C:/home\\user/projects\\workspace-A1/x", "…"),
        ("C:\\\\home\\\\user\\\\projects\\\\workspace-x1\\\\src", "…"),
        ('{\\"path\\":\\"/opt/windsurf/x\\"}', '{\\"path\\":\\"…\\"}'),
        ("line one\\n/opt/windsurf/x", "line one\\n…"),
        ("/opt/windsurf", "…"),
        ("/opt/windsurf.", "…."),
        ("/opt/windsurf...", "…..."),
        ("in /tmp//windsurf-workspace", "in …"),
    ],
)
def test_a_token_is_replaced_whole(text, expected):
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "/opt/windsurf-next/bin",
        "/opt/windsurf_old",
        "/opt/windsurf2",
        "/opt/windsurf.d/x",
        "/srv/opt/windsurf",
        "~/opt/windsurf",
        "../opt/windsurf",
        "http://host/opt/windsurf/x",
        "/OPT/WINDSURF",
        "/home/user/projects/workspace-/x",
        "/home/user/projects/workspace-" + "a" * 65,
        "opt/windsurf",
        "windsurf and WindsurfAPI",
    ],
)
def test_text_that_is_not_a_token_of_a_root_stays(text):
    assert redacted(text) == text


def test_an_id_has_up_to_64_characters():
    assert redacted("/home/user/projects/workspace-" + "aZ09" * 16 + "/x") == "…"


def test_the_roots_of_the_source_are_the_default():
    assert len(SOURCE_ROOTS) == 4
    for root in SOURCE_ROOTS:
        assert redacted(f"in {root.replace('{id}', 'a1')}/x now") == "in … now"


def test_roots_and_marker_are_configurable():
    options = {"roots": ["/srv/agent-{id}/home dir", "D:\\work"], "marker": "«…»"}
    assert redacted("at /srv/agent-7/home dir/x, D:\\work\\y, /opt/windsurf", **options) == "at «…», «…», /opt/windsurf"
    assert redacted("/opt/windsurf", roots=[]) == "/opt/windsurf"


@pytest.mark.parametrize("marker", [*"a7_/\\ $*`'\u202e\ud800", "", "<workspace>", "[x]", "a b", "…\n", "…" * 17])
def test_a_marker_with_a_meaning_is_rejected(marker):
    assert refusal(Redactor, marker=marker) == ("bad_marker", "")


@pytest.mark.parametrize("root", ["", "/", "//", "C:\\", "opt/windsurf", "/a\nb"])
def test_a_root_that_is_not_an_absolute_path_is_rejected(root):
    assert refusal(Redactor, roots=[root]) == ("bad_root", "")


def test_values_are_redacted_at_any_depth_and_in_keys():
    value = {"a": [{"b": "/opt/windsurf/x"}], "/opt/windsurf": 1.5, "n": None, "t": True, "s": "/usr"}
    assert Redactor().value(value) == {"a": [{"b": "…"}], "…": 1.5, "n": None, "t": True, "s": "/usr"}
    assert Redactor().value(None) is None


def test_a_value_with_endless_nesting_is_the_callers_fault():
    value = []
    for _ in range(100_000):
        value = [value]
    assert refusal(Redactor().value, value) == ("nested_too_deeply", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"p": "/opt/windsurf/x", "n": 1.0}', '{"p": "…", "n": 1.0}'),
        ('{"p":"\\u002fopt\\/windsurf"}', '{"p":"…"}'),
        ('{"p":"a\\n/opt/windsurf/b\\nc"}', '{"p":"a\\n…\\nc"}'),
        ('{"p":"\\ud83d /opt/windsurf"}', '{"p":"\\ud83d …"}'),
        ('{"p":"\\x /opt/windsurf"}', '{"p":"\\x /opt/windsurf"}'),
        ('{"p":"\\n é", "n":12345678901234567890}', '{"p":"\\n é", "n":12345678901234567890}'),
    ],
)
def test_json_text_is_redacted_in_its_strings(text, expected):
    assert Redactor().json(text) == expected


def test_a_value_between_pieces_does_not_affect_the_stream():
    redactor = Redactor()
    assert redactor.feed("see /opt/wind") == "see "
    assert redactor.value(["/opt/windsurf"]) == ["…"]
    assert redactor.feed("surf/x ok") == "… ok"


def test_changes_are_counted_with_digests():
    redactor = Redactor()
    redactor.feed("/opt/windsurf/a /opt/windsurf/a /opt/windsurf.")
    redactor.flush()
    digests = [hashlib.sha256(f'"{path}"'.encode()).hexdigest()[:16] for path in ("/opt/windsurf/a", "/opt/windsurf")]
    found = redactor.take_changes()
    assert [(one.kind, one.before, one.after, count) for one, count in found.items()] == [
        ("path_redacted", digests[0], "…", 2),
        ("path_redacted", digests[1], "…", 1),
    ]
    assert redactor.take_changes() == {}


def test_state_can_be_loaded_into_another_redactor():
    text = "a\ud83d /opt/windsurf/bin. C:\\opt\\windsurf\\x /home/user/projects/workspace-a1b2!"
    for shown, other in in_halves(Redactor, text):
        assert shown == "a\ud83d …. … …!"
        assert sum(other.take_changes().values()) == 3


def test_a_flush_begins_a_new_text():
    redactor = Redactor()
    assert fed(redactor, "x") == "x"
    assert fed(redactor, ["/opt/windsurf"]) == "…"


@pytest.mark.parametrize("unit", ["/", "\\", "/home/user/projects/workspace-", "/opt/windsurf", " ", "\x00", "C:"])
def test_held_back_text_is_bounded(unit):
    redactor = Redactor()
    # A token that continues is replaced, not held.
    assert most_held(redactor, (unit * 20_000)[:20_000]) <= 150 or unit == "/opt/windsurf"
    assert len(redactor.save()) < 1_000 or unit == "/opt/windsurf"


def test_an_endless_path_is_not_stored():
    redactor = Redactor()
    assert redactor.feed("/opt/windsurf/") == ""
    for _ in range(100):
        assert redactor.feed("x" * 100_000) == ""
    assert len(redactor.save()) < 5_000
    assert redactor.feed(" end") == "… end"


def test_ten_megabytes_in_one_line_and_many_pieces_are_fast():
    line = "word /opt/wind " * 700_000
    assert redacted(line) == line
    assert fed(Redactor(), "/opt/windsurf/b and " * 10_000) == "… and " * 10_000
