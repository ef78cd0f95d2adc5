"""Responses held to a form: the sampler and the learner use the same policy over allowed tokens."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch

from edge.core.errors import ContextOverflow, UsageError
from edge.core.forms import ReasonedForm
from edge.core.types import FORCED, AllowedTokens, BiasedDecision, FinishReason, Message, PromptGroup, Sampling
from edge.core.worker import EngineWorker
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.guide import FormVocabulary, ReasonedGuide
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.catalogue import bundled_folder
from edge.training.batching import Row, targets_of
from edge.training.loss import token_scores, with_help_bias
from tests.worlds.mlx_engines import require_mlx

NANO = bundled_folder() / "nano-edge.gguf"
QUESTION = [Message("user", "What is 17 + 25?")]
STEPS = 3


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LlamaCppBackend]:
    worker = EngineWorker()
    backend = LlamaCppBackend(NANO, worker, n_threads=1, max_rows=8)
    yield backend
    await backend.aclose()
    worker.close()


def sampling(**changes: object) -> Sampling:
    return Sampling(**{"temperature": 1.0, "max_tokens": 160, "form": ReasonedForm(STEPS, line_tokens=24), **changes})  # type: ignore[arg-type]


async def sampled(backend: LlamaCppBackend, count: int = 8, **changes: object) -> PromptGroup:
    return await backend.sample_group(QUESTION, sampling(**changes), range(count))


async def test_every_response_is_well_formed_and_has_one_decision(backend: LlamaCppBackend) -> None:
    for temperature in (0.0, 1.0, 8.0):  # at 8 the model writes what it would never write
        for response in (await sampled(backend, 16, temperature=temperature)).responses:
            assert check_format(response.text, STEPS).ok, response.text
            assert response.help_log_odds is not None and len(response.token_ids) <= 160


async def test_the_bias_moves_the_decision_and_nothing_before_it(backend: LlamaCppBackend) -> None:
    plain, asking = await sampled(backend), await sampled(backend, help_bias=40.0)
    for before, after in zip(plain.responses, asking.responses, strict=True):
        assert after.text.endswith(HELP_PHRASE) and check_format(after.text, STEPS).asks_help
        assert after.text.split("</think>")[0] == before.text.split("</think>")[0]
        assert after.help_log_odds == before.help_log_odds and len(after.biased) == 1
        assert after.overridden == ("" if HELP_PHRASE in before.text else "to ask")
    refused = await sampled(backend, suppress_help=True)
    assert all(HELP_PHRASE not in response.text for response in refused.responses)


@pytest.mark.parametrize(("line", "answer"), [(4, 2), (1, 1), (24, 48)])
async def test_lines_and_answers_end_at_their_limits(backend: LlamaCppBackend, line: int, answer: int) -> None:
    form = ReasonedForm(STEPS, line_tokens=line, answer_tokens=answer)
    for response in (await sampled(backend, 16, temperature=6.0, form=form)).responses:
        thinking, _, rest = response.text.partition("</think>")
        assert check_format(response.text, STEPS).ok
        for text in thinking.split("\n")[1:-1]:
            assert len(backend.response_tokens(text.partition(":")[2])) <= 4 * (
                line + 9
            )  # a token is up to a few of another split
        assert rest


async def test_a_stream_shows_the_whole_response_and_equals_the_group(backend: LlamaCppBackend) -> None:
    (expected,) = (await sampled(backend, 1)).responses
    deltas = [delta async for delta in backend.stream(QUESTION, sampling(), 0)]
    assert "".join(delta.text for delta in deltas) == expected.text
    assert deltas[-1].response is not None and deltas[-1].response.token_ids == expected.token_ids


async def test_forced_tokens_have_probability_one_and_the_others_that_of_the_allowed_tokens(backend: LlamaCppBackend) -> None:
    group = await sampled(backend)
    for response in group.responses:
        assert response.allowed is not None and len(response.allowed.places) == len(response.token_ids)
        free = await backend.score(group.prompt_ids, response.token_ids)
        for place, masked, unmasked in zip(response.allowed.places, response.logprobs, free, strict=True):
            assert masked == 0.0 if place == FORCED else unmasked - 1e-4 <= masked <= 0.0


@pytest.mark.parametrize("program", [False, True])
async def test_a_worked_solution_is_learned_with_the_choices_of_the_form_and_without_the_decision(
    backend: LlamaCppBackend, program: bool
) -> None:
    answer = (
        "<answer>\n```python\ndef f(x):\n    return x\n```\n</answer>" if program else "<answer>\\boxed{\\frac{1}{2}}</answer>"
    )
    text = f"<think>\nStep 1: 17 + 25 = 42\nStep 2: so it is 42\n</think>\n{answer}"
    form = ReasonedForm(STEPS, program)
    turn = backend.guided_turn(text, form, 160)
    assert turn is not None and turn.allowed is not None
    assert backend.text_of(turn.token_ids[:-1]) == text and len(turn.allowed.places) == len(turn.token_ids)
    chosen = [token for token, place in zip(turn.token_ids, turn.allowed.places, strict=True) if place != FORCED]
    shown = backend.text_of(chosen)
    assert "17 + 25 = 42" in shown and "<think>" not in shown and "answer>" not in shown, "what the form writes has no loss"
    assert backend.guided_turn(text, form, 20) is None, "too long"
    for other in ("42", text.replace("</answer>", ""), text.replace(answer, HELP_PHRASE)):
        assert backend.guided_turn(other, form, 160) is None, other
    assert backend.guided_turn(text.replace("17 + 25", "17 + 25 " * 40), form, 600) is None, "a line longer than the form has"


@pytest.mark.parametrize("answer", ["\\boxed{3} and \\boxed{4}", "\\boxed{x } y}"])
async def test_a_text_whose_answer_the_form_would_change_is_no_turn(answer: str, backend: LlamaCppBackend) -> None:
    text = f"<think>\nStep 1: a\n</think>\n<answer>{answer}</answer>"
    assert backend.guided_turn(text, ReasonedForm(STEPS), 160) is None


async def test_a_prompt_that_leaves_no_room_for_the_form_does_not_fit_the_context(backend: LlamaCppBackend) -> None:
    text = "7 + " * 200
    while len(backend.prompt_ids([Message("user", text)])) < 1024 - 60:
        text += "7 + "
    with pytest.raises(ContextOverflow, match="tokens of the context"):
        await backend.sample_group([Message("user", text)], sampling(max_tokens=288), [0])
    with pytest.raises(UsageError, match="tokens, not 20"):
        await sampled(backend, max_tokens=20)


async def test_a_form_is_not_combined_with_what_contradicts_it(backend: LlamaCppBackend) -> None:
    for changes in ({"grammar": 'root ::= "a"'}, {"ignore_eos": True}):
        with pytest.raises(UsageError, match="in a form"):
            await sampled(backend, **changes)
    with pytest.raises(UsageError, match="after its thinking"):
        await anext(backend.stream(QUESTION, sampling(), 0, prefix="<think>"))


async def test_stop_strings_end_a_guided_response_wherever_they_stand(backend: LlamaCppBackend) -> None:
    for stop, text in (("Step", "<think>\n"), ("external", None)):
        (response,) = (await sampled(backend, 1, stops=(stop,), help_bias=40.0)).responses
        assert response.finish is FinishReason.STOP and stop not in response.text
        assert text is None or response.text == text
        assert len(response.token_ids) == len(response.logprobs)
    assert len((await sampled(backend, 1, stops=("<think>",))).responses[0].token_ids) == 1


async def test_chances_of_tokens_are_finite_also_where_the_form_writes(backend: LlamaCppBackend) -> None:
    (response,) = (await sampled(backend, 1, top_logprobs=2, help_bias=40.0)).responses
    assert "".join(token.piece.decode() for token in response.tokens).startswith(response.text)
    assert all(math.isfinite(chance.logprob) for token in response.tokens for chance in token.top)
    assert all(token.greedy for token in response.tokens[-4:])


async def test_penalties_are_not_taken_for_the_bias(backend: LlamaCppBackend) -> None:
    for seed in range(6):
        (response,) = (await backend.sample_group(QUESTION, sampling(presence_penalty=9.0, help_bias=1e-6), [seed])).responses
        assert response.overridden == ""


def test_a_token_that_holds_the_whole_end_ends_the_answer() -> None:
    pieces = [*(bytes([byte]) for byte in range(256)), b"}</answer>", b""]
    guide = ReasonedGuide(ReasonedForm(1), FormVocabulary(pieces, lambda text: text.encode(), 257)).fork(400)
    for text in ("x", "\n"):
        guide.accept(ord(text))
    while guide.forced >= 0:
        guide.accept(guide.forced)
    assert guide.deciding
    guide.accept(ord("<"))
    while guide.forced >= 0:
        guide.accept(guide.forced)
    guide.accept(ord("7"))
    guide.accept(256)
    assert guide.rest == [257]


ROWS = (
    Row(
        (1, 2),
        (3, 4, 5, 6),
        (0.0, -1.0, -1.0, 0.0),
        0.5,
        allowed=AllowedTokens((FORCED, 0, 1, FORCED), (b"\x30\0\0\0", b"\xf7\0\0\0")),
    ),
    Row((2,), (7, 1), (-1.0, -1.0), -0.7),
    Row((1,), (5,), (-1.0,), 1.1, allowed=AllowedTokens((0,), (b"\xf7\0\0\0",))),
)
"""Over a vocabulary of 8 tokens."""


@pytest.mark.parametrize("few", [0, 2, 7, 1024])
@pytest.mark.parametrize("elements", [1, 12, 1 << 20])
def test_scores_and_gradient_equal_those_of_masked_logits(elements: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.training.loss.FEW", few)
    targets = targets_of(ROWS, torch.device("cpu"))
    assert targets.learned_N is not None and targets.learned_N.tolist() == [1, 2, 4, 5, 6]
    assert targets.ids_N.tolist() == [4, 5, 7, 1, 5] and targets.allowed is not None
    torch.manual_seed(0)
    hidden_ND, weight_VD = torch.randn(5, 6, requires_grad=True), torch.randn(8, 6)
    scores = token_scores(hidden_ND, weight_VD, targets.ids_N, elements, allowed=targets.allowed)
    (scores.logprobs_N * targets.coefficients_N).sum().backward()
    found, hidden_ND.grad = hidden_ND.grad, None
    excluded_NV = targets.allowed.excluded_KV[targets.allowed.set_N][:, :8]
    assert excluded_NV.sum(-1).tolist() == [6, 1, 0, 0, 1]
    expected_NV = (hidden_ND @ weight_VD.T).masked_fill(excluded_NV, -torch.inf).log_softmax(-1)
    expected_N = expected_NV.gather(-1, targets.ids_N[:, None])[:, 0]
    assert torch.allclose(scores.logprobs_N, expected_N, atol=1e-5)
    entropy_N = -(expected_NV.exp() * expected_NV.masked_fill(excluded_NV, 0.0)).sum(-1)
    assert torch.allclose(scores.entropy_N, entropy_N, atol=1e-5)
    (expected_N * targets.coefficients_N).sum().backward()
    assert found is not None and torch.allclose(found, hidden_ND.grad, atol=1e-5)


def test_mlx_has_the_same_policy() -> None:
    require_mlx()
    import mlx.core as mx

    from edge.training.mlx_learner import FlatTargets
    from edge.training.mlx_learner import token_scores as mlx_scores

    torch.manual_seed(0)
    hidden_MD, weight_VD = torch.randn(7, 6), torch.randn(8, 6)
    targets, weight = FlatTargets.of(ROWS), mx.array(weight_VD.numpy())

    def total(hidden_MD: mx.array) -> mx.array:
        logprobs_N, _ = mlx_scores(
            lambda states: states @ weight.T, targets.of_learned(hidden_MD), targets.ids_N, 8, 16, targets.allowed
        )
        return (logprobs_N * targets.coefficients_N).sum()

    loss, gradient = mx.value_and_grad(total)(mx.array(hidden_MD.numpy()))
    expected, of_torch = hidden_MD.clone().requires_grad_(), targets_of(ROWS, torch.device("cpu"))
    scores = token_scores(expected[of_torch.learned_N], weight_VD, of_torch.ids_N, allowed=of_torch.allowed)
    by_torch = (scores.logprobs_N * of_torch.coefficients_N).sum()
    by_torch.backward()
    assert float(loss) == pytest.approx(by_torch.item(), abs=1e-4)
    assert expected.grad is not None and torch.allclose(torch.tensor(gradient.tolist()), expected.grad, atol=1e-4)


def test_the_gradient_is_that_of_the_expected_reward_under_the_masked_policy() -> None:
    """Σ_y π(y) r(y) ∇log π(y) over all allowed y against the derivative of Σ_y π(y) r(y), with a bias at the decision."""
    torch.manual_seed(1)
    weight_VD, reward = torch.randn(8, 4), {2: 0.3, 5: 1.0}
    hidden_D = torch.randn(4, requires_grad=True)
    bias = 1.5
    logits = torch.stack([hidden_D @ weight_VD[2] + bias, hidden_D @ weight_VD[5]])
    (logits.softmax(-1) * torch.tensor([reward[2], reward[5]])).sum().backward()
    exact, hidden_D.grad = hidden_D.grad, None
    rows = [
        Row((1,), (token,), (0.0,), 1.0, biased=(BiasedDecision(0, bias, (2,)),), allowed=AllowedTokens((0,), (b"\x24\0\0\0",)))
        for token in reward
    ]
    targets = targets_of(rows, torch.device("cpu"))
    hidden_ND = hidden_D.expand(2, 4)
    logprobs_N = token_scores(hidden_ND, weight_VD, targets.ids_N, allowed=targets.allowed).logprobs_N
    assert targets.biased is not None
    logprobs_N = with_help_bias(logprobs_N, hidden_ND, weight_VD, targets.ids_N, targets.biased)
    weights_N = logprobs_N.detach().exp() * torch.tensor(list(reward.values()))
    (weights_N * logprobs_N).sum().backward()
    assert exact is not None and torch.allclose(hidden_D.grad, exact, atol=1e-5)
