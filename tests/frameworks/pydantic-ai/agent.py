"""Agents of pydantic-ai: a job is a line of stdin, its outcome a line of stdout (``clients/framework_runs``)."""

import asyncio
import base64
import json
import sys
from pathlib import Path

from pydantic_ai import Agent, AgentRunResultEvent, BinaryContent
from pydantic_ai.messages import ModelMessagesTypeAdapter, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

MOST_TOKENS = 4096
THINKING_TOKENS = 2048


def model(job):
    """Return the model of the job's API and its settings, with reasoning where the API has it."""
    if job["target"] == "anthropic":
        thinking = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
        provider = AnthropicProvider(api_key="k", base_url=job["url"])
        settings = AnthropicModelSettings(max_tokens=MOST_TOKENS, anthropic_thinking=thinking)
        return AnthropicModel(job["model"], provider=provider), settings
    provider = OpenAIProvider(api_key="k", base_url=f"{job['url']}/v1")
    if job["target"] == "openai-chat":
        return OpenAIChatModel(job["model"], provider=provider), job["parameters"]
    settings = OpenAIResponsesModelSettings(openai_store=False, openai_reasoning_summary="auto")
    return OpenAIResponsesModel(job["model"], provider=provider), settings


def prompt(job):
    if not job["image"]:
        return job["prompt"]
    return [job["prompt"], BinaryContent(base64.b64decode(job["image"]), media_type="image/png")]


async def run(agent, job, outcome):
    """Run the agent, and write into the outcome whatever comes."""
    history = ModelMessagesTypeAdapter.validate_python(job["messages"])
    async with agent.run_stream_events(prompt(job), message_history=history) as events:
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    outcome["text"] += text
                case AgentRunResultEvent(result=result):
                    outcome["messages"] = json.loads(result.all_messages_json())


def outcome_of(job):
    outcome = {"text": "", "calls": [], "messages": [], "error": ""}
    chosen, settings = model(job)
    agent = Agent(chosen, model_settings=settings)

    @agent.tool_plain
    def read_file(path: str) -> str:
        """Read a file."""
        outcome["calls"].append(path)
        return Path(path).read_text(encoding="utf-8")

    try:
        asyncio.run(run(agent, job, outcome))
    except Exception as error:  # noqa: BLE001  whatever it raises is the outcome
        outcome["error"] = f"{type(error).__name__}: {error}"
    return outcome


for line in sys.stdin:
    sys.stdout.write(f"{json.dumps(outcome_of(json.loads(line)))}\n")
    sys.stdout.flush()
