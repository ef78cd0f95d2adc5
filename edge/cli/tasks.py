"""`edge-agent tasks list | show | sample`: what can be learned and evaluated on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from edge.cli import completion
from edge.cli.options import Json
from edge.cli.output import print_json, print_line, visible
from edge.cli.settings import Settings, takes
from edge.core.errors import UsageError
from edge.core.formatting import counted, shown
from edge.core.limits import LARGEST_SEED, MOST_ITEMS
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.prompts import HELP_PHRASE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from edge.evaluation.judging import RolloutSettings
    from edge.tasks.descriptions import SourceAbout

app = Typer(help="What can be learned and evaluated on.", no_args_is_help=True, rich_markup_mode=None)


Source = Annotated[
    str,
    Argument(
        help="A name that `tasks list` shows, NAME:PATH, or a .jsonl or .csv file.",
        metavar="SOURCE",
        autocompletion=completion.sources,
    ),
]


_SHOWN_CHARS = 1200
_SHOWN_LEFT_OUT = 5
_LIST_NOTES = (
    "A data set's name alone loads it from the hub; NAME:PATH reads a local folder or file (jsonl, json, parquet).",
    'The path of a .jsonl file is a source too: {"question": ..., "answer": ...} on each line; or of a .csv file with such a header.',
    "Use any of them with --tasks. More about one: edge-agent tasks show SOURCE",
)


@app.command("list")
def tasks_list(json: Json = False) -> None:
    """Task sources: families, levels, how many items, where to get them."""
    from rich.table import Table

    from edge.tasks.descriptions import known_sources

    sources = known_sources()
    if json:
        print_json([_as_json(source) for source in sources])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("source", "judged as", "label", "levels", "steps"):
        table.add_column(title, no_wrap=True)
    for title in ("train", "test"):
        table.add_column(title, justify="right", no_wrap=True)
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
            _text(f"{source.about} ({source.where})"),
        )
    _console().print(table)
    print("\n".join(_LIST_NOTES))


@app.command("show")
@takes("question answer ask model state")
def tasks_show(source: Source, settings: Settings, json: Json = False) -> None:
    """Levels, label and step limit of a source, an example of each level, and the prompt as the model sees it."""
    from edge.app.settings import agent_settings, local_prompt_form, responses_are_guided
    from edge.tasks.descriptions import about, examples
    from edge.tasks.jsonl import as_record
    from edge.tasks.registry import open_source

    config = settings.config()
    opened = open_source(source, settings.columns_of([source], config)[source])
    described, items = about(opened), examples(opened)
    form = local_prompt_form(config)
    form = "full" if form == "auto" else form  # without reading the model's file
    rollout = replace(agent_settings(config, "").rollout, prompt_form=form, guided=responses_are_guided(config))
    if json:
        prompts = [[asdict(message) for message in rollout.messages(item)] for item in items]
        forms = [rollout.form_of(item) for item in items]
        outlines = [one and one.outline(HELP_PHRASE) for one in forms]
        shown_items = [
            {**as_record(item), "prompt": prompt, "guided": outline}
            for item, prompt, outline in zip(items, prompts, outlines, strict=True)
        ]
        print_json({**_as_json(described), "prompt_form": form, "examples": shown_items})
        return
    lines = [
        described.name + (f": {described.about}" if described.about else ""),
        f"from:    {described.where}",
        f"judged:  as {', '.join(described.judged_as)}",
        f"label:   {', '.join(described.labels)}; at most {' or '.join(map(str, described.max_steps))} reasoning steps",
        *(f"levels:  {family} {_span(described.levels[family])}" for family in described.families),
        f"items:   {_count(described.train)} train, {_count(described.test)} test",
    ]
    if described.left_out:
        lines.append(f"left out: {counted(len(described.left_out), 'record')} that nobody could judge")
        lines += [f"  {line}" for line in described.left_out[:_SHOWN_LEFT_OUT]]
    lines += [f"note:    {note}" for note in described.notes]
    console = _console()
    print(visible("\n".join(lines)))
    seen: set[tuple[str, object]] = set()
    for item in items:
        kind = (item.family, rollout.form_of(item) if rollout.guided else None)
        _show_example(console, item, None if kind in seen else rollout)
        seen.add(kind)


@app.command("sample")
@takes("question answer ask state")
def tasks_sample(
    source: Source,
    count: Annotated[int, Option("--n", min=1, max=MOST_ITEMS, help="How many items.", metavar="N")] = 5,
    level: Annotated[int | None, Option("--level", min=0, help="Only this level.", metavar="N")] = None,
    split: Annotated[str, Option("--split", help="train or test.", metavar="SPLIT")] = "train",
    seed: Annotated[int, Option("--seed", min=0, max=LARGEST_SEED, help="Seed of the choice.", metavar="N")] = 0,
    *,
    settings: Settings,
    json: Annotated[bool, Option("--json", help="One task item a line, as a .jsonl task file has it.")] = False,
) -> None:
    """Some items of a source."""
    from edge.tasks import descriptions
    from edge.tasks.registry import open_source

    if split not in ("train", "test"):
        raise UsageError(f"--split is train or test, not {split!r}")
    chosen: Any = split
    opened = open_source(source, settings.columns_of([source], settings.config())[source])
    items = descriptions.sample(opened, count, level=level, split=chosen, seed=seed)
    if json:
        _write_records(items)
    else:
        console = _console()
        for item in items:
            _show_example(console, item, None)
    if len(items) < count:
        of_level = "" if level is None else f" of level {level}"
        print_line(f"{visible(shown(source))} has only {counted(len(items), f'{split} item')}{of_level}")


def _write_records(items: Sequence[TaskItem]) -> None:
    from edge.tasks.jsonl import as_record

    for item in items:
        sys.stdout.write(json.dumps(as_record(item), ensure_ascii=False) + "\n")


def _as_json(source: SourceAbout) -> dict[str, Any]:
    return {**asdict(source), "levels": {family: list(levels) for family, levels in source.levels.items()}}


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def _text(text: str) -> Text:
    from rich.text import Text

    return Text(visible(text))


def _show_example(console: Console, item: TaskItem, rollout: RolloutSettings | None) -> None:
    """One item with its answer; as its bare question, or as rollouts ask it of the model."""
    from edge.tasks.jsonl import shown_answer

    console.rule(_text(f"{item.family} level {item.level}" if item.level else item.family), align="left")
    if rollout is not None:
        blocks = [
            ("the model reads" if one.role == "user" else f"{one.role} reads", one.content) for one in rollout.messages(item)
        ]
    else:
        options = [f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(item.options)]
        blocks = [("question", "\n".join([item.question, *options]))]
    if rollout is None or rollout.prompt_form == "compact":
        blocks = [(f"before it, {message.role}", message.content) for message in item.context] + blocks
    if rollout is not None and (held_to := rollout.form_of(item)) is not None:
        blocks.append(("its response is guided", held_to.outline(HELP_PHRASE)))
    if item.preamble:
        blocks.append(("given code", item.preamble))
    blocks.append(("tests" if item.kind is AnswerKind.PROGRAM else "answer", shown_answer(item) or "judged by a person"))
    if item.solution:
        blocks.append(("a worked solution", item.solution))
    for title, content in blocks:
        text = visible(content).strip("\n")
        text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ... ({len(text)} characters)"
        print("\n".join([f"{title}:", *(f"    {line}" for line in text.split("\n"))]))


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
