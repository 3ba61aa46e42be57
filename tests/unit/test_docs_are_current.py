"""The pages under docs/ match the catalogues and examples, every code has its anchor, and links resolve."""

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from reknit.pipeline.cli.offline import all_pages, explain_command
from reknit.pipeline.config import load_config
from reknit.pipeline.engine.partition import Phase
from reknit.pipeline.explain.documents import place_of
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.streams.recovery import TABLE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = all_pages()
FENCED = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


def anchors(text):
    """Return the anchors of a page's headings, as GitHub and others generate them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_current(page):
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page], "run `make docs`"


def test_each_target_has_a_page_and_no_other_exists():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages == {
        "README.md",
        "capacity.md",
        "protocol.md",
        "testing.md",
        "feeding.md",
        "consuming.md",
        "integrations.md",
        "items.md",
        "length.md",
        "data.md",
        "deploy.md",
        "diff.md",
        "operating.md",
        "replay.md",
        "screens.md",
        "security.md",
        "shadow.md",
        "transcripts.md",
        "broken-sessions.md",
        "serve.md",
        "viewer.md",
        "start/gateway.md",
        "start/library.md",
        "start/topics.md",
        "tutorials/broken-session.md",
        "tutorials/fleet.md",
        "tutorials/gateway.md",
        "tutorials/items.md",
        "tutorials/shadow.md",
        "tutorials/upgrade.md",
        "concepts/exactly-once.md",
        "concepts/history.md",
        "concepts/ledger.md",
        "concepts/recording.md",
        *PAGES,
    }
    assert all(f"({page})" in (DOCS / "README.md").read_text("utf-8") for page in pages - {"README.md"})
    assert set(PAGES) == {
        "fixes.md",
        "acts.md",
        "healing.md",
        "configuration.md",
        "native.md",
        "refusals.md",
        "shares.md",
        "streams.md",
        "works-with.md",
        "reference/cli.md",
        "reference/errors.md",
        "reference/library.md",
        "reference/metrics.md",
        "reference/topics.md",
        *(f"rules/{target}.md" for target in TARGETS),
    }


def test_the_anchor_of_each_code_resolves():
    found = {page: anchors(text) for page, text in PAGES.items()}
    places = {code: place_of(code).partition("#") for code in (*FIXES, *RULES)}
    assert {code: place for code, place in places.items() if found[place[0]].count(place[2]) != 1} == {}


def test_a_page_holds_each_example_whole():
    for page, text in PAGES.items():
        fences = [fence for fence in FENCED.findall(text) if fence[1] == "text"]
        headings = [anchor for anchor in anchors(text) if anchor in {code.lower() for code in (*FIXES, *RULES)}]
        assert len(fences) == len(headings), page
        assert all("\x00" not in body for _, _, body in fences)


@pytest.mark.parametrize("path", [*DOCS.rglob("*.md"), *ROOT.glob("*.md")], ids=lambda path: path.name)
def test_links_resolve(path):
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = link.partition("#")
        if "://" in link:
            continue
        there = (path.parent / place).resolve() if place else path
        assert there.exists(), link
        assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), link


def test_the_target_of_the_page_is_the_one_that_is_tested():
    shown = next(
        body for _, kind, body in FENCED.findall((DOCS / "testing.md").read_text("utf-8")) if "HouseCli" in body
    )
    tested = ast.parse((ROOT / "tests" / "unit" / "test_testing_own_target.py").read_text("utf-8"))
    tested.body = [node for node in tested.body if not is_preamble(node)]
    assert ast.unparse(ast.parse(shown)) == ast.unparse(tested)


def test_each_alert_has_a_runbook():
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8"))
    sections = (DOCS / "operating.md").read_text("utf-8").split("\n### ")[1:]
    parts = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    told = {text.split("\n")[0]: re.findall(r"^- \*\*(\w+):\*\* \S", text, re.MULTILINE) for text in sections}
    assert told == dict.fromkeys(alerts, parts)


def test_the_settings_on_the_security_page_are_accepted(tmp_path):
    (toml,) = (body for _, kind, body in FENCED.findall((DOCS / "security.md").read_text("utf-8")) if kind == "toml")
    (tmp_path / "reknit.toml").write_text(toml, encoding="utf-8")
    assert load_config(tmp_path / "reknit.toml", {}).kafka.security_protocol == "SASL_SSL"


def test_the_diagram_shows_every_transition_of_the_table_or_its_text_names_it():
    (diagram,) = (body for _, kind, body in FENCED.findall(PAGES["streams.md"]) if kind == "mermaid")
    drawn = {
        (before, after, words)
        for before, after, told in re.findall(r"^ +(\w+) --> (\w+): (.+)$", diagram, re.MULTILINE)
        for words in told.split("<br/>")
    }
    everywhere = dict(re.findall(r"\*([^*]+)\* leads to `(\w+)`", PAGES["streams.md"]))
    assert everywhere == {
        "message started": "open",
        "complete message, another one": "promoted",
        "end of the run": "idle",
    }
    moves = {(before, after, given) for (before, given), (after, _) in TABLE.items() if before is not after}
    assert drawn == {move for move in moves if move[2] not in everywhere}
    assert all(after == everywhere[given] for _, after, given in moves if given in everywhere)


def test_the_diagram_of_a_partition_has_the_changes_of_phase_of_the_protocol():
    # tests/simulation/test_phases.py compares the table of the protocol with the engine.
    phases = "|".join(phase.value for phase in Phase)
    page = (DOCS / "concepts" / "exactly-once.md").read_text("utf-8")
    drawn = re.findall(rf"^    ({phases}) --> ({phases}): ", page, re.MULTILINE)
    protocol = (DOCS / "protocol.md").read_text("utf-8")
    listed = re.findall(rf"^\| ({phases}) \| .+? \| ({phases}) \|", protocol, re.MULTILINE)
    assert len(drawn) == len(set(drawn)) > 3
    assert set(drawn) == {(before, after) for before, after in listed if before != after}


def is_preamble(node):
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def test_writing_removes_the_pages_of_removed_targets(tmp_path):
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "gone.md").write_text("gone")
    (tmp_path / "testing.md").write_text("by hand")
    done = CliRunner().invoke(explain_command, ["--write", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "")
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert written == {*PAGES, "testing.md"}
