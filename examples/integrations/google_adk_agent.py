"""An agent of Google's ADK continues a session in which one of two function calls never got its response.

Needs google-adk and GOOGLE_API_KEY.
"""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.genai import types

from reknit.integrations.google_adk import repair_contents

# The events of a session whose process ended while the second tool ran.
CALLS = [types.Part.from_function_call(name="list_files", args={"path": path}) for path in ("/archive", "/old")]
RESPONSE = types.Part.from_function_response(name="list_files", response={"files": ["old.txt"]})
HISTORY = [
    Event(author="user", content=types.UserContent("What is in the archive?")),
    Event(author="archivist", content=types.ModelContent(CALLS)),
    Event(author="archivist", content=types.UserContent(RESPONSE)),
]

agent = LlmAgent(
    name="archivist",
    model="gemini-2.5-flash",
    before_model_callback=repair_contents(),  # without this line, the request is refused
)


async def main() -> None:
    """Store the events, say something, and print the answer."""
    runner = InMemoryRunner(agent, app_name="archive")
    session = await runner.session_service.create_session(app_name="archive", user_id="me")
    for event in HISTORY:
        await runner.session_service.append_event(session, event)
    words = types.UserContent("Are you still there?")
    async for event in runner.run_async(user_id="me", session_id=session.id, new_message=words):
        if event.error_message:
            raise SystemExit(event.error_message)
        print(event.content.parts[0].text)


asyncio.run(main())
