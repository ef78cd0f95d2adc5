"""`edge-agent tasks list | show | sample`: what can be learned and evaluated on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli import completion
from edge.cli.options import Config, Json, Model, Sets, State
from edge.cli.output import print_json, print_line, visible
from edge.cli.settings import Settings
from edge.core.errors import UsageError
from edge.core.formatting import counted
from edge.core.limits import LARGEST_SEED, MOST_ITEMS
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.prompts import prompt_messages

if TYPE_CHECKING:
    from rich.console import Console

    from edge.tasks.descriptions import SourceAbout

app = typer.Typer(help="What can be learned and evaluated on.", no_args_is_help=True, rich_markup_mode=None)


Source = Annotated[
    str,
    typer.Argument(
        help="A name that `tasks list` shows, NAME:PATH, or a .jsonl file.", metavar="SOURCE", autocompletion=completion.sources
    ),
]


@app.command("list")
def tasks_list(json: Json = False) -> int:
    """Task sources: families, levels, how many items, where to get them."""
    from edge.tasks.descriptions import known_sources

    sources = known_sources()
    if json:
        print_json([_as_json(source) for source in sources])
        return 0
    console = _console()
    console.print(_source_table(sources))
    for line in _LIST_NOTES:
        _plain(console, line)
    return 0


@app.command("show")
def tasks_show(
    source: Source, model: Model = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Levels, label and step limit of a source, an example of each level, and the prompt as the model sees it."""
    from edge.tasks.descriptions import about, examples
    from edge.tasks.registry import open_source

    opened = open_source(source)
    described, items, form = about(opened), examples(opened), _prompt_form(Settings(config, sets, model, state=state))
    if json:
        print_json({**_as_json(described), "prompt_form": form, "examples": [_example_json(item, form) for item in items]})
        return 0
    console = _console()
    for line in _about_lines(described):
        _plain(console, line)
    seen: set[str] = set()
    for item in items:
        _show_example(console, item, form, with_prompt=item.family not in seen)
        seen.add(item.family)
    return 0


@app.command("sample")
def tasks_sample(
    source: Source,
    count: Annotated[int, typer.Option("--n", min=1, max=MOST_ITEMS, help="How many items.", metavar="N")] = 5,
    level: Annotated[int | None, typer.Option("--level", min=0, help="Only this level.", metavar="N")] = None,
    split: Annotated[str, typer.Option("--split", help="train or test.", metavar="SPLIT")] = "train",
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of the choice.", metavar="N")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One task item a line, as a .jsonl task file has it.")] = False,
) -> int:
    """Some items of a source."""
    from edge.core.formatting import shown
    from edge.tasks import descriptions
    from edge.tasks.registry import open_source

    if split not in ("train", "test"):
        raise UsageError(f"--split is train or test, not {split!r}")
    chosen: Any = split
    items = descriptions.sample(open_source(source), count, level=level, split=chosen, seed=seed)
    if json:
        _write_lines(items)
    else:
        console = _console()
        for item in items:
            _show_example(console, item, "compact", with_prompt=False)
    if len(items) < count:
        of_level = "" if level is None else f" of level {level}"
        print_line(f"{visible(shown(source))} has only {counted(len(items), f'{split} item')}{of_level}")
    return 0


_SHOWN_CHARS = 1200
_SHOWN_LEFT_OUT = 5
_LIST_NOTES = (
    "A data set's name alone loads it from the hub; NAME:PATH reads a local folder or file (jsonl, json, parquet).",
    'The path of a .jsonl file is a source too: {"question": ..., "answer": ...} on each line.',
    "Use any of them with --tasks. More about one: edge-agent tasks show SOURCE",
)


def _write_lines(items: list[TaskItem]) -> None:
    from edge.tasks.jsonl import as_record

    for item in items:
        sys.stdout.write(json.dumps(as_record(item), ensure_ascii=False) + "\n")


def _prompt_form(settings: Settings) -> str:
    """How the configured model is spoken to; without a look into its file, "auto" means the full prompt."""
    from edge.app import local_prompt_form

    form = local_prompt_form(settings.config())
    return "full" if form == "auto" else form


def _as_json(source: SourceAbout) -> dict[str, Any]:
    return {**asdict(source), "levels": {family: list(levels) for family, levels in source.levels.items()}}


def _example_json(item: TaskItem, form: str) -> dict[str, Any]:
    from edge.tasks.jsonl import as_record

    messages = [asdict(message) for message in prompt_messages(item, form)]
    return {**as_record(item), "prompt": messages}


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def _source_table(sources: list[SourceAbout]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("source", "judged as", "label", "levels", "steps"):
        table.add_column(title, no_wrap=True)
    table.add_column("train", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column("about, and where to get it")
    for source in sources:
        table.add_row(
            source.name,
            ", ".join(source.judged_as),
            ", ".join(source.labels),
            _span(source.all_levels),
            ", ".join(map(str, source.max_steps)),
            _count(source.train),
            _count(source.test),
            _plain_text(f"{source.about} ({source.where})"),
        )
    return table


def _plain_text(text: str) -> Any:
    from rich.text import Text

    return Text(visible(text))


def _about_lines(source: SourceAbout) -> Iterator[str]:
    yield source.name + (f": {source.about}" if source.about else "")
    yield f"from:    {source.where}"
    yield f"label:   {', '.join(source.labels)}; at most {' or '.join(map(str, source.max_steps))} reasoning steps"
    for family in source.families:
        yield f"levels:  {family} {_span(source.levels[family])}"
    yield f"items:   {_count(source.train)} train, {_count(source.test)} test"
    if source.left_out:
        yield f"left out: {counted(len(source.left_out), 'record')} that nobody could judge"
        yield from (f"  {line}" for line in source.left_out[:_SHOWN_LEFT_OUT])


def _show_example(console: Console, item: TaskItem, form: str, *, with_prompt: bool) -> None:
    console.rule(_plain_text(f"{item.family} level {item.level}" if item.level else item.family), align="left")
    if with_prompt:
        for message in prompt_messages(item, form):
            _block(console, f"{message.role} reads" if message.role != "user" else "the model reads", message.content)
    else:
        _block(console, "question", "\n".join([item.question, *_lettered(item)]))
    if item.preamble:
        _block(console, "given code", item.preamble)
    _block(console, "tests" if item.kind is AnswerKind.PROGRAM else "answer", item.answer or "judged by a person")
    if item.solution:
        _block(console, "a worked solution", item.solution)


def _lettered(item: TaskItem) -> list[str]:
    return [f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(item.options)]


def _block(console: Console, title: str, text: str) -> None:
    text = visible(text).strip("\n")
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ... ({len(text)} characters)"
    _plain(console, f"{title}:")
    _plain(console, "\n".join(f"    {line}" for line in shown.split("\n")))


def _plain(console: Console, text: str) -> None:
    console.print(_plain_text(text), soft_wrap=True)


def _span(levels: tuple[int, ...]) -> str:
    """1-7, or a list with gaps, or - where no level is known."""
    known = [level for level in levels if level]
    if not known:
        return "-"
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]}-{known[-1]}"
    return ", ".join(map(str, known))


def _count(items: int | None) -> str:
    return "unlimited" if items is None else f"{items:,}"
