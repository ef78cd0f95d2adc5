"""From calibrations to what a simulation needs: overheads of the device, the cloud's pace, a mind. No latency of the
run that is validated comes here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression, median, pstdev

import numpy as np

from edge.core.errors import EdgeError
from tools.simulate.fleet.backend import Pace
from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.mind import Mind, Nature
from tools.simulate.validation.seen import Sampled, Timed

_LEAST_NOISE = 1e-3
_FAR = 1.5


class NothingToFit(EdgeError):
    """A calibration brought too little."""


@dataclass(frozen=True, slots=True)
class LocalPace:
    """What answers take on this device beyond its profile (`DeviceSpeed`), and how unevenly: paces around a median of 1."""

    overhead_s: float
    token_overhead_s: float
    token_growth_s: float
    paces: tuple[Pace, ...]


@dataclass(frozen=True, slots=True)
class CloudPace:
    """Calls as the agent sees them, coordinator and socket included: medians, and how uneven they are."""

    first_token_s: float
    tokens_per_s: float
    paces: tuple[Pace, ...]


@dataclass(frozen=True, slots=True)
class FittedMind:
    """A bare model as a mind. `prompts`: (difficulty, ask_noise) of each practice prompt that was sampled."""

    mind: Mind
    nature: Nature
    prompts: tuple[tuple[float, float], ...]
    prompt_tokens: int
    response_tokens: int
    response_spread: float


def local_pace(speed: DeviceSpeed, calibration: Sequence[Timed]) -> LocalPace:
    """Overheads by the medians of what the profile's speeds do not explain; none below 0. Raises NothingToFit."""
    known = [timed for timed in calibration if timed.tokens > 1]
    if not known:
        raise NothingToFit("no local answer of the calibration has two tokens")
    token_s = 1.0 / speed.decode_rate(1)
    reads = [timed.prompt_tokens / speed.prefill_tokens_per_s + token_s for timed in known]
    each_s, growth_s = _growing([(timed.tokens - 1, timed.total_s - timed.first_s) for timed in known])
    token_overhead_s = max(0.0, each_s - token_s)
    overhead_s = max(0.0, median(timed.first_s - read for timed, read in zip(known, reads, strict=True)) - token_overhead_s)
    fitted = replace(speed, overhead_s=overhead_s, token_overhead_s=token_overhead_s, token_growth_s=growth_s)
    firsts = [timed.first_s / (read + token_overhead_s + overhead_s) for timed, read in zip(known, reads, strict=True)]
    rests = [(timed.total_s - timed.first_s) / fitted.shown_s(timed.tokens) for timed in known]
    return LocalPace(overhead_s, token_overhead_s, growth_s, _around_one(firsts, rests))


def _growing(known: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(a, g) of seconds = a n + g n²/2 by least squares over (tokens, seconds), none below 0. What is far from the usual pace is left out,
    so that a moment in which the machine did something else bends nothing; all of one length show no growth."""
    usual = median(seconds / tokens for tokens, seconds in known)
    tokens, seconds = np.array([(count, took) for count, took in known if took <= _FAR * usual * count]).T
    if np.ptp(tokens) == 0:
        return usual, 0.0
    each_s, growth_s = np.linalg.lstsq(np.stack([tokens, tokens**2 / 2], axis=1), seconds)[0]
    if growth_s < 0:
        return float(tokens @ seconds / (tokens @ tokens)), 0.0
    return max(0.0, float(each_s)), float(growth_s)


def cloud_pace(calibration: Sequence[Timed]) -> CloudPace:
    """Raises NothingToFit."""
    known = [timed for timed in calibration if timed.tokens > 1]
    if not known:
        raise NothingToFit("no cloud answer of the calibration has two tokens")
    rests = [(timed.total_s - timed.first_s) / (timed.tokens - 1) for timed in known]
    firsts = [timed.first_s for timed in known]
    return CloudPace(median(firsts), 1.0 / max(median(rests), 1e-9), _around_one(firsts, rests))


def _around_one(firsts: Sequence[float], rests: Sequence[float]) -> tuple[Pace, ...]:
    first, rest = max(median(firsts), 1e-9), max(median(rests), 1e-9)
    return tuple(Pace(one / first, other / rest) for one, other in zip(firsts, rests, strict=True))


def fit_mind(samples: Sequence[Sampled]) -> FittedMind:
    """θ and difficulties under which a mind is right and asks as often, prompt by prompt, as the model did at temperature 1.

    A prompt's right log-odds (half a response added to each side) say how difficult it is; asking is a line over that, and what the line
    leaves is the prompt's own. Raises NothingToFit.
    """
    nature = Nature()
    if not samples:
        raise NothingToFit("no practice prompt was sampled")
    rights = [_log_odds((each.right + 0.5) / (each.right + each.wrong + 1.0)) for each in samples]
    skill = fmean(rights)
    hard = [min(1.0, max(0.0, 0.5 - (right - skill) / nature.hardness)) for right in rights]
    asks = [_log_odds(min(1 - 1e-6, max(1e-6, each.asks))) for each in samples]
    same = len(set(hard)) < 2
    slope, ask = (0.0, fmean(asks)) if same else linear_regression([each - 0.5 for each in hard], asks)
    left = [known - ask - slope * (each - 0.5) for known, each in zip(asks, hard, strict=True)]
    noise = max(_LEAST_NOISE, pstdev(left))
    counted = sum(each.asked + each.right + each.wrong + each.broken for each in samples)
    lengths = [math.log(max(1.0, each.response_tokens)) for each in samples]
    return FittedMind(
        mind=Mind(skill=skill, ask=ask, ask_slope=slope),
        nature=Nature(
            hardness=nature.hardness,
            noise_share=noise,
            broken=sum(each.broken for each in samples) / counted,
            skill_limit=nature.skill_limit,
        ),
        prompts=tuple((round(each, 6), round(own / noise, 6)) for each, own in zip(hard, left, strict=True)),
        prompt_tokens=round(median(each.prompt_tokens for each in samples)),
        response_tokens=round(math.exp(fmean(lengths))),
        response_spread=pstdev(lengths),
    )


def _log_odds(share: float) -> float:
    return math.log(share / (1.0 - share))
