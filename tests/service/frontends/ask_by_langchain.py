"""What an application with LangChain gets from an endpoint: `python ask_by_langchain.py URL`, JSON on stdout."""

import json
import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Sum(BaseModel):
    """What is asked for in a form."""

    sum: int
    text: str


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def failure(model: ChatOpenAI, said: object) -> str:
    """The class of the error that a request ends with."""
    try:
        model.invoke(said)
    except Exception as error:
        return type(error).__name__
    return "none"


url = sys.argv[1]
options = {"api_key": "none", "max_retries": 0, "timeout": 60}
chat = ChatOpenAI(model="edge", base_url=f"{url}/v1", **options)
by_messages = ChatAnthropic(model="edge", base_url=url, max_tokens=64, **options)
bound, asked = chat.bind_tools([weather]), HumanMessage("What is the weather in Bern?")
called = bound.invoke([asked])
results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
chunks = list(chat.stream("What is 1 + 1?"))
print(
    json.dumps(
        {
            "local": chat.invoke("What is 1 + 1?").content,
            "cloud": chat.invoke("What is 4 + 1?").content,
            "streamed": "".join(chunk.content for chunk in chunks),
            "pieces": len(chunks),
            "usage": chat.invoke("What is 1 + 1?").usage_metadata["total_tokens"],
            "form": chat.with_structured_output(Sum).invoke("What is 1 + 1?").model_dump(),
            "calls": [[call["name"], call["args"]] for call in called.tool_calls],
            "after_calls": bound.invoke([asked, called, *results]).content,
            "by_messages": by_messages.invoke("What is 1 + 1?").content,
            "too_long": failure(chat, "word " * 5000),
            "unknown_model": failure(ChatOpenAI(model="gpt-5", base_url=f"{url}/v1", **options), "Hello"),
            "no_server": failure(ChatOpenAI(model="edge", base_url="http://127.0.0.1:9/v1", **options), "Hello"),
        }
    )
)
