"""Numbers for sentences, from the results that the tables are made of. Knows the names that a template gives them; knows no sentence.

[[lead grpo nano-edge during]]   +0.9 ± 3.0     DA-GRPO minus another at the same rate, in points, during or post
[[leads grpo,gapg during]]       +0.5 to +1.5   the same, least to most over the SLMs and these others
[[rate da-grpo]]                 .354           mean of the rates at the ends of phases, T = 1
[[rates da-grpo]]                .30 to .39     least to most of them, means over seeds
[[held da-grpo]]                 3 of 8         how many lie within the band around τ
[[seeds]]                        nano-edge 3, nano-edge-llama 1 of 3
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from edge.core.errors import ConfigError
from tools.experiments.contestants import DA_GRPO, FIRST, HELD, SECOND, TARGET
from tools.experiments.dynamics import BAND
from tools.experiments.equal_rate import minus
from tools.experiments.findings import Findings, common_seeds_of
from tools.experiments.kept_rates import phase_ends
from tools.experiments.stats import Estimate
from tools.experiments.tables import MISSING, signed

_INLINE = re.compile(r"\[\[([^\[\]]+)\]\]")
_WHEN = {"during": FIRST, "post": SECOND}


def with_numbers(line: str, findings: Findings, where: str) -> str:
    """A line with its `[[...]]` replaced. Raises ConfigError with the place for a name that means nothing."""

    def number(found: re.Match[str]) -> str:
        name, *words = found[1].split()
        try:
            return _NUMBERS[name](findings, *words)
        except (KeyError, TypeError) as error:
            told = ", ".join(_NUMBERS)
            raise ConfigError(f"{where}: {found[0]} is no number", hint=f"there is: {told}; see sentences.py") from error

    return _INLINE.sub(number, line)


def _lead(findings: Findings, row: str, model: str, when: str) -> str:
    found = _minus(findings, row, model, _WHEN[when])
    return MISSING if found is None else signed(found).removesuffix(" *")


def _leads(findings: Findings, rows: str, when: str) -> str:
    pairs = [(row, model) for row in rows.split(",") for model in findings.spec.models]
    found = [one.mean for row, model in pairs if (one := _minus(findings, row, model, _WHEN[when])) is not None]
    return f"{100 * min(found):+.1f} to {100 * max(found):+.1f}" if found else MISSING


def _minus(findings: Findings, row: str, model: str, phase: int) -> Estimate | None:
    others, models = {one.name: one for one in HELD}, findings.spec.models
    if model not in models:
        raise KeyError(model)
    return minus(DA_GRPO, others[row], findings, model, phase)


def _rate(findings: Findings, method: str) -> str:
    return _mean_told([rate for ends in _ends(findings, method) for rate in ends], 3)


def _rates(findings: Findings, method: str) -> str:
    means = [sum(ends) / len(ends) for ends in _ends(findings, method) if ends]
    return f"{_short(min(means), 2)} to {_short(max(means), 2)}" if means else MISSING


def _held(findings: Findings, method: str) -> str:
    rates = [rate for ends in _ends(findings, method) for rate in ends]
    return f"{sum(abs(rate - TARGET) <= BAND for rate in rates)} of {len(rates)}" if rates else MISSING


def _ends(findings: Findings, method: str) -> list[list[float]]:
    """For each SLM, order and phase the rates of its runs."""
    spec = findings.spec
    if method not in spec.ways:
        raise KeyError(method)
    return [
        phase_ends(findings.runs(model, method, name), number)
        for model in spec.models
        for name, phases in spec.phases.items()
        for number in range(len(phases))
    ]


def _seeds(findings: Findings) -> str:
    models = findings.spec.models
    return ", ".join(f"{model} {common_seeds_of(DA_GRPO.parts(findings, model, FIRST))}" for model in models)


def _mean_told(values: Sequence[float], digits: int) -> str:
    return _short(sum(values) / len(values), digits) if values else MISSING


def _short(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".removeprefix("0")


_NUMBERS: dict[str, Callable[..., str]] = {
    "lead": _lead, "leads": _leads, "rate": _rate, "rates": _rates, "held": _held, "seeds": _seeds,
}  # fmt: skip
