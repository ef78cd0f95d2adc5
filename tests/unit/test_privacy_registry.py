"""What the privacy registry finds, what it leaves alone, and exact restoring."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.dagrpo.prompts import compact_question, user_prompt
from edge.privacy.placeholders import Restoring, changed_json, restored, strings_in
from edge.privacy.registry import Finder, PrivacyRegistry
from edge.tasks.registry import open_source
from tools.experiments.privacy import TERMS, corpus, measure

REGISTRY = PrivacyRegistry(terms=TERMS, never_send=["top secret", "like:PRJ-####"], region="DE")
PRIVATE = [
    ("mail jo.doe+x@mail.example.org now", "email"),
    ("call +49 170 1234567 now", "phone"),
    ("my phone is 5551234567", "phone"),
    ("open /home/jo/My Docs/plan.pdf", "path"),
    ("open C:\\Users\\jo\\x.txt", "path"),
    ("see \\\\server\\share\\a.docx", "path"),
    ("see report_2024.pdf", "path"),
    ("4111 1111 1111 1111 it is", "card"),
    ("DE89 3704 0044 0532 0130 00 it is", "iban"),
    ("host 10.1.2.3:80 and fe80::1234:5678", "ip"),
    ("AKIAIOSFODNN7EXAMPLE", "secret"),
    ("twilio SK" + "0a1b2c3d" * 4 + " it is", "secret"),
    ("bot M" + "aB3" * 8 + ".Gh_4kZ." + "x9Y" * 9, "secret"),
    ("AccountName=a;AccountKey=" + "aB3+" * 21 + "aB==;Suffix=x", "secret"),
    ("run --password hunter2", "secret"),
    ("mysql -u root -phunter2 shop", "secret"),
    ("curl -s -u jo:pw1 https://x.org", "secret"),
    ("export DB_PASS=hunter2", "secret"),
    ("<password>hunter2</password>", "secret"),
    ("mein Passwort lautet hunter2", "secret"),
    ("my password is correct horse battery staple", "secret"),
    ("Passphrase: the quick brown fox, since May", "secret"),
    ("the PIN is 4821.", "secret"),
    ("reach me at 5551234567", "phone"),
    ("Bob (415) 555-2671 came", "phone"),
    ("ask Bob on 03012345678 tonight", "phone"),
    ("AZURE_KEY=0123456789abcdef0123456789abcdef", "secret"),
    ("4111.1111.1111.1111 it is", "card"),
    ('to "jo schmidt"@firma.de', "email"),
    ("to jo@192.168.1.4 now", "email"),
    ("card 00:1A:2b:3c:4d:5e is on", "ip"),
    ("password: hunter2", "secret"),
    ("project  FALCON's plan", "term"),
    ("two anneliéses came", "term"),
    ("株式会社秘密の会議", "term"),
    ("class ProjectFalcon:", "term"),
    ("see blueheronltd.com now", "term"),
    ("call getACMEReport()", "term"),
]
ORDINARY = [
    "part NL91ABNA0417164301 and DE89 3704 0044 0532 0130 01, whose check digits are wrong",
    "123456 + 98765 = 222221",
    "2147483647 is 2^31 - 1",
    "5551234567 * 2 - 202 + 303 - 4040 = 11102465699",
    "1/2 + 3/4 = 5/4, and 12:30 or 2024-11-22 and/or 3.14159",
    "token = s.split(); a[::2]; math.log(x); flag.key; std::vector<int>",
    "def f(password: str, token: str = None) -> str: ...",
    "@app.route('/') and x @ w",
    "127.0.0.1 and ::1 and 255.255.255.0",
    "#!/usr/bin/env python3 > /dev/null",
    "https://example.org/a/b/c?d=e",
    "4111111111111112 has a wrong check digit",
    "node.js and Next.js",
    "the password is not working properly anymore, and the password is wrong",
    "the password is case sensitive; password is too short for the site",
    "the password is stored hashed using bcrypt",
    "pin 13 is high, pin 3 = 1024 mV, PIN 7",
    "ids = [4155552671]; f(4155552671); x = 4155552671",
    "Order 4155552671. The result is 4155552671. What is 4155552671? 4155552671 people came",
    "2147483647, 1700000000.",
    "the bridge will pass: yes; key = 12; pass_rate=0.5; if x == pass: -p 80 -port",
]


@pytest.mark.parametrize(("text", "kind"), PRIVATE)
def test_private_text_is_replaced_and_restored(text: str, kind: str) -> None:
    redacted = REGISTRY.redacted([text])
    assert redacted.replaced[kind] >= 1 and f"[{kind.upper()}_1]" in redacted.texts[0]
    assert redacted.restored(redacted.texts[0]) == text
    assert not REGISTRY.leaks(redacted.texts, "", redacted.originals)
    assert REGISTRY.leaks([text], "", {})[kind] >= 1


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("reach 4155552671 tonight", "reach [PHONE_1] tonight"),
        ("4155552671", "[PHONE_1]"),
        ("Bob 4155552671, Ann 4155552672.", "Bob [PHONE_1], Ann [PHONE_2]."),
        ("Ann\n4155552671\n", "Ann\n[PHONE_1]\n"),
        ("Jo's new one: (4155552671), not 4155552672", "Jo's new one: ([PHONE_1]), not [PHONE_2]"),
    ],
)
def test_unbroken_ten_digits_are_a_telephone_number_only_in_a_region_that_has_them(text: str, after: str) -> None:
    assert PrivacyRegistry(region="US").redacted([text]).texts == (after,)
    assert PrivacyRegistry(region=None).redacted([text]).texts == (text,)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("my password is blue horse and I forgot it", "my password is [SECRET_1] and I forgot it"),
        ("my password is purple elephants in the hall.", "my password is [SECRET_1]."),
        ("my password is hunter2 for the server", "my password is [SECRET_1] for the server"),
        ("Password: correct horse battery staple\nUser: bo", "Password: [SECRET_1]\nUser: bo"),
    ],
)
def test_a_password_of_several_words_ends_with_its_clause(text: str, after: str) -> None:
    redacted = REGISTRY.redacted([text])
    assert redacted.texts == (after,) and redacted.restored(after) == text


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(["PHONE IS0000000", "0000000", "jo@x.org", "[PHONE_1]", "EMAIL_1", "(tel:", "(mailto:"])
        | st.sampled_from(["(", "[", "]", "\\", "_", "$", "x", "{"]),
        max_size=9,
    )
)
@example(["PHONE IS0000000", "("])
@example(["PHONE IS0000000", "(tel:"])
@example(["jo@x.org", "PHONE IS0000000", "PHONE IS0000000", "EMAIL_1"])
def test_text_beside_brackets_of_a_link_is_restored_exactly(parts: list[str]) -> None:
    text = "".join(parts)
    redacted = REGISTRY.redacted([text])
    if len(redacted.originals) == sum(redacted.replaced.values()):
        assert redacted.restored(redacted.texts[0]) == text


@pytest.mark.parametrize("text", ORDINARY)
def test_arithmetic_and_programs_stay_unchanged(text: str) -> None:
    assert PrivacyRegistry(region="US").redacted([text]).texts == (text,)


@pytest.mark.parametrize("source", ["practice:group1", "practice:group2"])
def test_no_practice_question_is_changed(source: str) -> None:
    finder = Finder(region="US")
    for item in islice(open_source(source).train(3), 600):
        for text in (user_prompt(item), compact_question(item), item.solution):
            assert finder.find(text) == [], text


def test_planted_secrets_in_scope_do_not_leak() -> None:
    tallies = measure(corpus(seed=7, count=25))
    assert len(tallies) > 25
    leaked = {row: tally.first_leak for row, tally in tallies.items() if tally.in_reach and tally.leaked}
    assert leaked == {}


def test_placeholder_is_stable_through_a_conversation() -> None:
    first = ["I am jo@x.org", "Hello jo@x.org, ask ann@x.org"]
    one, two = REGISTRY.redacted(first), REGISTRY.redacted([*first, "JO@X.org wrote to bob@x.org"])
    assert two.texts[: len(first)] == one.texts == ("I am [EMAIL_1]", "Hello [EMAIL_1], ask [EMAIL_2]")
    assert two.texts[-1] == "[EMAIL_1] wrote to [EMAIL_3]"


def test_number_found_once_is_replaced_everywhere_in_any_grouping() -> None:
    redacted = REGISTRY.redacted(["phone: 030 1234567", "x 0301234567 y"])
    assert redacted.texts == ("phone: [PHONE_1]", "x [PHONE_1] y")


def test_text_that_looks_like_a_placeholder_is_left_alone_in_both_directions() -> None:
    text = "write [EMAIL_1] and EMAIL_2 literally, to jo@x.org"
    redacted = REGISTRY.redacted([text])
    assert redacted.texts == ("write [EMAIL_1] and EMAIL_2 literally, to [EMAIL_3]",)
    assert redacted.restored(redacted.texts[0]) == text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("[email_1]", "jo@x.org"),
        ("[Email_1]", "jo@x.org"),
        ("EMAIL_1.", "jo@x.org."),
        (r"\[EMAIL\_1\]", "jo@x.org"),
        ("[EMAIL_1](home)", "jo@x.org(home)"),
        ("[[EMAIL_1]]", "[jo@x.org]"),
        ("x[EMAIL_1], EMAIL_1 = EMAIL_1", "xjo@x.org, EMAIL_1 = jo@x.org"),
        ("([EMAIL_1])", "(jo@x.org)"),
        ("[EMAIL_1](mailto:[EMAIL_1])", "[jo@x.org](mailto:jo@x.org)"),
        ("email_1 = 3; MY_EMAIL_1; EMAIL_12; [EMAIL_2]", "email_1 = 3; MY_EMAIL_1; EMAIL_12; [EMAIL_2]"),
    ],
)
def test_placeholder_variants_written_by_a_model_are_restored(written: str, meant: str) -> None:
    assert restored(written, {"EMAIL_1": "jo@x.org"}) == meant


CODE = """
def get(rows, path1, ip_1):
    EMAIL_1 = rows[email_1] or rows[email1][email_1] or {email1} or {EMAIL_1}
    return f"${path1} ${EMAIL_1} $EMAIL_1 <Email1> <EMAIL_1> [email1] [EMAIL 1]", os.path.join(self.EMAIL_1, EMAIL_1.lower(), EMAIL_1[0])
"""


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000])
def test_program_in_an_answer_stays_unchanged_whole_and_streamed(length: int) -> None:
    originals = {"EMAIL_1": "jo@x.org", "PATH_1": "/a", "IP_1": "10.1.1.1"}
    stream = Restoring(originals)
    shown = "".join(stream.feed(CODE[place : place + length]) for place in range(0, len(CODE), length))
    assert shown + stream.rest() == restored(CODE, originals) == CODE


@settings(max_examples=400)
@given(
    st.lists(
        st.sampled_from(["[EMAIL_1]", "EMAIL_1", "[EM", "AIL", "_1", "E", "[email_1]", "PATH_1", "[PATH_12]", "(mail", "to:"])
        | st.sampled_from(["]", "[", "\\", "2", " =", ".", "=", "$", "(", " ", "x", "{"]),
        max_size=12,
    ),
    st.data(),
)
def test_a_streamed_answer_is_restored_as_a_whole_one_wherever_it_is_cut(pieces: list[str], data: st.DataObject) -> None:
    text, originals = "".join(pieces), {"EMAIL_1": "jo@x.org", "PATH_1": "/a/[EMAIL_1].txt"}
    stream, shown, place = Restoring(originals), "", 0
    while place < len(text):
        length = data.draw(st.integers(1, 5))
        shown += stream.feed(text[place : place + length])
        place += length
    assert shown + stream.rest() == restored(text, originals)


def test_only_a_possible_placeholder_is_held_back() -> None:
    stream = Restoring({"EMAIL_1": "jo@x.org"})
    assert [stream.feed(piece) for piece in ("Dear [EM", "AIL_1", "], hi", " you")] == ["Dear ", "", "jo@x.org, hi", " you"]
    assert Restoring({}).feed("[EM") == "[EM"


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from([text for text, _ in PRIVATE]),
        st.sampled_from(["@", "/", "\\", ".pdf", "[EMAIL_1]", "1234567890123456", "+49", "=", ":", "falcon", " "]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_redacted_text_never_leaks_and_unique_forms_are_restored_exactly(parts: list[str]) -> None:
    text = "".join(parts)
    redacted = REGISTRY.redacted([text])
    assert not REGISTRY.leaks(redacted.texts, "", redacted.originals)
    if len(redacted.originals) == sum(redacted.replaced.values()):
        assert redacted.restored(redacted.texts[0]) == text


def test_json_strings_are_replaced_in_place_and_restored() -> None:
    arguments = json.dumps({"path": "C:\\Users\\jo\\x.txt", "to": ["jo@x.org"]})
    body = {
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "acme_lookup", "arguments": arguments}}]}
        ],
        "tools": [{"type": "function", "function": {"name": "acme_lookup", "description": "for jo@x.org"}}],
        "card": 4111111111111111,
        "temperature": 0.5,
    }
    text = json.dumps(body)
    redacted = REGISTRY.redacted(["ask jo@x.org"], text)
    after = json.loads(redacted.json)
    assert redacted.texts == ("ask [EMAIL_1]",)
    assert after["tools"][0]["function"] == {"name": "TERM_1", "description": "for [EMAIL_1]"}
    inner = json.loads(after["messages"][0]["tool_calls"][0]["function"]["arguments"])
    assert inner == {"path": "[PATH_1]", "to": ["[EMAIL_1]"]} and after["card"] == "[CARD_1]" and after["temperature"] == 0.5
    assert not REGISTRY.leaks(redacted.texts, redacted.json, redacted.originals)
    back = json.loads(redacted.restored_json(redacted.json))
    assert back["messages"] == body["messages"] and back["tools"] == body["tools"]


def test_json_without_private_text_keeps_its_exact_bytes() -> None:
    text = '{ "tools":[{"type" : "function","n":1.50}] }'
    assert REGISTRY.redacted([], text).json == text == changed_json(text, lambda string, is_name: string)
    assert strings_in('{"a": "[1, {\\"b\\": \\"c\\"}]"}') == ["a", "1", "b", "c"]


@pytest.mark.parametrize(
    ("text", "rule"), [("this is TOP\n sécret", 1), ("see prj-1234", 2), ("t\u200bop secret", 1), ("topsecret PRJ-12", 0)]
)
def test_never_send_rules_are_plain_texts_and_patterns(text: str, rule: int) -> None:
    assert REGISTRY.broken_rule(["fine", text]) == rule
    assert REGISTRY.broken_rule([], json.dumps({"a": {"b": text}})) == rule


@pytest.mark.parametrize("rule", ["x", " ", "like:**", "like:a*b*c*d", "a" * 501])
def test_a_rule_that_forbids_everything_or_takes_too_long_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        PrivacyRegistry(never_send=[rule])


def test_disabled_registry_replaces_nothing_but_keeps_its_rules() -> None:
    off = PrivacyRegistry(enabled=False, never_send=["secret"])
    assert off.redacted(["jo@x.org"]).texts == ("jo@x.org",) and off.broken_rule(["a secret"]) == 1
    assert off.cut("jo@x.org is there") == "[cut] is there"


@pytest.mark.parametrize("term", ["email", "path", "secret"])
def test_term_that_is_part_of_a_placeholder_name_causes_no_confusion(term: str) -> None:
    registry = PrivacyRegistry(terms=[term])
    redacted = registry.redacted([f"the {term} of jo@x.org"])
    assert redacted.texts == ("the [TERM_1] of [EMAIL_1]",)
    assert not registry.leaks(redacted.texts, "", redacted.originals)
    assert redacted.restored(redacted.texts[0]) == f"the {term} of jo@x.org"


def test_replaced_text_counts_as_a_leak_even_if_no_rule_finds_it() -> None:
    registry = PrivacyRegistry()
    assert registry.leaks(["about Falcon"], "", {}) == {}
    assert registry.leaks(["about [TERM_1]"], "", {"TERM_1": "Falcon"}) == {}
    assert registry.leaks(["about Falcon"], '["Falcon"]', {"TERM_1": "Falcon"}) == {"known": 2}
