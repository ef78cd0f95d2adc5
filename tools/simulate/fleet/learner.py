"""A learner of a mind: it really follows the advantages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from edge.core.errors import AdapterError, StateError
from edge.core.types import AdapterRef, Demonstration, KeptAnswer, TrainingGroup
from edge.training.learner import KNOWN_NATS, MOST_IMITATIONS, Imitation, LearnerReport
from tools.simulate.fleet.backend import OUTCOMES, question_of, read_mind, write_mind
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.mind import Mind, MindOutcome, Nature, Rates, SimulatedQuestion, learned, log_likelihood


class SimulatedLearner:
    """Implements `Learner`; its adapter is a folder with θ in it."""

    def __init__(self, machine: Machine, mind: Mind, nature: Nature, rates: Rates) -> None:
        self._machine = machine
        self._mind = mind
        self._nature = nature
        self._full_rates = self._rates = rates

    def scale_steps(self, share: float) -> None:
        """Move θ by this share of the rates from now on."""
        self._rates = Rates(**{name: share * rate for name, rate in self._full_rates.model_dump().items()})

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """One step along the mean over the groups of Σ w Â ∇ log π, in the time that the device takes for the tokens."""
        live = [group for group in groups if any(sample.advantage for sample in group.samples)]
        tokens = sum(len(sample.token_ids) for group in live for sample in group.samples)
        seconds = tokens / self._machine.speed.training_tokens_per_s
        await self._machine.compute(seconds)
        if live:
            self._mind = learned(self._mind, self._nature, self._rates, _weighed(live, len(groups)))
        return LearnerReport(
            groups=len(groups),
            frac_reward_zero_std=1 - len(live) / len(groups) if groups else 0.0,
            tokens=tokens,
            loss=0.0,
            grad_norm=0.0,
            entropy=0.0,
            mean_abs_logprob_diff=0.0,
            kl=0.0,
            effective_sample_share=1.0 if live else 0.0,
            clipped_share=0.0,
            learning_rate=self._rates.ask,
            seconds=seconds,
            skipped="" if live else "no group with an advantage",
        )

    async def imitate(self, demonstrations: Sequence[Demonstration], kept: Sequence[KeptAnswer] = ()) -> Imitation:
        """Steps towards these responses' outcomes, in the time that the device takes for their tokens, until they are likely enough."""
        shown = [(question_of(one.prompt_ids), OUTCOMES[one.turn.token_ids[0] - 1]) for one in demonstrations]
        each = sum(len(one.turn.token_ids) for one in demonstrations) / self._machine.speed.training_tokens_per_s
        nats: list[float] = []
        while len(nats) < MOST_IMITATIONS and (not nats or nats[-1] > KNOWN_NATS):
            nats.append(-sum(log_likelihood(self._mind, self._nature, *pair) for pair in shown) / len(shown))
            await self._machine.compute(each)
            weighed = [(question, outcome, 1.0 / len(shown)) for question, outcome in shown]
            self._mind = learned(self._mind, self._nature, self._rates, weighed)
        return Imitation(len(nats), nats[0], nats[-1], seconds=each * len(nats))

    async def nats(self, demonstrations: Sequence[Demonstration]) -> list[float]:
        """What the mind's likelihoods of these responses are."""
        shown = [(question_of(one.prompt_ids), OUTCOMES[one.turn.token_ids[0] - 1]) for one in demonstrations]
        return [-log_likelihood(self._mind, self._nature, *pair) for pair in shown]

    async def export(self, folder: Path, version: int) -> AdapterRef:
        """Write θ as an adapter. Raises StateError when the folder exists."""
        _make_new(folder)
        write_mind(folder, self._mind)
        return AdapterRef(version, str(folder))

    async def save(self, folder: Path) -> None:
        """Write θ into an existing folder."""
        write_mind(folder, self._mind)

    async def load(self, folder: Path) -> None:
        """Restore θ. Raises StateError."""
        try:
            self._mind = read_mind(folder)
        except AdapterError as error:
            raise StateError(str(error)) from error


def _make_new(folder: Path) -> None:
    if folder.exists():
        raise StateError(f"{folder.name} exists already", hint="export into a folder that does not exist yet")
    folder.mkdir(parents=True)


def _weighed(groups: Sequence[TrainingGroup], count: int) -> Iterator[tuple[SimulatedQuestion, MindOutcome, float]]:
    for group in groups:
        question = question_of(group.prompt_ids)
        for sample in group.samples:
            yield question, OUTCOMES[sample.token_ids[0] - 1], sample.advantage * group.group_weight / count
