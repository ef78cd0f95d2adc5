"""What an update of the chosen model takes here: made-up tokens through the learner that `run` would use. Keeps and writes nothing.

The batch grows from short responses to the tasks' own, so that a large model on a slow machine still gives a number within the time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edge.core.errors import EdgeError

if TYPE_CHECKING:
    from edge.cli.measure import Say
    from edge.config.schema import AgentConfig
    from edge.training.learner import Learner
    from edge.training.memory import MicroBatch

BUDGET_S = 10.0
"""No further batch is begun after so many seconds."""
_SHORTEST_TOKENS, _PROMPT_TOKENS = 16, 32


async def training_tokens_per_s(config: AgentConfig, path: Path, response_tokens: float, say: Say) -> float | None:
    """Tokens/s of an update, prompts counted once a group; None where nothing trains this model here, which `say` is told."""
    from edge.app import choose_engine, open_learner
    from edge.core.worker import EngineWorker

    if choose_engine(config, path).trains_in_torch and importlib.util.find_spec("torch") is None:
        return None
    say("training tokens/s")
    worker = EngineWorker()
    try:
        return await _rate(await open_learner(config, path, worker), config, path, response_tokens)
    except EdgeError as error:
        say(f"no training ({error})")
        return None
    finally:
        worker.close()


async def _rate(learner: Learner, config: AgentConfig, path: Path, response_tokens: float) -> float:
    """Of the longest batch that there was time for, or of a shorter one that was faster."""
    from edge.sizing import model_shape
    from edge.training.memory import probe_groups

    spent, best, vocabulary = 0.0, 0.0, model_shape(path).vocab_size
    for batch in batches(config, response_tokens):
        report = await learner.update(probe_groups(batch, vocabulary))
        spent += report.seconds
        tokens = batch.prompts * batch.prompt_tokens + batch.rows * batch.response_tokens
        best = max(best, tokens / max(report.seconds, 1e-9))
        if spent > BUDGET_S:
            break
    return best


def batches(config: AgentConfig, response_tokens: float) -> Iterator[MicroBatch]:
    """One group, its responses twice as long each time up to the mean of the tasks, the last one twice."""
    from edge.training.memory import MicroBatch

    longest = max(1, min(round(response_tokens), config.learning.max_tokens, config.model.context_tokens - _PROMPT_TOKENS))
    lengths, length = [longest, longest], _SHORTEST_TOKENS
    while length < longest:
        lengths.insert(-2, length)
        length *= 2
    for tokens in lengths:
        yield MicroBatch(prompts=1, prompt_tokens=_PROMPT_TOKENS, rows=config.learning.group_size, response_tokens=tokens)
