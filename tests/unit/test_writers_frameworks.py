"""Messages that `convert` writes are loaded by the real frameworks, and sent to a server on the loopback address.

One process of each framework loads all samples, in the framework's own environment. Each has to send every text, call
and result that the written messages have; reasoning goes to its issuer only.
"""

import json

import pytest
from framework_cases import MARK, cases
from frameworks.environments import ROOT, needs, run
from loopback import provider

import reknit
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS
from reknit.pipeline.model import RedactedThinking, Thinking, Unknown

SCRIPTS = {
    "langchain": ("langchain", "load"),
    "pydantic-ai": ("pydantic-ai", "load"),
    "ag-ui": ("pydantic-ai", "load_ag_ui"),
    "openai-agents": ("openai-agents", "load"),
    "strands": ("strands", "load"),
    "otel-genai": ("opentelemetry", "load"),
}
# Marks in blocks that a framework does not send, by its own rules.
UNSENT = {
    # Only the last output of a call.
    "openai-agents": [("adk-events", "broken", "MARK-adk64")],
    # A tool's name that no provider takes.
    "strands": [("acp", "media", "MARK-acp43")],
}
SAMPLES = [case for case in cases() if "expect" in case]


def sent_marks(data, shape):
    """Return the marks that a framework has to send: those of everything that is no model's own reasoning or item."""
    found = read(data, WRITERS[shape].source).conversation
    blocks = [block for turn in found.turns for block in turn.blocks]
    return {
        mark
        for block in blocks
        if not isinstance(block, (Thinking, RedactedThinking, Unknown))
        for mark in MARK.findall(repr(block))
    }


@pytest.mark.parametrize("shape", [pytest.param(shape, marks=needs(SCRIPTS[shape][0])) for shape in SCRIPTS])
def test_the_framework_loads_and_sends_every_sample(shape):
    name, script = SCRIPTS[shape]
    done = [reknit.convert(case["text"], to=shape) for case in SAMPLES]
    with provider(refuses=False) as (url, bodies):
        loaded = run(
            name,
            ROOT / "tests" / "frameworks" / name / f"{script}.py",
            given="".join(json.dumps(each.messages) + "\n" for each in done),
            ANTHROPIC_API_KEY="k",
            ANTHROPIC_BASE_URL=url,
            OPENAI_API_KEY="k",
            OPENAI_BASE_URL=f"{url}/v1",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="span_only",
            OTEL_SEMCONV_STABILITY_OPT_IN="gen_ai_latest_experimental",
        )
    assert loaded.returncode == 0, loaded.stderr
    outcomes = [json.loads(line) for line in loaded.stdout.splitlines()]
    errors = [(case["case"], error) for case, error in zip(SAMPLES, outcomes, strict=False) if error]
    assert errors == [], loaded.stderr[-2000:]
    assert len(outcomes) == len(bodies) == len(done)
    lost = [
        (case["shape"], case["case"], mark)
        for case, each, body in zip(SAMPLES, done, bodies, strict=True)
        for mark in sorted(sent_marks(each.data, shape))
        if mark.encode() not in body
    ]
    assert lost == UNSENT.get(shape, [])
