"""Answer verifiers on right, wrong and tricky answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.answer_key import OwnKey, is_number
from edge.core.choices import ListedOptions, chosen_option, listed_options, option_name, two_readings
from edge.core.errors import UsageError
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.demonstrations import demonstration
from edge.dagrpo.prompts import compact_question, user_prompt
from edge.verifiers.by_kind import VerifierByKind
from edge.verifiers.math_answer import MathAnswer, MathVerdict


def item(answer: str, kind: AnswerKind = AnswerKind.MATH, options: tuple[str, ...] = ()) -> TaskItem:
    return TaskItem("id", "math", "test", 0, "test", "q", answer, kind, 4, options)


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("42", "\\boxed{42}", True),
        ("42", "\\boxed{41} no, \\boxed{42}", True),
        ("42", "\\boxed{42} no, \\boxed{41}", False),
        ("1200", "\\boxed{1,200}", True),
        ("1,234,567", "\\boxed{1234567}", True),
        ("1200.5", "\\boxed{1,200.5}", True),
        ("-3", "\\boxed{ -3 }", True),
        ("42", "42", False),
        ("42", "\\boxed{042}", False),
        ("42", "\\boxed{42.0}", False),
        ("(1,2)", "\\boxed{(1, 2)}", True),
        ("(12)", "\\boxed{(1,2)}", False),
        ("12", "\\boxed{1,2}", False),
        ("123", "\\boxed{1,23}", False),
        ("1234", "\\boxed{1,,234}", False),
        ("\\frac{1}{2}", "\\boxed{\\frac{1}{2}}", True),
        ("\\frac{1}{2}", "\\boxed{0.5}", False),
        ("x", "\\boxed{}", False),
    ],
)
def test_math_answers_compare_the_last_box_exactly(reference: str, response: str, right: bool) -> None:
    assert VerifierByKind().is_correct(item(reference), response) is right


def test_without_a_comparison_equivalence_is_known_only_where_it_is_exact() -> None:
    judge = MathAnswer()
    assert judge.verdict(item("7"), "\\boxed{7}") == MathVerdict(True, True)
    assert judge.verdict(item("7"), "\\boxed{8}") == MathVerdict(False, None)
    assert judge.verdict(item("7"), "8") == MathVerdict(False, None)


@given(st.integers(-(10**12), 10**12), st.text(" \t\n", max_size=3))
def test_blanks_and_thousands_separators_never_matter(number: int, blank: str) -> None:
    assert MathAnswer().is_correct(item(str(number)), f"\\boxed{{{blank}{number:,}{blank}}}")
    assert not MathAnswer().is_correct(item(str(number)), f"\\boxed{{{number + 1:,}}}")


METALS = ("gold", "iron", "tin")


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("\\boxed{B}", True),
        ("\\boxed{(b)}", True),
        ("\\boxed{B)}", True),
        ("\\boxed{B) iron}", True),
        ("\\boxed{(B) Iron.}", True),
        ("\\boxed{\\textbf{(B)}}", True),
        ("\\boxed{$B$}", True),
        ("\\boxed{1}", False),  # the options were lettered: no number was asked for
        ("\\boxed{iron}", True),
        ("\\boxed{\\text{iron}}", True),
        ("\\boxed{A}", False),
        ("\\boxed{}", False),
        ("\\boxed{AB}", False),
        ("\\boxed{A, B}", False),
        ("\\boxed{B or C}", False),
        ("\\boxed{B) gold}", False),
        ("\\boxed{A) iron}", False),
        ("\\boxed{B iron}", False),
        ("\\boxed{not B}", False),
        ("\\boxed{ir}", False),
        ("\\boxed{1.0}", False),
        ("\\boxed{Β}", False),  # a Greek capital beta
        ("B", False),
    ],
)
@pytest.mark.parametrize("reference", ["B", "1", "iron"])
def test_choices_are_named_by_letter_or_text(reference: str, response: str, right: bool) -> None:
    choice = item(reference, AnswerKind.CHOICE, METALS)
    assert VerifierByKind().is_correct(choice, response) is right


@pytest.mark.parametrize(
    ("answer", "options", "index"),
    [
        ("2", ("2", "3", "0"), 0),  # a number that is an option's text means the text
        ("0", ("2", "3", "0"), 2),
        ("1", ("2", "3", "0"), 1),
        ("A", ("B", "A"), 0),  # a letter is read as one, as the prompt asks
        ("A", ("O", "A", "B"), 0),
        ("b", ("O", "A", "B"), 1),
        ("A) O", ("O", "A", "B"), 0),
        ("B. A", ("O", "A", "B"), 1),
        ("O", ("O", "A", "B"), 0),  # no option has the letter O, so that it is a text
        ("G.", ("E", "G", "C"), 1),
        ("E", ("E", "e", "C"), 0),
        ("J", tuple("klmnopqrst"), 9),
        ("9", tuple("klmnopqrst"), 9),
        ("K", tuple("klmnopqrst"), 0),
        ("U", tuple("klmnopqrst"), None),
        ("same", ("same", "same", "x"), None),  # a repeated text names none
        ("2", ("2", "2", "x"), None),
        ("Same", ("same", "Same", "x"), 1),
        ("B", (), 1),
        ("7", (), 7),
        ("١", ("x", "y"), None),  # only ASCII digits are an index
        ("1" * 5000, (), None),
    ],
)
def test_ambiguity_is_resolved_strictly(answer: str, options: tuple[str, ...], index: int | None) -> None:
    assert chosen_option(answer, options) == index


@given(st.lists(st.sampled_from("ABCDEOX"), min_size=2, max_size=6, unique=True).map(tuple), st.data())
def test_a_letter_in_a_file_is_refused_or_names_one_option_to_reader_and_judge(
    options: tuple[str, ...], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(options) - 1))
    named = option_name(index, options)
    assert two_readings(named, options) is None and chosen_option(named, options) == index
    right = item(named, AnswerKind.CHOICE, options)
    assert VerifierByKind().is_correct(right, f"\\boxed{{{chr(ord('A') + index)}}}"), "the letter that the prompt asks for"
    assert VerifierByKind().is_correct(right, demonstration(right))
    if (two := two_readings(options[index], options)) is not None:
        assert two == (chosen_option(options[index], options), index)


INVISIBLE = st.text("\u200b\u2060\ufeff\u00ad\u200e", min_size=1, max_size=2)


@given(INVISIBLE, st.sampled_from("\u00a0\u202f\u2007 "))
def test_nobody_is_wrong_by_a_character_that_nobody_sees(invisible: str, blank: str) -> None:
    kinds = (
        (AnswerKind.TEXT, f"Ilka{invisible} M{blank}ay", "Ilka M ay", "Ilka May", ()),
        (AnswerKind.MATH, f"{invisible}1{blank}000{invisible}", "1000", "100", ()),
        (AnswerKind.MATH, f"2{blank}345{invisible}.5", "2,345.5", "2345.50", ()),
        (AnswerKind.CHOICE, f"{invisible}ir{invisible}on", "B", "A", METALS),
        (AnswerKind.CHOICE, f"B{invisible}", "iron", "tin", METALS),
    )
    for kind, marked, bare, other, options in kinds:
        for reference, response in ((marked, bare), (bare, marked), (marked, marked)):
            assert VerifierByKind().is_correct(item(reference, kind, options), f"\\boxed{{{response}}}")
        assert not VerifierByKind().is_correct(item(marked, kind, options), f"\\boxed{{{other}}}")
    own = OwnKey("text", (f"Ilka{invisible}",), (f"M{invisible}ia",))
    verdicts = [
        VerifierByKind().is_correct(item(own.to_json(), AnswerKind.FEEDBACK), f"\\boxed{{{name}}}") for name in ("ilka", "Mia")
    ]
    assert verdicts == [True, False]
    assert is_number(f"1{blank}000{invisible}") and not is_number(f"Ilka{invisible}")


option_texts = st.lists(
    st.text("abcxyz 123", min_size=3, max_size=8).map(str.strip).filter(lambda text: len(text) > 2), min_size=2
)
distinct_options = option_texts.filter(lambda texts: len({text.casefold() for text in texts}) == len(texts) <= 10).map(tuple)


@given(distinct_options, st.data())
def test_every_way_to_name_an_option_names_the_same_one(options: tuple[str, ...], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(options) - 1))
    letter, text = chr(ord("A") + index), options[index]
    for named in (letter, letter.lower(), f"({letter})", f"{letter}.", f"{letter}) {text}", text, f"\\text{{{letter}}}"):
        assert chosen_option(named, options) == index


@given(st.text(max_size=60), st.lists(st.text(max_size=5), max_size=10).map(tuple))
def test_verifier_accepts_any_text(text: str, options: tuple[str, ...]) -> None:
    for response in (text, f"\\boxed{{{text}}}"):
        VerifierByKind().is_correct(item("B", AnswerKind.CHOICE, options), response)
        VerifierByKind().is_correct(item("7"), response)


def test_a_kind_without_a_verifier_is_refused_rather_than_counted_wrong() -> None:
    with pytest.raises(UsageError, match="no verifier"):
        VerifierByKind().is_correct(item("", AnswerKind.FEEDBACK), "hello")


NUMBERED = "Which one rusts?\n{}) gold\n{}) iron\n{}) tin"


@pytest.mark.parametrize("first", [0, 1])
def test_a_number_names_an_option_only_where_the_question_numbers_them(first: int) -> None:
    question = NUMBERED.format(*range(first, first + 3))
    for reference in ("B", str(first + 1), "iron"):
        numbered = replace(item(reference, AnswerKind.CHOICE, METALS), question=question)
        verdicts = {named: VerifierByKind().is_correct(numbered, f"\\boxed{{{named}}}") for named in ("0", "1", "2", "B", "iron")}
        assert verdicts == {"0": False, "1": first == 0, "2": first == 1, "B": True, "iron": True}
    assert "\nA. " not in compact_question(numbered), "a question that lists its options is asked as it came"
    assert "the number of the right option" in user_prompt(numbered)


@pytest.mark.parametrize(
    ("question", "listed"),
    [
        ("Pick\nA. x\nB. y", ListedOptions(("x", "y"))),
        ("A) x\n(B) y\nC: z\nWhich?", ListedOptions(("x", "y", "z"))),
        ("Pick\n1. x\n2. y", ListedOptions(("x", "y"), 1)),
        ("Pick\n0) x\n1) y", ListedOptions(("x", "y"), 0)),
        ("1. take two\n2. take three\nHow many are taken?", None),  # steps of a question, not what can be answered
        ("Pick\nA. x\nC. y", None),
        ("Pick\n2. x\n3. y", None),
        ("A. x", None),
        ("", None),
    ],
)
def test_a_question_may_list_its_options_itself(question: str, listed: ListedOptions | None) -> None:
    assert listed_options(question) == listed


@pytest.mark.parametrize(("kind", "options"), [(AnswerKind.CHOICE, ("42", "17")), (AnswerKind.MATH, ())])
def test_a_plain_answer_needs_no_box(kind: AnswerKind, options: tuple[str, ...]) -> None:
    plain = replace(item("42", kind, options), form="plain")
    is_correct = VerifierByKind().is_correct
    assert is_correct(plain, " 42\n") and is_correct(plain, "\\boxed{42}") and not is_correct(plain, "17")
    assert not is_correct(replace(plain, form=None), "42")


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("\\boxed{Rex}", True),
        ("\\boxed{ rex. }", True),
        ("<think>Step 1: He barks.</think><answer>REX</answer>", True),
        ("\\boxed{Rex the dog}", False),
        ("He is called Rex.", True),
        ("The dog is named Max. Rex is the cat.", False),
        ("T-Rexes are dinosaurs", False),
        ("\\boxed{}", False),
        ("", False),
    ],
)
def test_a_short_text_is_compared_by_its_words(response: str, right: bool) -> None:
    assert VerifierByKind().is_correct(item("Rex", AnswerKind.TEXT), response) is right
