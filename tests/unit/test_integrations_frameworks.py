"""The examples of `reknit.integrations`, with the real frameworks: refused without the middleware, accepted with it.

Each runs in the framework's own environment, against a provider on the loopback address.
"""

import json
import re

import pytest
from frameworks import environments
from frameworks.environments import NAMES as ENVIRONMENTS
from frameworks.environments import ROOT, needs, requirements, run
from loopback import provider

from reknit.pipeline.explain.framework_versions import IN_CI

PAGE = ROOT / "docs" / "integrations.md"
EXAMPLES = ROOT / "examples" / "integrations"
CUT = "# without this line"
# The example of each environment, and the words of the refusal.
CASES = {
    "langchain": ("langchain_agent", "`tool_use` ids were found without `tool_result` blocks immediately after"),
    "pydantic-ai": ("pydantic_ai_agent", "String should match pattern '^[a-zA-Z0-9_-]+$'"),
    "openai-agents": ("openai_agents_run", "No tool output found for function call call_1."),
    "google-adk": ("google_adk_agent", "Please ensure that the number of function response parts is equal to"),
    "strands": ("strands_agent", "`tool_use` ids were found without `tool_result` blocks immediately after"),
    "litellm": ("litellm_call", "must be followed by tool messages responding to each 'tool_call_id'"),
}
NAMES = [pytest.param(name, marks=needs(name)) for name in CASES]
# Those of the SDKs, which the environment of the tests has.
SDK_CASES = (
    ("anthropic_sdk", "`tool_use` ids were found without `tool_result` blocks immediately after"),
    ("openai_sdk", "No tool output found for function call call_1."),
)


def ran(name, script):
    """Run a script against a provider; return the process and the bodies of the requests."""
    with provider() as (url, bodies):
        done = run(
            name,
            script,
            ANTHROPIC_API_KEY="k",
            ANTHROPIC_BASE_URL=url,
            GOOGLE_API_KEY="k",
            GOOGLE_GEMINI_BASE_URL=url,
            LITELLM_LOCAL_MODEL_COST_MAP="True",
            OPENAI_API_KEY="k",
            OPENAI_BASE_URL=f"{url}/v1",
        )
    return done, [json.loads(body) for body in bodies]


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        *(pytest.param(name, *CASES[name], marks=needs(name), id=name) for name in CASES),
        *(pytest.param("", *case, id=case[0]) for case in SDK_CASES),
    ],
)
def test_an_example_is_accepted_only_with_the_middleware(name, file, words, tmp_path):
    source = (EXAMPLES / f"{file}.py").read_text(encoding="utf-8")
    cut = tmp_path / f"{file}_cut.py"
    cut.write_text("".join(line for line in source.splitlines(keepends=True) if CUT not in line), encoding="utf-8")
    done, bodies = ran(name, cut)
    assert (done.returncode, len(bodies)) == (1, 1)
    assert words in done.stderr
    done, bodies = ran(name, EXAMPLES / f"{file}.py")
    assert (done.returncode, len(bodies)) == (0, 1), done.stderr
    assert done.stdout.strip().startswith("Hello")


def test_every_example_is_run_and_has_one_line_to_leave_out():
    found = {path.stem: path.read_text(encoding="utf-8").count(CUT) for path in EXAMPLES.glob("*.py")}
    assert found == {file: 1 for file, _ in (*CASES.values(), *SDK_CASES)}


def test_each_middleware_is_shorter_than_eighty_lines():
    for name in CASES:
        path = ROOT / "pipeline" / "integrations" / f"{name.replace('-', '_')}.py"
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.parametrize("name", NAMES)
def test_histories_keep_their_objects_and_types(name):
    done = run(name, ROOT / "tests" / "frameworks" / name / "check.py", LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr


def test_the_documented_versions_are_those_of_the_environments():
    pinned = {pin for name in ENVIRONMENTS for pin in requirements(name).items()}
    assert pinned >= {version for packages in IN_CI.values() for version in packages.items()}


def test_an_environment_is_used_only_as_its_requirements_are_now(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "PLACE", tmp_path)
    name = ENVIRONMENTS[0]
    assert "make frameworks" in environments.missing(name)
    (tmp_path / name).mkdir()
    stamp = tmp_path / name / "requirements.sha256"
    stamp.write_text("of other versions", encoding="utf-8")
    assert "make frameworks" in environments.missing(name)
    monkeypatch.setenv("REQUIRE_FRAMEWORKS", "1")
    with pytest.raises(RuntimeError, match="make frameworks"):
        needs(name)
    stamp.write_text(environments.digest(name), encoding="utf-8")
    assert environments.missing(name) == ""


# The heading of each snippet in the page, and its environment; the last one is of the SDKs, which CI has anyway.
HEADINGS = {
    "LangChain": "langchain",
    "pydantic-ai": "pydantic-ai",
    "OpenAI Agents SDK": "openai-agents",
    "Google ADK": "google-adk",
    "Strands": "strands",
    "LiteLLM": "litellm",
    "SDKs of Anthropic and OpenAI": "",
}
SNIPPET = re.compile(r"^## ([^\n]+)\n\n```python\n(.*?)```$", re.MULTILINE | re.DOTALL)


def test_every_integration_has_a_snippet():
    assert [heading for heading, _ in SNIPPET.findall(PAGE.read_text(encoding="utf-8"))] == list(HEADINGS)


@pytest.mark.parametrize("heading", [pytest.param(each, marks=needs(name)) for each, name in HEADINGS.items() if name])
def test_a_snippet_of_the_page_runs(heading, tmp_path):
    snippet = tmp_path / "snippet.py"
    snippet.write_text(dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))[heading], encoding="utf-8")
    done, bodies = ran(HEADINGS[heading], snippet)
    assert (done.returncode, bodies) == (0, []), done.stderr


def test_the_snippet_of_the_sdks_runs(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    names = {}
    exec(dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))["SDKs of Anthropic and OpenAI"], names)  # noqa: S102  our own page
    assert names["client"].api_key == "k"
