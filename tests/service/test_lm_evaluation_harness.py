"""lm-evaluation-harness, unchanged, against a running agent: its measurements equal the engine's own values.

The harness gets the address and a model name, nothing else: it takes the tokenizer from the endpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.providers.bundled import bundled_model_path
from edge.core.types import Message, Sampling, TaskItem
from edge.core.worker import EngineWorker, Priority
from edge.inference.llamacpp import LlamaCppBackend
from edge.tasks.practice import FAMILIES
from tests.worlds.agent_process import agent_process
from tests.worlds.environments import environment

pytestmark = pytest.mark.long  # installs the harness in an environment of its own
REQUIREMENTS = Path(__file__).with_name("lm_eval_requirements.txt")
TIMEOUT_S = 240
MAX_TOKENS = 200
SEED = 5
BOXED = re.compile(r"boxed\{([^}]*)\}")

ARITH = {
    "task": "edge_arith",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": MAX_TOKENS, "temperature": 0.0},
    "filter_list": [
        {
            "name": "boxed",
            "filter": [{"function": "regex", "regex_pattern": BOXED.pattern}, {"function": "take_first"}],
        }
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
SCIENCE = {
    "task": "edge_science",
    "output_type": "multiple_choice",
    "doc_to_text": "{{prompt}}",
    "doc_to_choice": "{{options}}",
    "doc_to_target": "{{gold}}",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


@dataclass(frozen=True)
class Evaluated:
    """Results of the harness: its metrics and its notes for each item."""

    metrics: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]


def evaluate(
    folder: Path, model: str, arguments: str, task: Mapping[str, Any], items: Sequence[Mapping[str, Any]], *more: str
) -> Evaluated:
    """Run one task over these items in a new folder. The harness installs itself at the first use and never asks a hub."""
    folder.mkdir()
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    about = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}},
        "test_split": "test",
    }
    (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump({**about, **task}))
    python = environment("lm-eval", REQUIREMENTS, sees_ours=True) / "bin" / "python"
    command = [str(python), "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", str(task["task"])]
    where = ["--include_path", str(folder), "--output_path", str(folder / "found"), "--log_samples", *more]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, *where], env={**environ, **offline}, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return _found(folder / "found", str(task["task"]))


def _found(folder: Path, task: str) -> Evaluated:
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob("samples_*.jsonl")
    noted = [json.loads(line) for line in samples.read_text().splitlines()]
    return Evaluated(json.loads(results.read_text())["results"][task], sorted(noted, key=lambda sample: int(sample["doc_id"])))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An `edge-agent run` that serves only, with its embedded coordinator."""
    with agent_process(tmp_path_factory.mktemp("agent") / "state", "--no-learn", "--json") as url:
        yield url


@pytest.fixture
async def engine() -> AsyncIterator[LlamaCppBackend]:
    """The same model, without an agent around it."""
    worker = EngineWorker()
    backend = LlamaCppBackend(bundled_model_path("nano-edge"), worker, n_threads=1)
    yield backend
    await backend.aclose()
    worker.close()


def items(family: str, count: int, levels: dict[int, float]) -> list[TaskItem]:
    return list(islice(FAMILIES[family].stream(SEED, "test", levels), count))


async def test_generated_answers_and_accuracy_equal_the_engines_own(url: str, engine: LlamaCppBackend, tmp_path: Path) -> None:
    asked = items("arith", 10, {1: 1.0, 3: 1.0})
    found = await asyncio.to_thread(
        evaluate,
        tmp_path / "arith",
        "local-chat-completions",
        f"model=edge-local,base_url={url}/v1/chat/completions,num_concurrent=2",
        ARITH,
        [{"question": item.question, "answer": item.answer} for item in asked],
        "--apply_chat_template",
    )
    own = [await _boxed(engine, item) for item in asked]
    assert [sample["filtered_resps"][0] for sample in found.samples] == own
    right = sum(answer == item.answer for answer, item in zip(own, asked, strict=True)) / len(asked)
    assert 0.0 < right < 1.0
    assert found.metrics["exact_match,boxed"] == pytest.approx(right)


async def _boxed(engine: LlamaCppBackend, item: TaskItem) -> str:
    sampling = Sampling(temperature=0.0, max_tokens=MAX_TOKENS, suppress_help=True)
    group = await engine.sample_group([Message("user", item.question)], sampling, [0], Priority.SERVING)
    text = group.responses[0].text
    answer = BOXED.search(text.partition("</think>")[2])
    return answer.group(1) if answer else "[invalid]"


async def test_log_likelihoods_and_choices_equal_the_engines_own(url: str, engine: LlamaCppBackend, tmp_path: Path) -> None:
    asked = [_choice_of(item) for item in items("science", 8, {1: 1.0})]
    arguments = f"model=edge,base_url={url}/v1/completions,max_length=1024"
    found = await asyncio.to_thread(evaluate, tmp_path / "science", "local-completions", arguments, SCIENCE, asked)
    own = [[await _likelihood(engine, item["prompt"], option) for option in item["options"]] for item in asked]
    for mine, theirs in zip(own, _likelihoods(found), strict=True):
        assert [likelihood for likelihood, _ in theirs] == pytest.approx([likelihood for likelihood, _ in mine], abs=1e-3)
        assert [greedy for _, greedy in theirs] == [greedy for _, greedy in mine]
    assert any(greedy for row in own for _, greedy in row)
    picked = [max(range(len(row)), key=lambda at: row[at][0]) for row in own]
    right = sum(at == item["gold"] for at, item in zip(picked, asked, strict=True)) / len(asked)
    assert found.metrics["acc,none"] == pytest.approx(right)


def _choice_of(item: TaskItem) -> dict[str, Any]:
    """The question as the model was trained to read it, up to where its answer begins."""
    prompt = f"<|im_start|>user\n{item.question}<|im_end|>\n<|im_start|>assistant\n<answer>\\boxed{{"
    return {"prompt": prompt, "options": list(item.options), "gold": "ABCDEFGH".index(item.answer)}


async def _likelihood(engine: LlamaCppBackend, prompt: str, option: str) -> tuple[float, bool]:
    """The log-likelihood of an option after a prompt, fed token by token as in a rollout; and whether it is the greedy choice."""
    before, whole = engine.text_tokens(prompt), engine.text_tokens(prompt + option)
    continuation = whole[len(before) :]
    read = (await engine.read(whole))[len(before) :]
    assert sum(token.logprob or 0.0 for token in read) == pytest.approx(sum(await engine.score(before, continuation)), abs=0.05)
    return sum(token.logprob or 0.0 for token in read), all(token.greedy for token in read)


def _likelihoods(found: Evaluated) -> list[list[tuple[float, bool]]]:
    return [[(float(value), greedy == "True") for ((value, greedy),) in sample["resps"]] for sample in found.samples]
