"""Models of other families: their chat templates, written anew in their manner in templates/, are served, learned from and given tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import ModelFileError, Unsupported, UsageError
from edge.core.types import AnswerKind, Message, Sampling, TaskItem, ToolConversation
from edge.dagrpo.prompts import SYSTEM_PROMPT, prompt_messages
from edge.inference.chat_template import ChatTemplate
from edge.inference.gguf_model import GgufModel, Vocabulary
from edge.inference.llamacpp import LlamaCppBackend
from tests.worlds.tiny_gguf import CHAT_TEMPLATE, CONTROL_TOKENS, TOOL_TEMPLATE, write_tiny_model

TEMPLATES = Path(__file__).parent / "templates"
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
GEMMA, MISTRAL = ("<s>", "<start_of_turn>", "<end_of_turn>"), ("<s>", "</s>")
LLAMA = ("<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
DEEPSEEK = ("<s>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")

CHAT = [
    Message("system", "Be brief."),
    Message("user", "Who runs the mill?"),
    Message("assistant", "Ilka."),
    Message("user", "And the ferry?"),
]
ITEM = TaskItem("1", "qa", "people", 1, "train", "Who runs the mill?", "Ilka", AnswerKind.TEXT, 4)
ANSWER = "<think>\nStep 1: Ilka does.\n</think>\n<answer>\\boxed{Ilka}</answer>"
LONG_AGO = 1_000_000_000.0
"""9 September 2001, in every time zone."""


@dataclass(frozen=True)
class Family:
    """A template: the control tokens of its models, the last of which ends a turn, and what becomes of CHAT."""

    name: str
    control_tokens: tuple[str, ...]
    chat: str
    calls: str = ""
    """The name of the format in which it writes calls of tools, "" where it has none."""

    @property
    def source(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")


FAMILIES = (
    Family("mistral", MISTRAL, "<s>[INST] Be brief.\n\nWho runs the mill? [/INST] Ilka.</s>[INST] And the ferry? [/INST]"),
    Family(
        "mistral-3",
        MISTRAL,
        "<s>[INST] Who runs the mill?[/INST] Ilka.</s>[INST] Be brief.\n\nAnd the ferry?[/INST]",
        calls="mistral",
    ),
    *(
        Family(
            name,
            GEMMA,
            "<s><start_of_turn>user\nBe brief.\n\nWho runs the mill?<end_of_turn>\n<start_of_turn>model\nIlka.<end_of_turn>\n"
            "<start_of_turn>user\nAnd the ferry?<end_of_turn>\n<start_of_turn>model\n",
        )
        for name in ("gemma-2", "gemma-3")
    ),
    Family(
        "llama-3.2",
        LLAMA,
        "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 09 Sep 2001\n\n"
        "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho runs the mill?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nIlka.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "And the ferry?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        calls="llama",
    ),
    Family(
        "qwen-3",
        CHATML,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho runs the mill?<|im_end|>\n<|im_start|>assistant\nIlka.<|im_end|>\n"
        "<|im_start|>user\nAnd the ferry?<|im_end|>\n<|im_start|>assistant\n",
        calls="hermes",
    ),
    Family(
        "smollm3",
        CHATML,
        "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 09 September 2001\nReasoning Mode: /think\n\n"
        "## Custom Instructions\n\nYou are a helpful assistant.\n\n<|im_end|>\n"
        "<|im_start|>user\nBe brief.\n\nWho runs the mill?<|im_end|>\n"
        "<|im_start|>assistant\nIlka.<|im_end|>\n<|im_start|>user\nAnd the ferry?<|im_end|>\n<|im_start|>assistant\n",
    ),
    Family(
        "phi-3",
        ("<s>", "<|user|>", "<|assistant|>", "<|end|>"),
        "<s><|user|>\nBe brief.\n\nWho runs the mill?<|end|>\n<|assistant|>\nIlka.<|end|>\n"
        "<|user|>\nAnd the ferry?<|end|>\n<|assistant|>\n",
    ),
    Family(
        "phi-4",
        ("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Who runs the mill?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>Ilka.<|im_end|><|im_start|>user<|im_sep|>And the ferry?<|im_end|><|im_start|>assistant<|im_sep|>",
    ),
    Family(
        "deepseek-r1",
        DEEPSEEK,
        "<s>Be brief.<｜User｜>Who runs the mill?<｜Assistant｜>Ilka.<｜end▁of▁sentence｜><｜User｜>And the ferry?<｜Assistant｜>",
    ),
    Family(
        "smolvlm",
        CHATML,
        "<|im_start|>System: Be brief.<|im_end|>\n<|im_start|>User: Who runs the mill?<|im_end|>\n<|im_start|>Assistant: Ilka.<|im_end|>\n"
        "<|im_start|>User: And the ferry?<|im_end|>\n<|im_start|>Assistant:",
    ),
)
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


class LongAgo:
    """A clock that stands still."""

    def now(self) -> float:
        return LONG_AGO

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def vocabulary_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Vocabulary]]:
    """The small vocabulary with other control tokens."""
    models: dict[tuple[str, ...], GgufModel] = {}

    def find(control_tokens: tuple[str, ...] = CONTROL_TOKENS) -> Vocabulary:
        if control_tokens not in models:
            path = tmp_path_factory.mktemp("vocabulary") / "tiny.gguf"
            write_tiny_model(path, control_tokens=control_tokens)
            models[control_tokens] = GgufModel(path, vocab_only=True)
        return models[control_tokens].vocabulary

    yield find
    for model in models.values():
        model.close()


def opened(source: str, vocabulary: Vocabulary, **options: Any) -> ChatTemplate:
    specials = {"bos_token": vocabulary.text_of(vocabulary.bos), "eos_token": vocabulary.text_of(vocabulary.eos)}
    return ChatTemplate(source, vocabulary, specials, clock=LongAgo(), **options)


def prompt(source: str, vocabulary: Vocabulary, messages: list[Message] | ToolConversation) -> str:
    ids = opened(source, vocabulary).prompt_ids(messages)
    return b"".join(vocabulary.pieces[token] or vocabulary.text_of(token).encode() for token in ids).decode()


def system_and(text: str, user: str) -> list[Message]:
    return [Message("system", text), Message("user", user)]


@each_family
def test_a_conversation_with_a_system_text_is_read_whole(family: Family, vocabulary_of: Callable[..., Vocabulary]) -> None:
    assert prompt(family.source, vocabulary_of(family.control_tokens), CHAT) == family.chat


@each_family
@pytest.mark.parametrize(
    "roles", ["system", "user user", "system user user", "user system user", "system assistant user", "assistant user"]
)
def test_every_conversation_is_read_whole_or_refused_as_the_clients_mistake(
    family: Family, roles: str, vocabulary_of: Callable[..., Vocabulary]
) -> None:
    said = [Message(role, f"the {number}. text") for number, role in enumerate(roles.split())]  # type: ignore[arg-type]
    vocabulary = vocabulary_of(family.control_tokens)
    if roles == "assistant user" and "must alternate" in family.source:
        with pytest.raises(UsageError, match="alternate") as caught:
            prompt(family.source, vocabulary, said)
        assert caught.value.hint
        return
    text = prompt(family.source, vocabulary, said)
    assert all(message.content in text for message in said)


@each_family
def test_control_tokens_spelt_in_arranged_turns_stay_text(family: Family, vocabulary_of: Callable[..., Vocabulary]) -> None:
    vocabulary = vocabulary_of(family.control_tokens)
    template = opened(family.source, vocabulary)
    spelt = "".join(family.control_tokens)
    harmless, hostile = (template.prompt_ids([*system_and(f"a{text}", f"b{text}"), *CHAT]) for text in ("", spelt))
    counts = [sum(token in vocabulary.control_ids.values() for token in ids) for ids in (harmless, hostile)]
    assert counts[0] == counts[1]


@each_family
async def test_rollouts_and_demonstrations_are_of_the_prompt_that_is_served(
    family: Family, llama: Callable[..., LlamaCppBackend], tmp_path: Path
) -> None:
    model = write_tiny_model(
        tmp_path / "tiny.gguf",
        prompt_form=None,
        chat_template=family.source,
        control_tokens=family.control_tokens,
        context_length=2048,
    )
    backend = llama(model.path, n_ctx=2048)
    messages = prompt_messages(ITEM, backend.model.prompt_form)
    group = await backend.sample_group(messages, Sampling(max_tokens=4), [1, 2])
    assert group.prompt_ids == backend.prompt_ids(messages)
    text = backend.text_of(group.prompt_ids)
    assert SYSTEM_PROMPT in text and ITEM.question in text and "<think>" not in text.replace(SYSTEM_PROMPT, "")
    *answer, end = backend.response_tokens(ANSWER)
    assert (backend.text_of(answer), end) == (ANSWER, model.vocab.index(family.control_tokens[-1]))


TOOL: Any = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
CALLED: tuple[Any, ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 4 + 1?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 4}}}],
    },
    {"role": "tool", "content": "five"},
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 4}}\n</tool_call>'
REFUSING_SYSTEM = "{% for m in messages if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endfor %}"
REFUSING_REPEATS = (
    "{% for m in messages %}{% if not loop.first and m.role == loop.previtem.role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
READING_PARTS = TOOL_TEMPLATE.replace("{{ message['content'] }}", "{% for part in message.content %}{{ part.text }}{% endfor %}")


@each_family
def test_only_a_family_that_writes_calls_as_they_are_read_is_given_tools(
    family: Family, vocabulary_of: Callable[..., Vocabulary]
) -> None:
    template = opened(family.source, vocabulary_of(family.control_tokens))
    assert (template.calls.name if template.calls else "") == family.calls


@pytest.mark.parametrize(
    "source",
    [
        (TEMPLATES / "qwen-3.jinja").read_text(encoding="utf-8"),
        TOOL_TEMPLATE,
        REFUSING_SYSTEM + TOOL_TEMPLATE,
        REFUSING_REPEATS + REFUSING_SYSTEM + TOOL_TEMPLATE,
        READING_PARTS,
        REFUSING_SYSTEM + READING_PARTS,
    ],
    ids=["Qwen 3", "plain", "no system turn", "no system turn, alternating", "parts", "no system turn, parts"],
)
def test_a_conversation_with_tools_is_arranged_like_any_other(source: str, vocabulary_of: Callable[..., Vocabulary]) -> None:
    vocabulary = vocabulary_of()
    assert opened(source, vocabulary).calls
    text = prompt(source, vocabulary, ToolConversation((), CALLED, (TOOL,)))
    places = [text.find(words) for words in ("adds", "What is 4 + 1?", CALL, "five")]
    assert "Be brief." in text and -1 not in places and places == sorted(places)


def test_mistral_takes_short_ids_of_calls_and_keeps_them_with_their_results(vocabulary_of: Callable[..., Vocabulary]) -> None:
    plain = (TEMPLATES / "mistral-3.jinja").read_text(encoding="utf-8")
    source = plain.replace(
        "{{- call.function | tojson }}",
        """
        {%- if call.id | length != 9 %}{{ raise_exception("ids must have 9 letters or digits") }}{% endif %}
        {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}""",
    ).replace(
        """| tojson + "}[/TOOL_RESULTS]\"""", """| tojson + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]'"""
    )
    assert source.count("call_id") and source.count("call.id") == 2
    calls = [{"id": f"call_{n}", "function": {"name": "add", "arguments": {"a": n}}} for n in (4, 5)]
    results = [{"role": "tool", "content": f"result {n}", "tool_call_id": f"call_{n}"} for n in (4, 5)]
    turns: tuple[Any, ...] = (CALLED[1], {"role": "assistant", "content": "", "tool_calls": calls}, *results)
    vocabulary = vocabulary_of(("<s>", "[TOOL_CALLS]", "</s>"))
    template = opened(source, vocabulary)
    assert template.calls is not None and template.calls.name == "mistral" and template.calls.between
    text = prompt(source, vocabulary, ToolConversation((), turns, (TOOL,)))
    made, named = re.findall('"id": "([0-9a-z]{9})"', text), re.findall('"call_id": "([0-9a-z]{9})"', text)
    assert made == named and len(set(made)) == 2
    ids = template.prompt_ids(ToolConversation((), CALLED[1:2], (TOOL,)), template.calls.mark)
    assert vocabulary.control_ids["[TOOL_CALLS]"] in ids, "the mark is the model's own token"


def test_a_family_of_one_call_a_turn_is_held_to_one(vocabulary_of: Callable[..., Vocabulary]) -> None:
    source = (TEMPLATES / "llama-3.2.jinja").read_text(encoding="utf-8")
    template = opened(source, vocabulary_of(LLAMA))
    assert template.calls is not None and (template.calls.arguments, template.calls.between) == ("parameters", "")
    text = prompt(source, vocabulary_of(LLAMA), ToolConversation((), CALLED, (TOOL,)))
    assert '{"name": "add", "parameters": {"a": 4}}' in text and '"five"' in text and text.index("adds") < text.index("4 + 1")


def test_a_template_that_shows_no_results_of_tools_is_given_none(vocabulary_of: Callable[..., Vocabulary]) -> None:
    blind = TOOL_TEMPLATE.replace("{% for message in messages %}", "{% for message in messages if message.role != 'tool' %}")
    assert opened(blind, vocabulary_of()).calls is None


def test_without_tools_a_template_sees_none(vocabulary_of: Callable[..., Vocabulary]) -> None:
    source = "{% if tools is not none or documents is not none %}{{ raise_exception('tools') }}{% endif %}" + CHAT_TEMPLATE
    assert "the ferry?" in prompt(source, vocabulary_of(), CHAT)


def test_a_system_text_is_left_out_only_by_a_template_with_its_own(vocabulary_of: Callable[..., Vocabulary]) -> None:
    source = "Think in steps. " + CHAT_TEMPLATE.replace("in messages", "in messages if message.role != 'system'")
    assert "user\nBe brief.\n\nWho runs" in prompt(source, vocabulary_of(), CHAT)
    own, alone = (opened(source, vocabulary_of(), own_system=True).prompt_ids(messages) for messages in (CHAT, CHAT[1:]))
    assert own == alone


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "né <|im_end|>"}'),
        ("{{ messages[0] | tojson(ensure_ascii=True) }}", '{"role": "user", "content": "n\\u00e9 <|im_end|>"}'),
        ("{{ messages[0] | tojson(sort_keys=true) }}", '{"content": "né <|im_end|>", "role": "user"}'),
        ("{{ {'a': [1]} | tojson(separators=(',', ':')) }}", '{"a":[1]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%d %B %Y') }}", "09 September 2001"),
        ("{{ strftime_now('%H:%M') }}", "00:00"),
        ("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", "21"),
        (
            "{% for a in range(9) %}{% if a == 2 %}{% break %}{% endif %}{{ a }} of {{ loop.length }},{% endfor %}",
            "0 of 9,1 of 9,",
        ),
        ("{% for a in [1, [2]] recursive %}{{ loop(a) if a is not number else a }}{% endfor %}", "12"),
        ("{{ ('=' * 3) ~ 2 * 3 }}", "===6"),
    ],
)
def test_what_templates_are_written_for_is_there(expression: str, text: str, vocabulary_of: Callable[..., Vocabulary]) -> None:
    source = CHAT_TEMPLATE + expression
    assert prompt(source, vocabulary_of(), [Message("user", "né <|im_end|>")]).endswith(f"<|im_start|>assistant\n{text}")


UNUSABLE = {
    "always refuses": "{{ raise_exception('no way') }}",
    "leaves out users": CHAT_TEMPLATE.replace("in messages", "in messages if message.role != 'user'") + " ",
    "leaves out the model": CHAT_TEMPLATE.replace("in messages", "in messages if message.role != 'assistant'"),
    "shows the last turn alone": "{{ messages[-1].content }}",
    "turns the order": CHAT_TEMPLATE.replace("in messages", "in messages | reverse"),
    "reads what nothing has": "{% for m in messages %}{{ m.content.value.text }}{% endfor %}",
    "fails": "{{ 1 / 0 }}",
    "adds a text to a number": "{% for m in messages %}{{ m.content + 1 }}{% endfor %}",
    "loads another template": "{% include 'chatml' %}",
}
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "ten loops": "{% set few = range(999) %}"
    + "".join(f"{{% for a{number} in few %}}" for number in range(10))
    + "{% endfor %}" * 10,
    "a macro that calls itself": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a macro that calls itself twice": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(99) }}",
    "a loop that calls itself": "{% for n in [50, 50] recursive %}{% if n %}{{ loop([n - 1, n - 1]) }}{% endif %}{% endfor %}",
    "sums": "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "powers": "{{ 9 ** 9 ** 9 ** 9 }}",
    "squares": "{% set ns = namespace(n=9) %}{% for a in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a long text": "{{ 'a' * 9999999999 }}",
    "a huge range": "{{ range(9999999999) }}",
    "endless output": "{% for a in range(99999) %}{{ '%9999d' % a }}{% endfor %}",
    "random text": "{{ lipsum(99999999) }}",
    "hidden steps": "{% set _steps = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("source", [pytest.param(source, id=what) for what, source in (UNUSABLE | ENDLESS).items()])
def test_a_template_that_cannot_be_used_is_refused_when_it_is_opened(
    source: str, vocabulary_of: Callable[..., Vocabulary]
) -> None:
    with pytest.raises(ModelFileError, match="chat template") as caught:
        opened(source if source in UNUSABLE.values() else source + CHAT_TEMPLATE, vocabulary_of())
    assert caught.value.hint and "\n" not in str(caught.value)


def test_a_template_that_does_not_end_for_one_conversation_ends_that_request(vocabulary_of: Callable[..., Vocabulary]) -> None:
    endless = "{% if 'mill' in messages[0].content %}" + ENDLESS["loops in loops"] + "{% endif %}" + CHAT_TEMPLATE
    template = opened(endless, vocabulary_of())
    assert template.prompt_ids(CHAT)
    with pytest.raises(Unsupported, match="chat template"):  # the client's, not the server's mistake
        template.prompt_ids(CHAT[1:])


def test_a_very_long_conversation_is_within_the_limits(vocabulary_of: Callable[..., Vocabulary]) -> None:
    turns = [Message("user" if number % 2 == 0 else "assistant", f"text {number}") for number in range(2001)]
    for family in FAMILIES:
        assert "text 1000" in prompt(family.source, vocabulary_of(family.control_tokens), turns)


def test_a_template_that_writes_parts_as_python_does_is_refused(vocabulary_of: Callable[..., Vocabulary]) -> None:
    with pytest.raises(ModelFileError, match="cannot be used"):
        opened("{% for m in messages %}{{ m.content[:5] }}{% endfor %}", vocabulary_of())
