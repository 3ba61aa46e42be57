"""Agents of LangChain: a job is a line of stdin, its outcome a line of stdout (``clients/framework_runs``)."""

import json
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk, HumanMessage, messages_from_dict, messages_to_dict
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MOST_TOKENS = 4096
THINKING_TOKENS = 2048


def model(job):
    """Return the chat model of the job's API, with reasoning where the API has it."""
    if job["target"] == "anthropic":
        thinking = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
        return ChatAnthropic(
            model=job["model"], base_url=job["url"], api_key="k", max_tokens=MOST_TOKENS, thinking=thinking
        )
    own = {"model": job["model"], "base_url": f"{job['url']}/v1", "api_key": "k"}
    if job["target"] == "openai-chat":
        return ChatOpenAI(**own, **job["parameters"])
    return ChatOpenAI(
        **own,
        use_responses_api=True,
        output_version="responses/v1",
        store=False,
        include=["reasoning.encrypted_content"],
        reasoning={"summary": "auto"},
    )


def prompt(job):
    if not job["image"]:
        return HumanMessage(job["prompt"])
    image = {"type": "image", "base64": job["image"], "mime_type": "image/png"}
    return HumanMessage([{"type": "text", "text": job["prompt"]}, image])


def outcome_of(job):
    outcome = {"text": "", "calls": [], "messages": [], "error": ""}

    @tool
    def read_file(path: str) -> str:
        """Read a file."""
        outcome["calls"].append(path)
        return Path(path).read_text(encoding="utf-8")

    agent = create_agent(model(job), [read_file])
    try:
        given = {"messages": [*messages_from_dict(job["messages"]), prompt(job)]}
        for mode, part in agent.stream(given, stream_mode=["messages", "values"]):
            if mode == "values":
                outcome["messages"] = messages_to_dict(part["messages"])
            elif isinstance(part[0], AIMessageChunk):
                outcome["text"] += part[0].text
    except Exception as error:  # noqa: BLE001  whatever it raises is the outcome
        outcome["error"] = f"{type(error).__name__}: {error}"
    return outcome


for line in sys.stdin:
    sys.stdout.write(f"{json.dumps(outcome_of(json.loads(line)))}\n")
    sys.stdout.flush()
