"""The story of a violation has what the violation is about, and what befell the world."""

from __future__ import annotations

from tools.simulate.faults.story import minimal_story

TOLD = (
    "   0.100 journal   4 limits fleet limits [3, None, None]",
    "   0.200 d0        complete math0-0-0: asked ()",
    "   0.250 d1        complete math0-1-0: asked ()",
    "   0.300 journal   5 reserve d0 math0-0-0 math#0 holds [1, 48, 56] of fleet, device[device:d0]",
    "   0.350 journal   6 reserve d1 math0-1-0 math#0 holds [1, 48, 56] of device[device:d1]",
    "   0.400 world     fault kill  0 for 1.00 s",
    "   0.500 d1        close_step math#0: ok ()",
)


def numbers(violation: str, most: int = 40) -> list[str]:
    return [line.split()[0] for line in minimal_story([violation], TOLD, most)]


def test_a_call_that_is_named_brings_its_lines_and_the_faults() -> None:
    assert numbers("I4: d0|math0-0-0|1 was executed and refunded") == ["0.200", "0.300", "0.400"]


def test_a_step_that_is_named_brings_its_lines() -> None:
    assert numbers("I9: d1 was told () of close_step math#0, the journal None") == ["0.300", "0.350", "0.400", "0.500"]


def test_an_entry_brings_itself_and_a_budget_what_the_journal_moves_in_it() -> None:
    assert numbers("I1: budget fleet holds [4, 0, 0] of [3, None, None] at entry 5") == ["0.100", "0.300", "0.400"]
    assert numbers("I8: entry 6 is late") == ["0.350", "0.400"]


def test_a_device_that_is_named_alone_brings_its_lines() -> None:
    assert numbers("I10: d1 was shut out at 3.000 and let in") == ["0.250", "0.350", "0.400", "0.500"]


def test_a_violation_that_names_nothing_brings_all_that_happened() -> None:
    assert len(numbers("I14: asyncio complains")) == len(TOLD)


def test_of_a_long_story_the_end_is_told_and_how_much_is_left_out() -> None:
    told = minimal_story(["I14: asyncio complains"], TOLD, 2)
    assert told == ["(5 lines before)", *TOLD[-2:]]
