"""The comparison that the paper leaves out: every adapter held to exactly the same share of questions sent to the cloud. Knows contestants
and their looks; knows nothing of how rates came about while learning.

Joint accuracy grows with what is sent, so a method that asks a little more looks a little better; at one rate only who is sent counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tools.experiments.contestants import (
    ALL_FAMILIES,
    BARE_DIAL,
    DA_GRPO,
    EDGE_ONLY_DIAL,
    FIRST,
    HELD,
    RIVALS,
    SECOND,
    TARGET,
    Contestant,
)
from tools.experiments.findings import Findings, Part, by_common_seed, common_seeds_of, compared, pairs_of, pooled
from tools.experiments.left_out import estimated, left_out, side_by_side, together
from tools.experiments.measures import Rule, accuracy, difference, oracle
from tools.experiments.stats import Estimate, over_seeds
from tools.experiments.tables import MISSING, Table, percent, signed, with_half

EQUAL_RATES = (0.1, 0.2, 0.3, 0.5)
_WHEN = {FIRST: "during (after the phase of their group)", SECOND: "post (after the other group's phase)"}
_BOUNDS = (BARE_DIAL, EDGE_ONLY_DIAL, DA_GRPO)
_HOW = (
    "Each adapter is frozen and its rate is set after the fact, in each family: first what the model asks for by itself, then what has "
    "the highest help log-odds goes to the cloud (router: the highest predicted failure; naive: random questions); the oracle has the "
    "same share of each family. Items without a decision stay, so a rate may not be reached. The dial of a model before learning, and of "
    "one that only learned to answer, ranks by the same log-odds, which nobody has trained."
)
_STAR = "A star marks an interval over several seeds that is without 0."
_ITEMS = "Where there is one seed, and before learning, ± is of items only."


def equal_rate_tables(findings: Findings) -> list[Table]:
    """Joint accuracy at several rates during and post, DA-GRPO against each other row, and what each row lost in between."""
    rates = [equal_rates(findings, phase) for phase in (FIRST, SECOND)]
    return [*rates, differences(findings), pooled_differences(findings), forgotten(findings)]


def equal_rates(findings: Findings, phase: int) -> Table:
    """Joint accuracy over all four families at each rate, with the oracle's bound of the same models."""
    rows = []
    for model in findings.spec.models:
        for row in HELD:
            told = (_mean(row.parts(findings, model, phase), row, share) for share in EQUAL_RATES)
            rows.append((model, row.told, common_seeds_of(row.parts(findings, model, phase)), *told))
        for row in _BOUNDS:
            told = (_bound(row.parts(findings, model, phase), share) for share in EQUAL_RATES)
            rows.append((model, f"oracle over {row.told}", common_seeds_of(row.parts(findings, model, phase)), *told))
    title = f"Joint accuracy at equal realised rate, in percent: mean of the four families {_WHEN[phase]}"
    return Table(
        title, ("SLM", "method", "seeds", *(f"@ {percent(share, 0)} %" for share in EQUAL_RATES)), tuple(rows), (_HOW, _ITEMS)
    )


def differences(findings: Findings) -> Table:
    """DA-GRPO against every other, item by item and seed by seed, family by family."""
    places = [(family, phase) for family in ALL_FAMILIES for phase in (FIRST, SECOND)]
    rows = []
    for model in findings.spec.models:
        for other in HELD[:-1]:
            rules = (DA_GRPO.held_to(TARGET), other.held_to(TARGET))
            cells = (
                _difference([DA_GRPO.part(findings, model, *at)], [other.part(findings, model, *at)], rules) for at in places
            )
            rows.append((model, other.told, _common_seeds(findings, model, DA_GRPO, other), *cells))
    columns = tuple(f"{family.name} {'during' if phase == FIRST else 'post'}" for family, phase in places)
    title = f"DA-GRPO's joint accuracy minus that of others at the same {percent(TARGET, 0)} % cloud, in points (same seeds, same items)"
    return Table(
        title,
        ("SLM", "against", "seeds", *columns),
        tuple(rows),
        (_STAR, _ITEMS),
    )


def pooled_differences(findings: Findings) -> Table:
    """The same over all four families: one number for each model, other and time."""
    rows = []
    for model in findings.spec.models:
        for other in HELD[:-1]:
            cells = (_minus(DA_GRPO, other, findings, model, phase) for phase in (FIRST, SECOND))
            rows.append((model, other.told, _common_seeds(findings, model, DA_GRPO, other), *cells))
    title = f"All four families together: DA-GRPO minus others at the same {percent(TARGET, 0)} % cloud, joint accuracy in points"
    return Table(
        title,
        ("SLM", "against", "seeds", "during", "post"),
        tuple(rows),
        (_STAR, _ITEMS),
    )


def forgotten(findings: Findings) -> Table:
    """During minus post of the same runs: what the other group's phase cost where a change of the rate cannot hide it or look like it."""
    rows = []
    for model in findings.spec.models:
        for row in (row for row in HELD if row.learns):
            during, post = (row.parts(findings, model, phase) for phase in (FIRST, SECOND))
            rules = (row.held_to(TARGET), row.held_to(TARGET))
            cells = (_difference([before], [after], rules) for before, after in zip(during, post, strict=True))
            rows.append((model, row.told, common_seeds_of([*during, *post]), *cells, _difference(during, post, rules)))
    title = f"Forgotten at equal rate: joint accuracy during minus post at the same {percent(TARGET, 0)} % cloud, in points"
    columns = (*(family.name for family in ALL_FAMILIES), "all four")
    return Table(title, ("SLM", "method", "seeds", *columns), tuple(rows), (_STAR, _ITEMS))


def primary(findings: Findings) -> Table:
    """DA-GRPO against the best of the others at the target rate, during, for each SLM and in the mean of all."""
    share, models = percent(TARGET, 0), findings.spec.models
    best = {model: one for model in models if (one := _best_rival(findings, model)) is not None}
    rows = [
        (
            model,
            best[model].told if model in best else MISSING,
            _mean(DA_GRPO.parts(findings, model, FIRST), DA_GRPO, TARGET),
            _mean(best[model].parts(findings, model, FIRST), best[model], TARGET) if model in best else MISSING,
            _signed(minus(DA_GRPO, best[model], findings, model, FIRST)) if model in best else MISSING,
        )
        for model in models
    ]
    rows.append(("all", "", "", "", _signed(_lead_over(findings, best)) if len(best) == len(models) else MISSING))
    return Table(
        f"Primary comparison: joint accuracy at the same {share} % cloud, during, mean of the four families, in percent",
        ("SLM", "best other", "DA-GRPO", "best other's", "DA-GRPO minus it"),
        tuple(rows),
        (
            "Set down before the first cell was run. The best other is, for each SLM, the one with the highest mean of: "
            f"{', '.join(row.told for row in RIVALS)}. ± is a 95 % interval over seeds and items, not widened for the choice of "
            "the best, which favours the others. " + _STAR,
        ),
    )


def _best_rival(findings: Findings, model: str) -> Contestant | None:
    """The other with the highest joint accuracy; None until all of them have been run with one seed at least."""
    found = [(pooled(row.parts(findings, model, FIRST), row.held_to(TARGET), accuracy), row) for row in RIVALS]
    known = [(one.mean, row) for one, row in found if one is not None]
    return max(known, key=lambda pair: pair[0])[1] if len(known) == len(RIVALS) else None


def _lead_over(findings: Findings, best: Mapping[str, Contestant]) -> Estimate | None:
    """DA-GRPO minus each SLM's best other, all SLMs together: every SLM is asked the same items, which are left out together."""
    mine = [part for model in best for part in DA_GRPO.parts(findings, model, FIRST)]
    theirs = [part for model, row in best.items() for part in row.parts(findings, model, FIRST)]
    rules = [row.held_to(TARGET) for row in best.values() for _ in ALL_FAMILIES]
    left_S = [
        together(
            [
                side_by_side(left_out(one, DA_GRPO.held_to(TARGET)), left_out(other, rule))
                for (one, other), rule in zip(pairs, rules, strict=True)
            ]
        )
        for pairs in pairs_of(mine, theirs)
    ]
    return estimated(left_S, difference(accuracy))


def _common_seeds(findings: Findings, model: str, *compared_rows: Contestant) -> str:
    return common_seeds_of([part for row in compared_rows for part in row.parts(findings, model, FIRST)])


def _mean(parts: list[Part], row: Contestant, share: float) -> str:
    found = pooled(parts, row.held_to(share), accuracy)
    return MISSING if found is None else with_half(found)


def _bound(parts: list[Part], share: float) -> str:
    bounds = list(_bounds(parts, share))
    return percent(sum(bounds) / len(bounds)) if len(bounds) == len(parts) else MISSING


def _bounds(parts: list[Part], share: float) -> Iterator[float]:
    """The oracle's accuracy on each source that was looked at, mean over seeds."""
    for looks in zip(*by_common_seed(parts), strict=True):
        yield over_seeds([oracle(look, share) for look in looks]).mean


def minus(one: Contestant, other: Contestant, findings: Findings, model: str, phase: int) -> Estimate | None:
    """What one is ahead of another at the same rate, all four families together; in accuracy, not in points."""
    mine, theirs = one.parts(findings, model, phase), other.parts(findings, model, phase)
    return compared(mine, theirs, (one.held_to(TARGET), other.held_to(TARGET)), difference(accuracy))


def _minus(one: Contestant, other: Contestant, findings: Findings, model: str, phase: int) -> str:
    return _signed(minus(one, other, findings, model, phase))


def _difference(mine: list[Part], theirs: list[Part], rules: tuple[Rule, Rule]) -> str:
    return _signed(compared(mine, theirs, rules, difference(accuracy)))


def _signed(found: Estimate | None) -> str:
    return MISSING if found is None else signed(found)
