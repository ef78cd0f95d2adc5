"""What an agent of the OpenAI Agents SDK gets from an endpoint: `python ask_by_agents.py URL`, JSON on stdout."""

import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

asked_for: list[str] = []


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    asked_for.append(city)
    return f"sunny in {city}"


set_tracing_disabled(disabled=True)
client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
found = {}
for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
    agent = Agent(name="helper", instructions="Help.", tools=[weather], model=kind(model="edge", openai_client=client))
    found[kind.__name__] = Runner.run_sync(agent, "What is the weather in Bern?", max_turns=3).final_output
print(json.dumps({**found, "asked_for": asked_for}))
