"""The dual variable λ: what a request counts in units of reward."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edge.dagrpo.advantages import centred, mean
from edge.dagrpo.numbers import require_finite, require_non_negative, require_share

MOST_WINDOW = 100
"""Most reports that a proportional part is the mean of."""


def dual_step(dual: float, assist_rate: float, target_rate: float, lr: float) -> float:
    """λ ← [λ + η(Ĵ - τ)]₊ (Algorithm 1, dual update).

    Raises ValueError on a non-finite argument or result, a rate outside [0, 1], a negative λ or a negative step size.
    """
    dual = require_non_negative("dual", dual)
    realised = require_share("assist_rate", assist_rate)
    target = require_share("target_rate", target_rate)
    step_size = require_non_negative("lr", lr)
    return max(0.0, require_finite("the next dual", dual + step_size * (realised - target)))


def shared_lr(lr: float, units: int, round_units: int) -> float:
    """η·units/round_units: the step size of one report where many devices move one λ, each by its share of a round's responses, so that
    a round of N equal reports moves λ as far as one report of one device would. Raises ValueError unless 0 < units <= round_units."""
    if not 0 < units <= round_units:
        raise ValueError(f"{units} units cannot be a share of {round_units}")
    return require_non_negative("lr", lr) * (units / round_units)


@dataclass(frozen=True, slots=True)
class ProportionalIntegral:
    """The rule of λ with what slow or noisy devices may add to it; by default it is `dual_step`'s.

    `lr` is η. `proportional` k_p answers at once to how far the rate misses τ, by the mean of the last `window` reports (small
    batches are noisy); `ceiling` is the highest λ: an anti-windup bound where asking does not react to λ.
    """

    lr: float
    proportional: float = 0.0
    window: int = 1
    ceiling: float = math.inf


Controller = Literal["dial", "paper"]
"""What holds the assist rate. `dial`: a help bias holds it in the rollouts, and λ follows the rate that the policy has without it, with a
proportional part; `paper`: λ alone, by Algorithm 1."""
DUAL_RULES: Mapping[Controller, ProportionalIntegral] = {
    "dial": ProportionalIntegral(0.05, proportional=1.5, window=4),
    "paper": ProportionalIntegral(0.01),
}


def dual_rule(
    controller: Controller, lr: float | None, proportional: float | None, window: int | None, ceiling: float | None
) -> ProportionalIntegral:
    """The controller's rule with what is set otherwise (None: as the controller has it)."""
    rule = DUAL_RULES[controller]
    return ProportionalIntegral(
        rule.lr if lr is None else lr,
        rule.proportional if proportional is None else proportional,
        rule.window if window is None else window,
        math.inf if ceiling is None else ceiling,
    )


@dataclass(frozen=True, slots=True)
class DualState:
    """λ, and k_p·(rate - τ) of the reports still in the window, oldest first: their mean is the proportional part that λ holds."""

    dual: float
    recent: tuple[float, ...] = ()


def proportional_integral_step(state: DualState, assist_rate: float, target_rate: float, rule: ProportionalIntegral) -> DualState:
    """λ_t = min(ceiling, [λ_{t-1} + η(Ĵ_t - τ_t) + p_t - p_{t-1}]₊) with p_t the mean of k_p(Ĵ - τ) over the window; p_0 = 0.

    The velocity form: as long as no bound is met the sum telescopes to λ_t = λ_0 + η Σ(Ĵ - τ) + p_t, the positional form whose integral
    starts at λ_0, also where k_p or the window change on the way; the window begins with the first step that has a gain. At a bound it
    forgets what goes beyond, so that λ leaves the bound with the first step that points away from it, where the positional form waits
    until its parts together come back. With k_p = 0, nothing in the window and no ceiling λ is dual_step's, bit for bit. Raises
    ValueError on what dual_step refuses, a negative k_p or ceiling, or a window below 1.
    """
    if rule.window < 1:
        raise ValueError(f"window must be at least 1, not {rule.window}")
    gain = require_non_negative("proportional", rule.proportional)
    if not rule.ceiling >= 0.0:
        raise ValueError(f"ceiling must not be negative, but is {rule.ceiling}")
    plain = dual_step(state.dual, assist_rate, target_rate, rule.lr)
    if gain == 0.0 and not state.recent:
        return DualState(min(rule.ceiling, plain))
    missed = assist_rate - target_rate
    recent = (*state.recent, gain * missed)[-rule.window :]
    change = mean(recent) - (mean(state.recent) if state.recent else 0.0)
    dual = max(0.0, require_finite("the next dual", state.dual + rule.lr * missed + change))
    return DualState(min(rule.ceiling, dual), () if gain == 0.0 and not any(recent) else recent)


MOST_BIAS = 100.0
EXPLORED_RATE = 0.02
"""The share that is kept asking where asking does not help, so that it shows when that changes."""
HelpBiasRule = Literal["solved", "integrated"]
"""How the help bias of the rollouts follows from the steps before: `next_help_bias` or `help_bias_step`."""


def help_rate(log_odds_N: Sequence[float | None], bias: float = 0.0, weights_N: Sequence[float] | None = None) -> float:
    """The expected share of responses that ask under a bias, from the log-odds of asking at each one's decision (None: it reached none),
    each weighted by what its call costs (None: all count the same)."""
    weights = [1.0] * len(log_odds_N) if weights_N is None else weights_N
    asks = [0.0 if one is None else 0.5 + 0.5 * math.tanh(0.5 * (one + bias)) for one in log_odds_N]
    return math.fsum(weight * ask for weight, ask in zip(weights, asks, strict=True)) / math.fsum(weights)


def solved_help_bias(log_odds_N: Sequence[float | None], rate: float, weights_N: Sequence[float] | None = None) -> float:
    """b (nats) for which the mean of σ(z + b) over these log-odds is `rate`, within ±MOST_BIAS; what reached no decision cannot ask.

    0 where none reached one. Raises ValueError on a rate outside [0, 1].
    """
    wanted = require_share("rate", rate)
    if all(one is None for one in log_odds_N):
        return 0.0
    low, high = -MOST_BIAS, MOST_BIAS
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if help_rate(log_odds_N, middle, weights_N) < wanted else (low, middle)
    return 0.5 * (low + high)


def next_help_bias(
    log_odds_N: Sequence[float | None],
    target_rate: float,
    *,
    weights_N: Sequence[float] | None = None,
    fell_short: float = 0.0,
    helps: bool = True,
) -> float:
    """b of the next step's rollouts, solved for τ on the log-odds of the last ones.

    `fell_short` is added to τ: by how much the last steps asked less often than was expected of their b, since the policy moves by the
    step that lies between, and a request may be invalid. Where asking does not help (`helps`), b raises the rate to EXPLORED_RATE only:
    forced up to τ it would cost money, and the policy would be driven ever further from asking. Who asks unasked, within τ, may. Raises
    ValueError on a rate outside [0, 1].
    """
    target = require_share("target_rate", target_rate)
    least, most = min(target, EXPLORED_RATE), max(target, 1.0 - EXPLORED_RATE)  # no noise stops asking, or answering
    wanted = min(most, max(least, target + require_finite("fell_short", fell_short)))
    bias = solved_help_bias(log_odds_N, wanted, weights_N)
    return bias if helps else min(bias, max(0.0, solved_help_bias(log_odds_N, least, weights_N)))


HELP_BIAS_GAIN = 0.6
MOST_BIAS_CHANGE = 2.0


def help_bias_step(bias: float, assist_rate: float, target_rate: float, *, helps: bool = True) -> float:
    """b ← b + κ (τ - Ĵ) / (τ (1 - τ)): the integrated help bias (nats) after a step whose rollouts asked at rate Ĵ.

    Divided by the slope of the rate at τ, so that a miss takes about 1/κ steps whatever τ is; at most MOST_BIAS_CHANGE a step, so that one
    small batch decides nothing. Where asking does not help (`helps`), b raises the rate to EXPLORED_RATE only: forced up to τ it would
    cost money, and the policy would be driven ever further from asking. Raises ValueError on a rate outside [0, 1] or a bias that is no
    number.
    """
    realised, target = require_share("assist_rate", assist_rate), require_share("target_rate", target_rate)
    over = realised > target and bias <= 0.0
    wanted = target if helps or over else min(target, EXPLORED_RATE)
    change = HELP_BIAS_GAIN * (wanted - realised) / max(target * (1.0 - target), 0.01)
    if wanted < target:
        change = max(change, -max(bias, 0.0))  # who asks unasked, within τ, may
    after = require_finite("bias", bias) + min(MOST_BIAS_CHANGE, max(-MOST_BIAS_CHANGE, change))
    return min(MOST_BIAS, max(-MOST_BIAS, after))


def asking_slope(rewards_G: Sequence[float], costs_G: Sequence[float]) -> tuple[float, float]:
    """Σ (c - mean c)(r - mean r) and Σ (c - mean c)² of one group; both are 0 where all of it asked, or none.

    Their quotient, also of their sums over groups, is what asking gains: the slope of the reward on the cost.
    """
    rewards, costs = centred(rewards_G), centred(costs_G)
    return math.fsum(map(operator.mul, costs, rewards)), math.fsum(map(operator.mul, costs, costs))


def estimated_dual(slopes: Sequence[tuple[float, float]]) -> float | None:
    """λ = [Σ (c - mean c)(r - mean r) / Σ (c - mean c)²]₊: what asking gains where the policy is undecided, over `asking_slope` of groups
    or of steps. None where none holds both.

    Where the policy is best for its rate, this is the constraint's multiplier. Over the groups that it was estimated on, the advantages
    then push asking neither up nor down on the whole, only from one question to another.
    """
    along = math.fsum(slope[0] for slope in slopes)
    squares = math.fsum(slope[1] for slope in slopes)
    return max(0.0, along / squares) if squares > 0.0 else None
