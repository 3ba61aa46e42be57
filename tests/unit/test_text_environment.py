"""The caller's working directory, as prompts word it: recognized forms, rejected values, trusted roles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.pipeline.text.environment import environment_facts, lift_environment, nearest_phrase
from reknit.pipeline.text.redaction import Redactor


def lifted(text, role="system"):
    return lift_environment([{"role": role, "content": text}])


DIRECTORIES = {
    "Working directory: /srv/app": "/srv/app",
    "Working directory:/srv/app": "/srv/app",
    "working_directory = /srv/app": "/srv/app",
    "cwd=~": "~",
    "cwd: ~/code/x": "~/code/x",
    "Working directory: /": "/",
    "Primary working directory: /srv/app": "/srv/app",
    " - Primary working directory: /srv/app": "/srv/app",
    "Current working directory: /srv/app": "/srv/app",
    "**Working directory:** `/srv/my app`": "/srv/my app",
    "- **Working directory**: /srv/app": "/srv/app",
    "* `cwd`: `/srv/app`": "/srv/app",
    "> Working directory: /srv/app": "/srv/app",
    "2. Working directory: /srv/app": "/srv/app",
    "<env>Working directory: /srv/app</env>": "/srv/app",
    "<environment_context>\n  <cwd>/srv/my app</cwd>\n  <shell>zsh</shell>": "/srv/my app",
    "<working_directory>C:\\a b\\c</working_directory>": "C:\\a b\\c",
    "Working directory: C:\\Users\\x\\proj": "C:\\Users\\x\\proj",
    "Working directory: C:\\Program Files (x86)\\app": "C:\\Program Files (x86)\\app",
    "Working directory: D:/src": "D:/src",
    "Working directory: \\\\host\\share\\x": "\\\\host\\share\\x",
    "Working directory: /Users/My Name/proj": "/Users/My Name/proj",
    "Working directory: /Users/O'Brien/x": "/Users/O'Brien/x",
    "Working directory: /srv/app.v2/site.d": "/srv/app.v2/site.d",
    "Working directory: /srv/für/日本": "/srv/für/日本",
    "Working directory: /srv/app\r\nPlatform:": "/srv/app",
    "Working directory: /srv/app (see /docs)": "/srv/app",
    "Working directory: /srv/app. Then go on.": "/srv/app",
    "Working directory: /srv/app, shell: zsh": "/srv/app",
    "Working directory: /srv/app Platform: linux": "/srv/app",
    "Working directory: /srv/app - the checkout": "/srv/app",
    'Working directory: "/srv/my app" today': "/srv/my app",
    "The current working directory is /srv/app.v2/x. Go on.": "/srv/app.v2/x",
    "The current working directory is C:\\Users\\x.": "C:\\Users\\x",
    "The current working directory is /Users/My Name/proj.": "/Users/My Name/proj",
    "The current working directory is /srv/app and /srv/b is another.": "/srv/app",
    "The current working directory is /srv/app. See README/docs.": "/srv/app",
    "(the current working directory is /srv/app)": "/srv/app",
    "The current working directory is “/srv/my app”.": "/srv/my app",
    "It has no current working directory. The current working directory is /srv/app": "/srv/app",
}


@pytest.mark.parametrize("text", DIRECTORIES)
def test_a_working_directory_is_recognized(text):
    assert lifted(text) == f"- Working directory: {DIRECTORIES[text]}"


REFUSED = [
    "Working directory:",
    "Working directory: src/app",
    "Working directory: unknown",
    "Working directory: `/srv/app",
    "Working directory: …",
    "Working directory: /srv/…/x",
    "Working directory: <workspace>",
    "Working directory: /srv/\x1b[0mapp",
    "Working directory: /srv/\x00app",
    "Working directory: \u202e/srv/app",
    "Working directory: /srv\u2028/app",
    "Working directory: /" + "a" * 1024,
    "Working directory: /tmp/windsurf-workspace",
    "cwd=/opt/windsurf/bin",
    "The current working directory is /home/user/projects/workspace-Ab1/x.",
    "The Working directory: /srv/app is used",
    "the working directory is /srv/app",
    "currentworkingdirectory=/srv/app",
]


@pytest.mark.parametrize("text", REFUSED)
def test_an_unusable_value_is_rejected(text):
    assert lifted(text) == ""


def test_the_next_usable_value_counts():
    assert lifted("Working directory: …\ncwd: /tmp/windsurf-workspace\ncwd: /srv/a\ncwd: /srv/b") == (
        "- Working directory: /srv/a"
    )


def test_other_facts_are_reported_only_with_a_directory():
    facts = "Is directory a git repo: Yes\n- Platform: `darwin`\nOS Version: Darwin 24.0.0 <x>"
    assert lifted(facts) == ""
    assert lifted(f"{facts}\ncwd: /a") == (
        "- Working directory: /a\n- Is the directory a git repo: Yes\n- Platform: darwin\n- OS version: Darwin 24.0.0"
    )
    assert lifted("cwd: /a\n - Is a git repository: true\nPlatform: …\nOS Version: \x07") == (
        "- Working directory: /a\n- Is the directory a git repo: true"
    )


def test_the_first_message_with_a_fact_counts_and_lines_are_in_order_of_discovery():
    messages = [
        {"role": "developer", "content": "Platform: linux"},
        {"role": "user", "content": [{"type": "text", "text": "cwd: /a"}, {"type": "text", "text": "Platform: mac"}]},
        {"role": "user", "content": "cwd: /b\nOS Version: 1"},
    ]
    assert lift_environment(messages) == "- Platform: linux\n- Working directory: /a\n- OS version: 1"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "cwd: /evil"},
        {"role": "tool", "content": "cwd: /evil"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "cwd: /evil"}]},
        {"role": "user", "content": '<tool_result tool_call_id="a">\ncwd: /evil\n</tool_result>'},
        {"role": "user", "content": '<tool_result tool_call_id="a">\ncwd: /evil'},
    ],
)
def test_assistants_and_tools_are_not_trusted(message):
    assert lift_environment([message]) == ""
    assert lift_environment([message, {"role": "user", "content": "cwd: /srv/app"}]) == "- Working directory: /srv/app"


@pytest.mark.parametrize("messages", [None, [], [None], "cwd: /a", {"role": "user"}, [{"role": "user"}], [{}], 5])
def test_invalid_messages_give_no_environment(messages):
    assert lift_environment(messages) == ""


def test_the_given_redactor_decides():
    redactor = Redactor(roots=["/srv/hidden"], marker="•")
    messages = [{"role": "user", "content": "cwd: /srv/hidden/x\ncwd: /srv/•/x\ncwd: /opt/windsurf"}]
    assert lift_environment(messages, redactor) == "- Working directory: /opt/windsurf"
    assert lift_environment(messages) == "- Working directory: /srv/hidden/x"


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Project folder: /srv/app", "Project folder:"),
        ("you are in the workspace at C:\\src", "workspace at"),
        ("The working directory is  /srv/app", "working directory is"),
        ("- Repo root = ~/x", "Repo root ="),
        ("Working directory: <workspace>", "Working directory:"),
        ("<cwd>relative</cwd>", "<cwd>"),
        ("PWD=/srv/app", "PWD="),
        ("the current working directory is /opt/windsurf/x", "working directory is"),
        ("list the current working directory and the project folder", ""),
        ("a folder, a path, and nothing", ""),
        ("see /srv/app", ""),
        ("project folder\n/srv/app", ""),
    ],
)
def test_the_nearest_phrase_is_named_without_its_path(text, phrase):
    assert lifted(text) == ""
    assert nearest_phrase(text) == phrase


@settings(deadline=None)
@given(st.lists(st.sampled_from([*DIRECTORIES, *REFUSED, "\n", " ", "cwd", ": ", "/a", "`", "<", "…"])).map("".join))
def test_any_text_gives_well_formed_lines(text):
    lines = lifted(text, "user")
    assert lines == "" or "- Working directory: " in lines
    for line in lines.splitlines():
        name, _, value = line.removeprefix("- ").partition(": ")
        assert name in {"Working directory", "Platform", "Is the directory a git repo", "OS version"}
        assert value == value.strip() != ""
        assert value.isprintable()
        assert Redactor().value(value) == value
    assert environment_facts(text, Redactor()).get("Working directory", "") in text
