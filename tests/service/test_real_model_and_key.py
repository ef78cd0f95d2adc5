"""An instruct model of the Qwen family by name and an OpenAI-compatible cloud with a key, as in the README, with random weights and a
local server in their places."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import yaml
from aiohttp import web

from tests.worlds.agent_process import agent_process
from tests.worlds.tiny_gguf import TOOL_TEMPLATE, write_tiny_model
from tests.worlds.upstream_server import Upstream, completion, running_upstream
from tests.worlds.warm_commands import edge_agent

KEY, MODEL = "sk-a-key-of-somebody-s", "Qwen2.5-0.5B-Instruct-Q8_0"
QUESTION: Any = [{"role": "user", "content": "Where is the Matterhorn?"}]
PLACE = {"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}}, "required": ["place"]}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}}
TOOL: Any = {"type": "function", "function": {"name": "find", "parameters": PLACE}}
START_S = 60


async def cloud(request: web.Request) -> web.StreamResponse:
    """Answers in the form that is asked for, whole; 20 tokens in, 100 out."""
    body = await request.json()
    text = '{"place": "Zermatt"}' if "response_format" in body else "In Zermatt."
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return web.json_response(completion(choices=[choice], usage={"prompt_tokens": 20, "completion_tokens": 100}))


@asynccontextmanager
async def running_agent(folder: Path, upstream: Upstream, *more: str) -> AsyncIterator[tuple[openai.AsyncOpenAI, dict[str, str]]]:
    """`models pull`, a configuration, a limit of 0.001 USD a month, `run`; a client, and the environment of further commands."""
    state = str(folder / "state")
    environment = {"EDGE_AGENT_MODELS": str(folder / "models"), "OPENAI_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    write_tiny_model(folder / f"{MODEL}.gguf", prompt_form=None, chat_template=TOOL_TEMPLATE, context_length=4096)
    embedded = {
        "upstream": "openai_compatible",
        "base_url": upstream.base_url,
        "model": "gpt-4o-mini",
        "api_key_env": "OPENAI_API_KEY",
        "price_in_uusd_per_mtok": 150_000,  # at OpenAI's own address the published price is known
        "price_out_uusd_per_mtok": 600_000,
    }
    settings = {"coordinator": {"embedded": embedded}, "engine": {"threads": 1}, "model": {"context_tokens": 4096}}
    (folder / "cloud.yaml").write_text(yaml.safe_dump(settings))
    for words in (
        ("models", "pull", str(folder / f"{MODEL}.gguf")),
        ("budget", "limit", "--spend", "0.001", "--per", "month", "--state", state),
    ):
        code, _, err = await edge_agent(*words, **environment)
        assert code == 0, err
    words = ("--config", str(folder / "cloud.yaml"), "--model", MODEL, *more)
    with agent_process(folder / "state", *words, **environment) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield client, environment


async def test_real_model_and_key_answer_learn_and_stay_within_the_limit(tmp_path: Path) -> None:
    tasks = tmp_path / "my-questions.csv"
    tasks.write_text("question,answer\nWhere is the Matterhorn?,Zermatt\nWho runs the mill?,Ilka\n")
    small = ("--set", "learning.prompts_per_step=2", "--set", "learning.max_tokens=96")
    async with (
        running_upstream(cloud) as upstream,
        running_agent(tmp_path, upstream, "--tasks", str(tasks), *small) as (client, environment),
    ):
        chat: Any = client.chat.completions.create
        answer = await chat(model="edge-cloud", messages=QUESTION)
        assert (answer.choices[0].message.content, answer.edge["source"]) == ("In Zermatt.", "cloud")
        assert (answer.usage.total_tokens, answer.edge["spend_uusd"]) == (120, 20 * 0.15 + 100 * 0.6)
        assert upstream.headers[0]["Authorization"] == f"Bearer {KEY}"
        held = await chat(model="edge-cloud", messages=QUESTION, response_format=FORM)
        assert json.loads(held.choices[0].message.content) == {"place": "Zermatt"}
        assert FORM in [body.get("response_format") for body in upstream.bodies]

        local = await chat(model="edge-local", messages=QUESTION, response_format=FORM, seed=1, temperature=1)
        assert (local.edge["source"], local.choices[0].finish_reason) == ("local", "stop")
        assert len(json.loads(local.choices[0].message.content)["place"]) <= 12
        called = await chat(model="edge", messages=QUESTION, tools=[TOOL], tool_choice="required", seed=1, temperature=1)
        (call,) = called.choices[0].message.tool_calls[:1]
        assert (called.edge["source"], call.function.name) == ("local", "find")
        assert len(json.loads(call.function.arguments)["place"]) <= 12

        refused = None
        for number in range(20):
            question: Any = [{"role": "user", "content": f"Where is peak {number}?"}]
            try:
                await chat(model="edge-cloud", messages=question, max_tokens=100)
            except openai.APIStatusError as error:
                refused = error
                break
        assert refused is not None and "budget" in refused.message
        place = ("--state", str(tmp_path / "state"))
        async with asyncio.timeout(START_S):
            while (status := json.loads((await edge_agent("status", "--json", *place))[1]))["learning"]["steps_done"] < 2:
                await asyncio.sleep(0.5)
        device = status["budget"]["device"]
        assert (device["spend_uusd"], device["spend_period"]) == (63 * len(upstream.bodies), "month")
        assert device["spend_uusd"] <= device["spend_limit_uusd"] == 1000
        assert KEY not in (await edge_agent("outbox", *place, **environment))[1]
    written = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in written), "the key is in no file"
