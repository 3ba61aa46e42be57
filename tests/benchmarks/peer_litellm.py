"""LiteLLM's side of bench_core, run by a Python that has it: one JSON history in, then one measurement a line.

Started with the path of a request in OpenAI's chat shape. For each line on stdin it measures ``json.loads``,
``anthropic_messages_pt`` and ``json.dumps`` of that request and answers with the seconds of one call; the first line it
writes is the version. Imports nothing of ours but the stop watch.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # prices are of no interest here, and not to be fetched

from litellm.litellm_core_utils.prompt_templates.factory import anthropic_messages_pt
from measure import seconds_a_call


def main() -> None:
    """Answer until stdin ends."""
    request = Path(sys.argv[1]).read_bytes()

    def convert() -> bytes:
        body = json.loads(request)
        body["messages"] = anthropic_messages_pt(body["messages"], model=body["model"], llm_provider="anthropic")
        return json.dumps(body).encode()

    convert()
    sys.stdout.write(version("litellm") + "\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{seconds_a_call(convert)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
