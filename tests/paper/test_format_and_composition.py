"""The response format, the help request, composition and answer extraction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dagrpo.answers import answer_part, last_boxed, last_python_block, shown_answer
from edge.dagrpo.composition import compose, local_part
from edge.dagrpo.format import check_format, help_trigger_span
from edge.dagrpo.prompts import HELP_PHRASE


def thinking(steps: int, start: int = 1) -> str:
    lines = "\n".join(f"Step {number}: work" for number in range(start, start + steps))
    return f"<think>\n{lines}\n</think>\n"


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_response_is_well_formed_exactly_up_to_the_step_limit(steps: int, limit: int) -> None:
    verdict = check_format(thinking(steps) + "<answer>\\boxed{1}</answer>", limit)
    assert (verdict.ok, verdict.asks_help, verdict.steps) == (steps <= limit, False, steps)


def test_a_missing_box_is_a_wrong_answer_and_not_a_format_violation() -> None:
    assert check_format(thinking(2) + "<answer>42</answer>", 4).ok


def test_text_beside_the_box_is_allowed_inside_the_answer() -> None:
    assert check_format(thinking(1) + "<answer>So it is \\boxed{42}, done.</answer>", 4).ok


@pytest.mark.parametrize(
    "request_text",
    [
        HELP_PHRASE,
        "I need external assistance",
        "i NEED external assistance.\n",
        f"<answer>{HELP_PHRASE}</answer>",
        f"<answer>\n  {HELP_PHRASE}\n</answer>\n",
    ],
)
def test_a_bare_terminal_help_phrase_asks(request_text: str) -> None:
    verdict = check_format(thinking(3) + request_text, 4)
    assert verdict.ok and verdict.asks_help and verdict.steps == 3


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\n</think>\n{HELP_PHRASE}",
        f"<think>\nno step\n</think>\n{HELP_PHRASE}",
        HELP_PHRASE,
        thinking(5) + HELP_PHRASE,
        thinking(2) + f"{HELP_PHRASE} <answer>3</answer>",
        thinking(2) + f"<answer>3</answer>\n{HELP_PHRASE}",
        thinking(2) + f"<answer>{HELP_PHRASE}",
        thinking(2) + f"{HELP_PHRASE}</answer>",
        thinking(2) + f'He said "{HELP_PHRASE}"',
        thinking(2) + f"{HELP_PHRASE} {HELP_PHRASE}",
        thinking(2, start=2) + HELP_PHRASE,
    ],
)
def test_a_malformed_help_request_is_a_format_violation_and_no_request(text: str) -> None:
    verdict = check_format(text, 4)
    assert not verdict.ok and not verdict.asks_help and verdict.reason


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\nStep 1: they wrote {HELP_PHRASE}\n</think>\n<answer>\\boxed{{3}}</answer>",
        thinking(1) + f'<answer>"{HELP_PHRASE}" is what it said: \\boxed{{3}}</answer>',
    ],
)
def test_quoted_help_phrase_elsewhere_does_not_ask(text: str) -> None:
    verdict = check_format(text, 4)
    assert verdict.ok and not verdict.asks_help
    assert compose(text, "cloud") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<answer>\\boxed{1}</answer>",
        "Sure! " + thinking(1) + "<answer>1</answer>",
        thinking(1),
        thinking(1) + "<answer>1",
        thinking(1) + "<answer>1</answer> and more",
        thinking(1) + "<answer>1</answer><answer>2</answer>",
        thinking(1) + thinking(1) + "<answer>1</answer>",
        "<think>\nStep 1: a\nStep 3: b\n</think>\n<answer>1</answer>",
        "<think>\nStep 1: a\nStep 1: b\n</think>\n<answer>1</answer>",
        "<think>\nFirst,\nStep 1: a\n</think>\n<answer>1</answer>",
        "<think>\nStep 1: a\n<answer>1</answer>\n</think>",
        "<think>\nstep 1: a\n</think>\n<answer>1</answer>",
        "Step 1: a\n</think><answer>1</answer>",
    ],
)
def test_broken_structures_violate_the_format(text: str) -> None:
    verdict = check_format(text, 4)
    assert not verdict.ok and not verdict.asks_help and verdict.reason


@pytest.mark.parametrize("number", ["9" * 5000, "0" * 5000 + "2", "١", "１", "²", ""])
def test_first_step_with_another_number_is_a_format_violation(number: str) -> None:
    verdict = check_format(f"<think>\nStep {number}: a\n</think>\n<answer>1</answer>", 4)
    assert not verdict.ok and verdict.reason


def test_a_step_number_may_have_leading_zeros_and_only_ascii_digits_count() -> None:
    verdict = check_format("<think>\nStep 01: a\nStep ٢: still the first\nStep 002: b\n</think>\n<answer>1</answer>", 2)
    assert verdict.ok and verdict.steps == 2


@pytest.mark.parametrize("phrase", ["I need external aſſistance.", "İ need external assistance.", "ı need external assistance."])
def test_letters_of_other_scripts_do_not_ask_for_help(phrase: str) -> None:
    assert help_trigger_span(thinking(1) + phrase) is None
    assert not check_format(thinking(1) + f"<answer>{phrase}</answer>", 4).asks_help
    assert check_format(thinking(1) + phrase.translate({0x17F: "s", 0x130: "I", 0x131: "I"}).upper(), 4).asks_help


def test_a_step_may_span_several_lines() -> None:
    verdict = check_format("<think>\nStep 1: a\n  continued\nStep 2: b\n</think><answer>1</answer>", 2)
    assert verdict.ok and verdict.steps == 2


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, None])
def test_invalid_step_limit_is_refused(limit: object) -> None:
    with pytest.raises(ValueError, match="max_steps"):
        check_format(thinking(1), limit)  # type: ignore[arg-type]


@given(st.text())
def test_any_text_can_be_parsed_and_asking_implies_a_valid_format(text: str) -> None:
    verdict = check_format(text, 4)
    assert verdict.ok or not verdict.asks_help


@given(st.text(), st.text())
def test_composition_leaves_responses_without_a_request_unchanged(local: str, cloud: str) -> None:
    if not check_format(local, 4).asks_help and HELP_PHRASE[:-1].lower() not in local.lower():
        assert compose(local, cloud) == local


@given(st.text(), st.booleans(), st.integers(1, 4))
def test_composition_keeps_the_local_part_and_replaces_the_request_by_the_cloud_answer(
    cloud: str, wrapped: bool, steps: int
) -> None:
    opening, closing = ("<answer>", "</answer>") if wrapped else ("", "")
    local = thinking(steps) + opening + HELP_PHRASE + closing
    assert compose(local, cloud) == thinking(steps) + opening + cloud + closing
    assert local_part(local) == thinking(steps) + opening


@pytest.mark.parametrize("after", ["</think>\n{0}", "<answer>{0}", "{0}</answer>", "{0} Please."])
def test_composition_leaves_a_request_in_a_broken_structure_alone(after: str) -> None:
    local = thinking(1) + after.format(HELP_PHRASE)
    assert help_trigger_span(local) is None
    assert compose(local, "7") == local


def test_last_box_of_the_composed_response_is_the_clouds() -> None:
    local = "<think>\nStep 1: maybe \\boxed{1}\n</think>\n" + HELP_PHRASE
    assert last_boxed(compose(local, "<answer>\\boxed{2}</answer>")) == "2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{7}", "7"),
        ("a \\boxed{1} b \\boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{ 3 \right.}", r"\left\{ 3 \right."),
        (r"\boxed {5}", "5"),
        (r"\boxed 7.", "7"),
        ("$\\boxed{x^{2}}$", "x^{2}"),
        (r"\boxed{}", ""),
        (r"\boxed{1", None),
        (r"\boxed{1} then \boxed{2", None),
        (r"\boxedfoo{3}", None),
        (r"\boxed{4} and \boxedfoo{3}", "4"),
        ("no box", None),
        ("", None),
        ("\\boxed", None),
        (r"\boxed{3}. Always box with \boxed", "3"),
        (r"`\boxed{3}`, as I was told to use `\boxed`.", "3"),
        (r"\boxed{3}. Put it in \boxed and stop", "3"),
        (r"Put it in \boxed and stop", None),
        (r"Put it in \boxed.", None),
        ("Put it in \\boxed .", None),
        (r"It's \boxed (or so)", None),
        (r"\boxed \boxed", None),
        (r"\boxed -3", "-3"),
        (r"\boxed x", "x"),
        (r"\boxed x+1,", "x+1"),
        (r"\boxed -\pi", r"-\pi"),
        (r"\boxed $7$", None),
    ],
)
def test_the_last_box_is_found_with_balanced_braces(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@given(st.text(alphabet=st.characters(blacklist_characters="\\{}"), max_size=30))
def test_boxed_content_round_trips(content: str) -> None:
    assert last_boxed(f"x \\boxed{{{content}}} y") == content.strip()


@given(st.text())
def test_extraction_never_fails(text: str) -> None:
    last_boxed(text), answer_part(text), last_python_block(text), shown_answer(text)


def test_last_python_block_is_extracted() -> None:
    text = "```python\nold\n```\n```text\nno\n```\n```Python\nnew\n```\n"
    assert last_python_block(text) == "new\n"
    assert last_python_block("```\nplain\n```") is None


def test_shown_text_is_the_box_else_the_answer_part_else_the_text() -> None:
    assert shown_answer("<answer>x \\boxed{3}</answer>") == "3"
    assert shown_answer("<answer> hello </answer>") == "hello"
    assert shown_answer(" plain ") == "plain"
