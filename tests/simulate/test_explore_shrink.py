"""A violating scenario is made smaller without losing what it violates."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tools.simulate.faults.explore import AGENTS, COORDINATOR
from tools.simulate.faults.scenario import smaller, words
from tools.simulate.faults.shrink import less, shrink, without_some

Items = tuple[int, ...]


def fewer(items: Items) -> Iterator[Items]:
    return without_some(items)


@given(st.lists(st.integers(0, 9), max_size=12), st.sets(st.integers(0, 9), max_size=3))
def test_what_is_left_violates_and_nothing_of_it_can_be_left_out(items: list[int], culprits: set[int]) -> None:
    def violates(some: Items) -> bool:
        return culprits <= set(some)

    if not violates(tuple(items)):
        return
    smallest = shrink(tuple(items), fewer, violates, 10_000)
    assert smallest.exhausted
    assert sorted(smallest.scenario) == sorted(culprits)


def test_it_stops_after_so_many_tries_with_the_smallest_so_far() -> None:
    told: list[int] = []
    smallest = shrink(tuple(range(64)), fewer, lambda some: {3, 60} <= set(some), 7, told.append)
    assert told == [1, 2, 3, 4, 5, 6, 7]
    assert not smallest.exhausted
    assert {3, 60} <= set(smallest.scenario) < set(range(64))


def test_smaller_numbers_begin_with_the_least() -> None:
    assert list(less(9, 1)) == [1, 4, 8]
    assert list(less(2, 1)) == [1]
    assert list(less(1, 1)) == []


def test_every_smaller_scenario_is_another_one_and_the_smallest_has_nothing_smaller() -> None:
    for kind in (COORDINATOR, AGENTS):
        for seed in range(30):
            scenario = kind.draw(seed)
            assert scenario not in list(smaller(scenario))
            smallest = shrink(scenario, smaller, lambda _: True, 10_000)
            assert smallest.exhausted
            assert smallest.scenario.faults == ()
            assert words(smallest.scenario)
