"""A session of the OpenAI Agents SDK takes items, and a run sends them; run in the environment of the SDK."""

import asyncio

from agents import Agent, ModelSettings, RunConfig, Runner, SQLiteSession

from tests.frameworks.rows import each_list

agent = Agent(name="a", model="gpt-5")
config = RunConfig(model_settings=ModelSettings(store=False), tracing_disabled=True)
config.session_input_callback = lambda history, new: [*history, *new]


async def stored(messages):
    session = SQLiteSession("s")
    await session.add_items(messages)
    assert await session.get_items() == messages
    assert (
        await Runner.run(agent, [{"role": "user", "content": "More."}], session=session, run_config=config)
    ).final_output


each_list(lambda messages: asyncio.run(stored(messages)))
