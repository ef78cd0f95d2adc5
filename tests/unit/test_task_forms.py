"""The accepted forms of a person's own questions (prompt and completion, conversations, CSV), and how each is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.core.answer_key import OwnKey, is_number
from edge.core.errors import TaskFileError
from edge.core.types import AnswerKind, Message
from edge.dagrpo.prompts import SYSTEM_PROMPT, prompt_messages
from edge.evaluation.judging import Candidate, cloud_messages
from edge.serve.answer_forms import turns_of
from edge.serve.chat_schemas import ChatMessage
from edge.serve.response_schemas import ResponsesRequest
from edge.tasks.jsonl import JsonLinesSource, as_record, is_open, read_file, shown_answer
from edge.tasks.registry import open_source

LONG = "Dear customer, we are very sorry to hear that your parcel has been lost on its way."


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def conversation(*turns: tuple[str, object], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns], **fields}


@pytest.mark.parametrize(
    ("question", "answer", "kind", "options"),
    [
        ("How many?", "12", AnswerKind.MATH, ()),
        ("How much?", "$1,200.50", AnswerKind.MATH, ()),
        ("Simplify.", "\\frac{1}{2}", AnswerKind.MATH, ()),
        ("Who is it?", "Rex", AnswerKind.TEXT, ()),
        ("Pick\nA. trout\nB. whale", "B", AnswerKind.CHOICE, ("trout", "whale")),
        ("Pick\nA. trout\nB. whale", "whale", AnswerKind.CHOICE, ("trout", "whale")),
        ("Pick\n1. trout\n2. whale", "2", AnswerKind.CHOICE, ("trout", "whale")),
        ("Pick\nA. trout\nB. whale", "neither", AnswerKind.TEXT, ()),
        ("Write to them.", LONG, AnswerKind.FEEDBACK, ()),
    ],
)
def test_every_form_of_one_question_is_judged_alike(
    tmp_path: Path, question: str, answer: str, kind: AnswerKind, options: tuple[str, ...]
) -> None:
    path = lines(
        tmp_path / "own.jsonl",
        {"question": question, "answer": answer, "id": "q"},
        {"prompt": question, "completion": f" {answer}\n", "id": "p"},
        conversation(("user", question), ("assistant", answer), id="m"),
    )
    table = tmp_path / "own.csv"
    quoted = [text.replace('"', '""') for text in (question, answer)]
    table.write_text(f'question,answer\n"{quoted[0]}","{quoted[1]}"\n', encoding="utf-8")
    items = [*read_file(path).items, *read_file(table).items]
    assert {(item.question, item.kind, item.options) for item in items} == {(question, kind, options)}
    given = OwnKey("text", (answer,), closed=False).to_json() if kind is AnswerKind.FEEDBACK else answer
    assert {item.answer for item in items} == {given}
    assert {(item.id, item.task) for item in items[:3]} == {("q", "chat"), ("p", "chat"), ("m", "chat")}


def test_the_boxed_part_of_a_completion_is_the_answer_and_a_well_formed_one_a_worked_solution(tmp_path: Path) -> None:
    worked = "<think>\nStep 1: 2+3 is 5.\n</think>\n<answer>\\boxed{5}</answer>"
    plain = "First add: so it is \\boxed{5}, of course."
    items = read_file(
        lines(tmp_path / "own.jsonl", {"prompt": "2+3?", "completion": worked}, {"prompt": "3+2?", "completion": plain})
    ).items
    assert [(item.answer, item.kind, item.solution) for item in items] == [
        ("5", AnswerKind.MATH, worked),
        ("5", AnswerKind.MATH, ""),
    ]


def test_text_in_parts_is_learned_as_it_is_served(tmp_path: Path) -> None:
    for texts in (("What is ", "2+3?"), ("Read this:\n", "", "2+3?"), ("2", "+", "3?")):
        content = [{"type": "text", "text": text} for text in texts]
        (item,) = read_file(lines(tmp_path / "own.jsonl", conversation(("user", content), ("assistant", "5")))).items
        chat = ChatMessage.model_validate({"role": "user", "content": content})
        response = {"role": "user", "content": [{**part, "type": "input_text"} for part in content]}
        served = ResponsesRequest.model_validate({"input": [response]}).messages()
        assert (
            item.question == "".join(texts) == chat.in_words().content == turns_of([chat])[0]["content"] == served[-1]["content"]
        )


def test_a_conversation_is_asked_with_its_system_message_and_earlier_turns(tmp_path: Path) -> None:
    talk = [("developer", "Be brief."), ("user", "Hi, I am Jo."), ("assistant", "Hello Jo."), ("user", "Who am I?")]
    (item,) = read_file(lines(tmp_path / "own.jsonl", conversation(*talk, ("assistant", [{"type": "text", "text": "Jo"}])))).items
    before = (Message("system", "Be brief."), Message("user", "Hi, I am Jo."), Message("assistant", "Hello Jo."))
    assert (item.question, item.answer, item.context) == ("Who am I?", "Jo", before)
    system, *turns = prompt_messages(item, "full")
    assert system == Message("system", f"{SYSTEM_PROMPT}\n\nBe brief.")
    assert turns[:2] == list(before[1:]) and turns[2].content.startswith("Who am I?")
    assert prompt_messages(item, "compact") == (Message("user", "Who am I?"),), "as a compact model is asked when it serves"
    assert cloud_messages(item, "full")[:3] == before
    assert read_file(lines(tmp_path / "again.jsonl", as_record(item))).items == (item,)


@pytest.mark.parametrize(
    ("answer", "number"),
    [(text, True) for text in ("12", "$12.50", "30 %", "3 kg", "25 km/h", "2x + 3", "(1, 2)", r"\frac{1}{2}")]
    + [(text, False) for text in ("Room 12", "iPhone 15", "B12", "26 November 2026", "room 12 is open")],
)
def test_numbers_and_formulas_are_mathematics_and_names_with_digits_are_not(answer: str, number: bool) -> None:
    assert is_number(answer) is number


def test_one_question_in_two_contexts_is_two_items(tmp_path: Path) -> None:
    talks = [conversation(("system", name), ("user", "Who am I?"), ("assistant", name)) for name in ("Jo", "Mia")]
    one, other = read_file(lines(tmp_path / "own.jsonl", *talks)).items
    assert one.id != other.id and Candidate(one).key != Candidate(other).key


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (conversation(("user", "a")), "must end with the user's question and the assistant's answer"),
        ({"messages": "a"}, '"messages" must be a list'),
        (conversation(("user", "a"), ("assistant", " ")), "an empty text in message 2"),
        (conversation(("user", "a"), ("narrator", "b"), ("assistant", "c")), "no role of system"),
        (conversation(("user", [{"type": "image_url"}]), ("assistant", "c")), "message 1 something else than text"),
        (conversation(("user", "a"), ("tool", "b"), ("assistant", "c")), "message 2 calls a tool"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]}, "message 2 calls a tool"),
        (conversation(("user", "a"), ("assistant", "b"), tools=[{}]), '"tools" cannot be learned'),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}, "weight 0"),
        (
            conversation(("user", "a"), ("assistant", "b"), prompt="a"),
            'is given together with "prompt"|"messages" is given together with',
        ),
        ({"prompt": "a", "answer": "b"}, '"answer" does not go with "prompt"'),
        ({"question": "a", "completion": "b"}, '"completion" does not go with "question"'),
        ({"prompt": "a", "completion": ""}, '"completion" must be a non-empty text'),
        ({"prompt": "a", "completion": LONG, "split": "test"}, "too long to be judged"),
        ({"prompt": "a", "completion": "Z", "options": ["x", "y"]}, '"completion" names none of the 2 options'),
        ({"prompt": "a", "completion": "b", "label": "two words"}, '"label" must be a label'),
        ({"prompt": "a", "completion": "b", "label": "c", "task": "d"}, "another word for"),
    ],
)
def test_unlearnable_record_is_named_by_file_and_line(tmp_path: Path, record: dict[str, Any], complaint: str) -> None:
    path = lines(tmp_path / "own.jsonl", {"question": "ok", "answer": 1}, record)
    with pytest.raises(TaskFileError, match=complaint) as caught:
        open_source(str(path))
    assert "own.jsonl:2: " in str(caught.value)


def test_long_answers_are_reported_when_the_file_is_read_and_never_held_out(tmp_path: Path) -> None:
    records = [{"prompt": f"Write letter {number}.", "completion": f"{LONG} ({number})"} for number in range(30)]
    path = lines(tmp_path / "own.jsonl", {"question": "2+3?", "answer": 5, "split": "train"}, *records)
    source = JsonLinesSource(path)
    (note,) = source.notes
    assert "of 31 answers 30 are" in note and "Write letter 0." in note and "a few words" in note
    assert list(source.test(99)) == [] and len(source.train_items) == 31
    assert read_file(lines(tmp_path / "short.jsonl", {"question": "2+3?", "answer": 5})).notes == ()


CSV = 'Question;Answer;Label;Split;Options\nWhich?;whale;zoo;test;trout | whale\n\n"2+3;\nplus 1?";6;;;\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".csv", ";"), (".csv", "\t"), (".tsv", "\t"), (".CSV", ";")])
def test_a_csv_file_has_a_header_and_any_usual_delimiter(tmp_path: Path, encoding: str, suffix: str, delimiter: str) -> None:
    path = tmp_path / f"own{suffix}"
    path.write_text(CSV.replace(";", delimiter), encoding=encoding, newline="")
    first, second = read_file(path).items
    assert (first.question, first.answer, first.task, first.split, first.options) == (
        "Which?",
        "whale",
        "zoo",
        "test",
        ("trout", "whale"),
    )
    assert (first.kind, second.kind, first.family) == (AnswerKind.CHOICE, AnswerKind.MATH, "csv")
    assert (second.question, second.answer, second.task) == (f"2+3{delimiter}\nplus 1?", "6", "chat")


@pytest.mark.parametrize(
    ("text", "where", "complaint"),
    [
        ("frage,antwort\na,b\n", ":1: ", "names no question and answer"),
        ("question,answer,answer\na,b,c\n", ":1: ", "'answer' is there twice"),
        ("question,answer,hint\na,b,c\n", ":1: ", "unknown column 'hint', number 3 of the header"),
        ("question,answer,,\na,b,,\nb,c,,d\n", ":3: ", "a cell in column 4, which has no name"),
        ("question,answer\na,1\nb,2,3\n", ":3: ", "3 cells, but the header names 2"),
        ('question,answer\n"a\nb",1\nc,"d"e\n', ":4: ", "not CSV"),
        ("question,answer\na,1\na,2\n", ":3: ", "the question 'a' occurs twice, first in line 2, with other content"),
        ("question,answer,id\na,1,x\nb,1,x\n", ":3: ", "id 'x' occurs twice, first in line 2"),
        ("question,answer,level\na,1,high\n", ":2: ", '"level" must be a whole number'),
        ("question,answer\n", "", "no task item"),
        ("\n\nfrage,antwort\na,b\n", ":3: ", "names no question and answer"),
        ("sep=|\nquestion|answer\na|1\n", ":2: ", "names no question and answer"),
        (",question,answer\n0,a,1\nsecond,b,2\n", ":3: ", "a cell in column 1, which has no name"),
        ("question,answer,\na,1,7\n", ":2: ", "a cell in column 3, which has no name"),
        ("question,answer\na,1\nanswer,question\n2,b\n", ":3: ", "another header than in line 1"),
        ('question,answer\na,1\n"b,2\nc,3\n', ":3: ", "not CSV (unexpected end of data)"),
        ('question,answer\na, "b" or c, d\n', ":2: ", "3 cells"),
    ],
)
def test_a_bad_csv_file_gives_one_error_with_file_and_line(tmp_path: Path, text: str, where: str, complaint: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskFileError) as caught:
        open_source(str(path))
    assert f"own.csv{where}" in str(caught.value) and complaint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'question,answer\n"Who, me?", "Ilka, ""Mia"""\n"2+3?", 5',
        'question,answer\r\n "Who, me?" ,\t"Ilka, ""Mia""" \r\n2+3?\t,\u00a05\r\n',
        '"question" ; "answer"\n"Who, me?"; "Ilka, ""Mia"""\n\n"2+3?" ;"5"\n',
        '"question"\t "answer"\r"Who, me?" \t "Ilka, ""Mia"""\r2+3?\t 5\r',
        'sep=;\nquestion;answer\nWho, me?;Ilka, "Mia"\n2+3?;5\n',
        '"SEP=\t"\r\n\r\nQuestion\tANSWER\r\nWho, me?\tIlka, "Mia"\r\n2+3?\t5\r\n',
        ',question,answer\n0,"Who, me?","Ilka, ""Mia"""\n1,2+3?,5\n',
        '"";question;answer\n"17";Who, me?;Ilka, "Mia"\n"3";2+3?;5\n',
        'Unnamed: 0.1,Unnamed: 0,question,answer\n9,5,"Who, me?","Ilka, ""Mia"""\n2,,2+3?,5\n',
        'question,answer\n"Who, me?","Ilka, ""Mia"""\nquestion,answer\n2+3?,5\n',
        '\ufeffquestion;answer\nWho, me?;Ilka, "Mia"\n\ufeff"Question" ; Answer\n2+3?;5\n',
        '\ufeff\ufeff"question","answer"\n\ufeff"Who, me?","Ilka, ""Mia"""\n\ufeff2+3?,5\n',
    ],
)
def test_tables_as_programs_write_them_are_read_alike(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.csv").write_text(text, encoding="utf-8", newline="")
    assert [(item.question, item.answer) for item in read_file(tmp_path / "own.csv").items] == [
        ("Who, me?", 'Ilka, "Mia"'),
        ("2+3?", "5"),
    ]


def test_quotes_and_blanks_inside_a_cell_are_text(tmp_path: Path) -> None:
    rows = 'question,answer\n5" pipe,a "b" c\n"say ""a, "", ""b""","x, ""\n  ""y"", z"\n'
    (tmp_path / "own.csv").write_text(rows, encoding="utf-8")
    read = [(item.question, shown_answer(item)) for item in read_file(tmp_path / "own.csv").items]
    assert read == [('5" pipe', 'a "b" c'), ('say "a, ", "b"', 'x, "\n  "y", z')]


def test_a_cell_may_be_as_long_as_a_text_in_json(tmp_path: Path) -> None:
    question = "word " * 40_000 + "?"
    (tmp_path / "own.csv").write_text(f"question,answer\n{question},1\n", encoding="utf-8")
    assert read_file(tmp_path / "own.csv").items[0].question == question


def test_csv_file_that_is_not_utf_8_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes("question,answer\nWo?,Köln\n".encode("latin-1"))
    with pytest.raises(TaskFileError) as caught:
        open_source(str(tmp_path / "own.csv"))
    assert "UTF-8" in caught.value.hint


def test_few_questions_hold_none_out_unless_the_file_states_it(tmp_path: Path) -> None:
    facts = [{"question": f"What is fact {number}?", "answer": f"fact {number}"} for number in range(99)]
    few = JsonLinesSource(lines(tmp_path / "few.jsonl", *facts))
    assert (len(few.train_items), len(few.test_items), len(few.to_measure().test_items)) == (99, 0, 99)
    stated = JsonLinesSource(lines(tmp_path / "stated.jsonl", {**facts[0], "split": "test"}, *facts[1:]))
    assert len(stated.test_items) >= 1 and stated.to_measure() is stated


def test_each_label_of_a_file_needs_enough_questions_before_some_are_held_out(tmp_path: Path) -> None:
    many = [{"question": f"What is fact {number}?", "answer": f"fact {number}", "label": "many"} for number in range(200)]
    few = [{"question": f"Who is number {number}?", "answer": f"name {number}", "label": "few"} for number in range(15)]
    source = JsonLinesSource(lines(tmp_path / "own.jsonl", *many, *few))
    assert {item.task for item in source.test_items} == {"many"}
    assert 10 <= len(source.test_items) <= 30
    asked = source.to_measure().test_items
    assert {item.question for item in asked if item.task == "few"} == {str(one["question"]) for one in few}
    assert [item for item in asked if item.task == "many"] == list(source.test_items)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("assert f(1) == 2", ""),
        ("import math, collections.abc\nfrom os import path\nassert f(math.pi)", ""),
        ("def check(candidate):\n    assert candidate(1)\ncheck(f)", ""),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", ""),
        ("class Mine(Exception): pass\nclass More(Mine): pass\nassert f(1)", ""),
        ('{"inputs": [1], "outputs": [2]}', ""),
        ("import numpy as np\nassert f(1)", "import numpy"),
        ("from pytest import raises\nassert f(1)", "import pytest"),
        ("import asyncio\nasync def main():\n    assert await f(1)\nasyncio.run(main())", "await"),
        ("import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as o:\n    f(1)", "printed"),
        ("import sys\nold = sys.stdout\nf(1)", "printed"),
        ("class Mine(Shape): pass\nassert Mine().area()", "derive a class"),
        ("assert f(lambda x: x) == 1", "hand functions"),
        ("def twice(x): return 2 * x\nassert apply(twice, 2) == 4", "hand functions"),
        ("assert apply(key=[lambda x: x])", "hand functions"),
        ("def check(candidate):\n    assert candidate(lambda x: x)\ncheck(f)", "hand functions"),
        ("def check(key):\n    assert sorted([1], key=key)\ncheck(len)\nassert f(1)", ""),
        ("assert f(given) == 1", "hand functions"),
        ("assert given(lambda x: x) == f(1)", ""),
        ("assert stub(lambda x: x) == 1", "hand functions"),
        ("class Mine(Given): pass\nassert f(Mine().size)", ""),
    ],
)
def test_impossible_tests_are_named_when_the_file_is_read(tmp_path: Path, tests: str, reason: str) -> None:
    preamble = "def given(x):\n    return 1\ndef stub(x):\n    ...\nclass Given:\n    size = 1\n"
    program = {"question": "Write f.", "kind": "program", "tests": tests, "task": "code", "preamble": preamble}
    fine = {"question": "Write g.", "kind": "program", "tests": "assert g(1) == 2", "task": "code"}
    notes = JsonLinesSource(lines(tmp_path / "own.jsonl", fine, program)).notes
    if not reason:
        assert notes == ()
        return
    (note,) = notes
    assert "1 of 2 programs" in note and "'Write f.'" in note and reason in note


def test_an_open_question_is_shown_and_written_with_its_text(tmp_path: Path) -> None:
    (item,) = read_file(lines(tmp_path / "own.jsonl", {"prompt": "Write to them.", "completion": LONG})).items
    assert is_open(item) and shown_answer(item) == as_record(item)["answer"] == LONG
    assert read_file(lines(tmp_path / "again.jsonl", as_record(item))).items == (item,)
