"""The examples of `reknit.integrations`, with the real frameworks: refused without the middleware, accepted with it.

Each runs in the framework's own environment, against a provider on the loopback address.
"""

import json

import pytest
from frameworks.environments import ROOT, needs, run
from loopback import provider

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


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_accepted_only_with_the_middleware(name, tmp_path):
    file, words = CASES[name]
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
    assert found == {file: 1 for file, _ in CASES.values()}


def test_each_middleware_is_shorter_than_eighty_lines():
    for name in CASES:
        path = ROOT / "pipeline" / "integrations" / f"{name.replace('-', '_')}.py"
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.parametrize("name", NAMES)
def test_histories_keep_their_objects_and_types(name):
    done = run(name, ROOT / "tests" / "frameworks" / name / "check.py", LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr


def test_environments_pin_every_version():
    for path in (ROOT / "tests" / "frameworks").glob("*/requirements.txt"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert all("==" in line for line in lines if not line.startswith("#"))
