"""The size of a step that fits a measured speed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.training.step_size import (
    FEWEST_PROMPTS,
    FEWEST_RESPONSES,
    STEP_S,
    StepSize,
    StepSpeed,
    StepTexts,
    fitting_size,
)

USUAL = StepSize(8, 8, 288)
RATES = st.floats(1.0, 1e5)
SPEEDS = st.builds(StepSpeed, RATES, RATES, RATES, st.integers(1, 128))
LENGTHS = st.lists(st.integers(1, 288), min_size=1, max_size=8).map(tuple)
TEXTS = st.builds(StepTexts, st.floats(1.0, 500.0), LENGTHS, st.just(288))
USUALS = st.builds(StepSize, st.integers(1, 64), st.integers(2, 64), st.integers(16, 2000))


def faster(speed: StepSpeed, times: float) -> StepSpeed:
    rates = speed.prefill_tokens_per_s, speed.decode_tokens_per_s, speed.training_tokens_per_s
    return StepSpeed(*(times * rate for rate in rates), speed.rows)


@given(USUALS, TEXTS, SPEEDS)
def test_no_step_is_larger_than_usual_or_smaller_than_the_least(usual: StepSize, texts: StepTexts, speed: StepSpeed) -> None:
    size = fitting_size(usual, texts, speed)
    assert min(usual.prompts, FEWEST_PROMPTS) <= size.prompts <= usual.prompts
    assert min(usual.group_size, FEWEST_RESPONSES) <= size.group_size <= usual.group_size
    assert min(usual.max_tokens, 128) <= size.max_tokens <= usual.max_tokens
    assert fitting_size(usual, texts, speed) == size


@given(USUALS, TEXTS, SPEEDS)
def test_a_step_takes_half_a_minute_at_most_or_is_the_least_one(usual: StepSize, texts: StepTexts, speed: StepSpeed) -> None:
    size = fitting_size(usual, texts, speed)
    if size.seconds(texts, speed) > STEP_S:
        least = min(usual.prompts, FEWEST_PROMPTS), min(usual.group_size, FEWEST_RESPONSES)
        assert size == StepSize(*least, min(usual.max_tokens, 128))


@given(TEXTS, SPEEDS, st.floats(1.0, 100.0))
def test_a_faster_machine_has_no_smaller_step(texts: StepTexts, speed: StepSpeed, times: float) -> None:
    slow, quick = fitting_size(USUAL, texts, speed), fitting_size(USUAL, texts, faster(speed, times))
    assert quick.max_tokens >= slow.max_tokens
    if quick.max_tokens == slow.max_tokens:
        assert quick.prompts * quick.group_size >= slow.prompts * slow.group_size


@given(USUALS, TEXTS, SPEEDS, st.lists(st.sampled_from(["prompts", "group_size", "max_tokens"]), unique=True))
def test_what_is_given_stays(usual: StepSize, texts: StepTexts, speed: StepSpeed, names: list[str]) -> None:
    size = fitting_size(usual, texts, speed, names)
    assert all(getattr(size, name) == getattr(usual, name) for name in names)


def test_responses_are_given_up_before_prompts_and_tokens_last() -> None:
    texts = StepTexts(50.0, (200,), 288)

    def at(tokens_per_s: float) -> StepSize:
        return fitting_size(USUAL, texts, StepSpeed(1000.0, tokens_per_s, tokens_per_s, 8))

    assert at(2000.0) == USUAL
    some = at(600.0)
    assert some.prompts == 8 and 4 <= some.group_size < 8 and some.max_tokens == 288
    assert at(200.0).max_tokens == 128
    assert at(10.0) == StepSize(4, 4, 128)


def test_a_step_has_a_limit_of_tokens_only_where_its_responses_can_exceed_it() -> None:
    slow, quick = StepSpeed(500.0, 50.0, 100.0, 8), StepSpeed(5000.0, 5000.0, 5000.0, 8)
    size, short = StepSize(4, 4, 288), StepTexts(50.0, (20,), 288)
    assert size.most_tokens(short, slow) == round(3 * STEP_S / (1 / 50 + 1 / 100))
    assert size.most_tokens(short, quick) == 0
    assert size.most_tokens(StepTexts(50.0, (20,), 24), slow) == 0
    assert StepSize(8, 8, 288).most_tokens(StepTexts(50.0, (60,), 288), slow) == 3 * 64 * 60
