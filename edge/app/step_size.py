"""The size of learning steps where the configuration leaves it open: fitted to the speed of model and machine, which is measured once and
kept in the state folder."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.app.agents import thread_fitting
from edge.app.engines import SharedWorker, choose_engine, open_backend, open_learner, with_its_device
from edge.app.settings import (
    PROFILE_SWITCH,
    agent_settings,
    keep_model,
    local_prompt_form,
    model_file,
    state_folder,
)
from edge.config.device_profile import NONE
from edge.config.loader import DEFAULT_ORIGIN, Resolved
from edge.config.schema import AgentConfig
from edge.core.errors import ContextOverflow
from edge.core.events import MemorySink
from edge.core.formatting import counted, duration
from edge.core.forms import PlainForm, ReasonedForm
from edge.core.types import TaskItem
from edge.state.folder import StateFolder
from edge.training.memory import MicroBatch, batch_advice, probe_groups, rows_worth
from edge.training.step_size import LONG_STEP_S, StepSize, StepSpeed, StepTexts, fitting_size

if TYPE_CHECKING:
    from edge.core.clock import Clock
    from edge.evaluation.judging import RolloutSettings
    from edge.inference.batched import BatchedBackend

FITTED = "fitted: measured with this model here"
"""Origin of the values."""
_META = "step_sizes"
_PROMPTS, _RESPONSES_S = 4, 5.0
"""Questions that are answered once to see how long answers get, and the seconds after which one is held to be as long as allowed."""
_LONG_CALL_S = 0.5
_PREFILL_TOKENS, _PROMPT_TOKENS, _CALLS = 128, 16, 6
_WARMING = MicroBatch(prompts=1, prompt_tokens=8, rows=2, response_tokens=8)
_TRAINED = MicroBatch(prompts=1, prompt_tokens=32, rows=8, response_tokens=32)
_HARDLY_FASTER = 1.1
_OF_PUBLIC_MODELS: dict[str, float | str] = {
    "learning.optimiser.learning_rate": 1e-4,
    "learning.imitation.imitation_rate": 1e-3,
    "learning.control.step_dual": "estimated",
}
"""Of a model that is not bundled, measured with SmolLM2 (tools/experiments/LOG.md). Learning from samples at 3e-4, it always asked after
twenty steps in a trial with an integrated help bias; with the solved one it did not in 64. Fifteen given answers take 36 updates at 5e-4
and 20 at 1e-3, with the same losses elsewhere. With the coordinator's λ, which swings, its sampled answers to texts stayed
near chance for 500 steps; with the estimated one they did not."""
_OF_OPTIONS: dict[str, float | str] = {"learning.optimiser.learning_rate": 1e-3, "learning.objective.options": "given"}
"""Likewise, where every answer is one of few options and the method is da-grpo. In five minutes of one core the mood of texts was
learned to 76 % right, at 3e-4 to 71 %; from samples to 64 % and 43 %."""
_LINE_MARK, _FRAME = 5, 32
"""About the tokens that the reasoned form itself writes for a line, and for the rest."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was measured, and what follows for the settings that nobody gave, by their dotted names."""

    speed: StepSpeed
    texts: StepTexts
    values: dict[str, float | str]

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fitted:
        """Of what `to_json` made."""
        texts = StepTexts(**{**data["texts"], "response_tokens": tuple(data["texts"]["response_tokens"])})
        return cls(StepSpeed(**data["speed"]), texts, data["values"])


def fitted_steps(
    resolved: Resolved[AgentConfig], say: Callable[[str], None], *, lives_here: bool = False, is_begun: bool = False
) -> tuple[Resolved[AgentConfig], list[str]]:
    """The configuration with fitted steps, and what a person should know of them, one line each; as it is for a bundled model, with
    controller paper, and where no profile of the machine is wanted.

    `lives_here`: it learns next to other programs (`build_agent`). A run that `is_begun` keeps the size that it began with. Raises what
    opening engine and learner does, StateError.
    """
    config = resolved.config
    unwanted = NONE in (os.environ.get(PROFILE_SWITCH), config.device_profile)
    if unwanted or local_prompt_form(config) == "compact" or config.learning.control.controller == "paper":
        return resolved, []
    path = model_file(config.model.path)
    key = json.dumps([path.name, *(phase.source for phase in config.phases)])
    kept = _kept(config)
    if key not in kept:
        if is_begun:
            return resolved, []
        with StateFolder(state_folder(config)) as state:
            keep_model(state, config.model.path)  # for those who ask meanwhile
        say(f"measuring how fast {path.stem} learns here, once")
        found = asyncio.run(_measured(resolved, path, lives_here))
        if found is None:
            return resolved, []
        kept[key] = found.to_json()
        _keep(config, kept)
    fitted = Fitted.from_json(kept[key])
    chosen = _OF_OPTIONS if fitted.texts.are_sorted and config.learning.method == "da-grpo" else {}
    open_values = _without(_given(resolved), {**fitted.values, **_OF_PUBLIC_MODELS, **chosen})
    config = _with_values(config, open_values)
    sized = Resolved(config, {**resolved.origins, **dict.fromkeys(open_values, FITTED)})
    return sized, list(size_lines(config, fitted))


def _given(resolved: Resolved[AgentConfig]) -> set[str]:
    """The settings that some layer has."""
    return {name for name, _, origin in resolved.rows() if origin != DEFAULT_ORIGIN}


def _without(given: set[str], values: dict[str, float | str]) -> dict[str, float | str]:
    return {name: value for name, value in values.items() if name not in given}


def size_lines(config: AgentConfig, fitted: Fitted) -> list[str]:
    """What a step is and takes, and what to do where that is long."""
    size = _size_of(config)
    step_s, longest = size.seconds(fitted.texts, fitted.speed), min(size.max_tokens, fitted.texts.longest)
    lines = [
        f"a step: {counted(size.prompts, 'question')} x {counted(size.group_size, 'response')} of at most {longest} tokens, about "
        f"{duration(step_s)} here (given answers and the cloud come on top); change it with "
        "learning.prompts_per_step, learning.group_size, learning.max_tokens"
    ]
    if step_s > LONG_STEP_S:
        lines.append(
            f"a step takes about {duration(step_s)}: lower learning.prompts_per_step, learning.group_size or learning.max_tokens where "
            "you have set them, take a smaller model (edge-agent models), or let it run: every step that ends is kept"
        )
    return lines


def _size_of(config: AgentConfig) -> StepSize:
    return StepSize(config.learning.prompts_per_step, config.learning.group_size, config.learning.max_tokens)


_FIELDS = {
    "prompts": "learning.prompts_per_step",
    "group_size": "learning.group_size",
    "max_tokens": "learning.max_tokens",
}


def _with_values(config: AgentConfig, values: dict[str, float | str]) -> AgentConfig:
    data = config.model_dump(mode="json")
    for name, value in values.items():
        *above, last = name.split(".")
        section = data
        for part in above:
            section = section[part]
        section[last] = value
    return AgentConfig.model_validate(data)


def _kept(config: AgentConfig) -> dict[str, Any]:
    from edge.state.reader import kept_meta

    return dict(json.loads(kept_meta(state_folder(config), _META) or "{}"))


def _keep(config: AgentConfig, kept: dict[str, Any]) -> None:
    with StateFolder(state_folder(config)) as state:
        state.set_meta(_META, json.dumps(kept))


# -- measuring ---------------------------------------------------------------------------------------------------------------------


async def _measured(resolved: Resolved[AgentConfig], path: Path, lives_here: bool) -> Fitted | None:
    """Some seconds of engine and learner, with the threads that learning will have.

    None for a model that reads compact prompts, as copies of the bundled ones do.
    """
    from edge.core.clock import SystemClock
    from edge.inference.batched import BatchedBackend
    from edge.sizing import batch_limits, model_shape, training_memory, training_setting

    clock, config, given = SystemClock(), with_its_device(resolved.config, path), _given(resolved)
    fit_threads = thread_fitting(config, path, MemorySink(), clock, learner=lives_here)
    async with AsyncExitStack() as stack:
        worker = SharedWorker()
        stack.callback(worker.close)
        async with aclosing(await open_backend(config, path, worker.get())) as backend:
            if not isinstance(backend, BatchedBackend):
                return None
            if fit_threads is not None:
                fit_threads([backend], None)
            sampled = await _sampled(config, backend, clock)
        if sampled is None:
            return None
        prefill, decode, texts = sampled
        rows, values = rows_worth(decode), dict[str, float | str]()
        shape = model_shape(path)
        if choose_engine(config, path).trains_in_torch:
            setting = replace(training_setting(config, path), rows=rows)
            advice = batch_advice(shape, batch_limits(config, path), setting, rows, training_memory(config))
            values["learning.memory.micro_batch_tokens"] = min(
                advice.micro_batch_tokens, config.learning.memory.micro_batch_tokens
            )
        learner = await open_learner(_with_values(config, _without(given, values)), path, worker.get())
        if fit_threads is not None:
            fit_threads([], learner)
        await learner.update(probe_groups(_WARMING, shape.vocab_size))
        report = await learner.update(probe_groups(_TRAINED, shape.vocab_size))
        trained = _TRAINED.prompts * _TRAINED.prompt_tokens + _TRAINED.rows * _TRAINED.response_tokens
        training = trained / max(1e-9, report.seconds)
    speed = StepSpeed(prefill, decode[rows], training, rows)
    usual = _size_of(config)
    size = fitting_size(usual, texts, speed, [field for field, name in _FIELDS.items() if name in given])
    values |= {name: getattr(size, field) for field, name in _FIELDS.items()}
    values |= {"learning.step_tokens": size.most_tokens(texts, speed), "engine.max_rows": rows}
    return Fitted(speed, texts, values)


async def _sampled(
    config: AgentConfig, backend: BatchedBackend, clock: Clock
) -> tuple[float, dict[int, float], StepTexts] | None:
    """Tokens/s of a prompt, of generation by rows, and the lengths of texts."""
    from edge.learning.components import with_prompt_form
    from edge.tasks.registry import open_source
    from edge.tasks.source import ListedItems

    settings = with_prompt_form(agent_settings(config, ""), backend.model).rollout
    if settings.prompt_form == "compact":
        return None
    items, longest = list[TaskItem](), 1
    for source in (open_source(phase.source, phase.columns) for phase in config.phases):
        some = list(islice(source.train(config.learning.seed), _PROMPTS))
        items += some
        longest = max(longest, _longest(backend, settings, source.train_items if isinstance(source, ListedItems) else some))
    prompts = []
    for item in items:
        with suppress(ContextOverflow):  # learning leaves it out
            prompts.append(backend.prompt_ids(settings.messages(item)))
    prompts = prompts or [(1,)]
    ids = (prompts[0] * _PREFILL_TOKENS)[: min(_PREFILL_TOKENS, backend.tokenizer.rollout_tokens // 2)]
    prefill_s = await _seconds(partial(backend.feed, ids[:-1], ids[-1:], 1), clock)
    decode = await _decode_rates(backend, ids, clock)
    lengths = await _lengths(backend, settings, items[:: max(1, len(items) // _PROMPTS)], longest)
    forms = [settings.form_of(item) for item in items]
    are_sorted = all(isinstance(form, PlainForm) and form.options for form in forms)
    texts = StepTexts(sum(map(len, prompts)) / len(prompts), tuple(lengths), longest, are_sorted)
    return len(ids) / prefill_s, decode, texts


def _longest(backend: BatchedBackend, settings: RolloutSettings, items: Sequence[TaskItem]) -> int:
    """About how many tokens a response to one of these questions can have: what their forms and the settings allow."""
    most = 1
    for item in items:
        form = settings.form_of(item)
        if isinstance(form, ReasonedForm):
            most = max(most, form.max_steps * (form.line_tokens + _LINE_MARK) + form.answer_tokens + _FRAME)
        elif isinstance(form, PlainForm) and form.options:
            most = max(most, *(len(backend.text_tokens(option)) + 1 for option in form.options))
        else:
            most = max(most, settings.tokens_of(item))
    return min(most, settings.max_tokens)


async def _decode_rates(backend: BatchedBackend, ids: Sequence[int], clock: Clock) -> dict[int, float]:
    """Tokens/s of all rows together, by number of rows, up to all or until more are hardly faster."""
    prompt, rates = ids[: min(_PROMPT_TOKENS, len(ids) - _CALLS - 1)], dict[int, float]()
    rows = min(8, backend.rollout_rows)
    while True:
        one = await _seconds(partial(backend.feed, prompt, ids[:1], rows), clock)
        more = await _seconds(partial(backend.feed, prompt, ids[: _CALLS + 1], rows), clock)
        best, rates[rows] = max(rates.values(), default=0.0), rows * _CALLS / max(more - one, more / 2)
        if rows == backend.rollout_rows or rates[rows] < _HARDLY_FASTER * best:
            return rates
        rows = min(2 * rows, backend.rollout_rows)


async def _lengths(backend: BatchedBackend, settings: RolloutSettings, items: Sequence[TaskItem], most: int) -> list[int]:
    """Tokens of one response to each of these questions, as learning samples them; the limit where one takes too long."""

    async def length(item: TaskItem) -> int:
        sampling = settings.sampling(item)
        with suppress(ContextOverflow):
            group = await backend.sample_group(settings.messages(item), sampling, [settings.seed])
            return len(group.responses[0].token_ids)
        return most

    running = [asyncio.create_task(length(item)) for item in items]
    done, late = await asyncio.wait(running, timeout=_RESPONSES_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return [*(task.result() for task in done), *[most] * len(late)]


async def _seconds(call: Callable[[], Awaitable[None]], clock: Clock) -> float:
    """Of the faster of two calls, or of a single long one."""
    spent = list[float]()
    while len(spent) < 2 and sum(spent) < _LONG_CALL_S:
        before = clock.monotonic()
        await call()
        spent.append(max(1e-9, clock.monotonic() - before))
    return min(spent)
