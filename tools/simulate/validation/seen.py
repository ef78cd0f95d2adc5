"""What a validation sees, in the real run and in the simulated one: questions, answers, steps, calibrations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds of a question whatever machine answers it: lengths in tokens, and the help log-odds (nats; None: no decision is reached).

    `local_tokens`: of an answer that does not ask; `asking_tokens`: of a response that does; `cloud_tokens`: of the cloud LLM's answer,
    counted with the SLM's tokenizer.
    """

    prompt_tokens: int
    local_tokens: int
    asking_tokens: int
    log_odds: float | None
    cloud_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """One question of the stream. Times in seconds of the stream; `first_s` and `total_s` count from `began_s`, when it was asked."""

    arrived_s: float
    began_s: float
    first_s: float
    total_s: float
    source: str
    asked: bool
    local_tokens: int

    @property
    def from_arrival_s(self) -> float:
        """With the time that the person still waited for the answer before."""
        return self.began_s - self.arrived_s + self.total_s


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer of a calibration, local or the cloud's: `tokens` are its own."""

    prompt_tokens: int
    tokens: int
    first_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Taken:
    """One learning step: the share that asked, and λ after it."""

    assist_rate: float
    dual: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a bare model's responses to one practice prompt at temperature 1 did, in counts. `asks`: the mean chance of asking."""

    asked: int
    right: int
    wrong: int
    broken: int
    asks: float
    prompt_tokens: int
    response_tokens: float


@dataclass(frozen=True, slots=True)
class Run:
    """A stream answered and steps taken."""

    answers: tuple[Answered, ...]
    steps: tuple[Taken, ...]
