"""A LangChain agent continues a conversation in which a tool call never got its result.

Needs langchain, langchain-anthropic and ANTHROPIC_API_KEY.
"""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage

from reknit.integrations.langchain import RepairMiddleware

# The state of a thread whose process ended while the tool ran.
HISTORY = [
    HumanMessage("What is in the archive?"),
    AIMessage("I will look.", tool_calls=[{"name": "list_files", "args": {"path": "/archive"}, "id": "toolu_1"}]),
    HumanMessage("Are you still there?"),
]

agent = create_agent(
    ChatAnthropic(model="claude-sonnet-4-5", max_retries=0),
    middleware=[
        RepairMiddleware("anthropic"),  # without this line, the request is refused
    ],
)
print(agent.invoke({"messages": HISTORY})["messages"][-1].text)
