"""The command line: names, options and help of the commands that stand alone, and the groups (edge.cli.groups) of the others. Knows
typer; loads what a command needs only when it runs.

Each command hands its options to a module of the same name and returns an exit code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli import completing, status
from edge.cli.groups import adapters, budget, config, hints, models, outbox, privacy, router, service, tasks
from edge.cli.options import (
    Config,
    Coordinator,
    DeviceProfile,
    Json,
    Mode,
    Model,
    NeverSend,
    Seed,
    Sets,
    State,
    Steps,
    TargetRate,
    Task,
    Tasks,
    UnsafePrograms,
    task_label,
)
from edge.cli.settings import Settings
from edge.core.errors import UsageError
from edge.core.limits import LARGEST_SEED, MOST_ITEMS, MOST_STEPS, MOST_TOKENS

app = typer.Typer(
    name="edge-agent",
    help="A small language model on your own machine that answers, learns, and asks a cloud LLM within a budget.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for _name, _group in (
    ("adapters", adapters),
    ("config", config),
    ("models", models),
    ("router", router),
    ("tasks", tasks),
    ("budget", budget),
    ("service", service),
    ("outbox", outbox),
    ("privacy", privacy),
    ("hints", hints),
):
    app.add_typer(_group.app, name=_name)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False) -> None:
    if version:
        from edge import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def run(
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    tasks: Tasks = None,
    target_rate: TargetRate = None,
    steps: Steps = None,
    mode: Mode = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1 (0: any free one).")] = None,
    no_learn: Annotated[bool, typer.Option("--no-learn", help="Serve only.")] = False,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Learn only.")] = False,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    device_profile: DeviceProfile = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Serve and learn until Ctrl-C, or for --steps steps."""
    from edge.cli import run as command

    settings = Settings(
        config,
        sets,
        model,
        coordinator,
        state,
        mode,
        tasks,
        target_rate,
        seed,
        port=port,
        unsafe_programs=unsafe_programs,
        device_profile=device_profile,
        never_send=never_send,
    )
    return command.run(settings, command.RunOptions(steps=steps, learn=not no_learn, serve=not no_serve, json=json))


@app.command()
def learn(
    tasks: Tasks = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, max=MOST_STEPS, metavar="N", help="Steps of each phase.")] = None,
    target_rate: TargetRate = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder (default: runs/TASK-SEED).", metavar="DIR")] = None,
    eval_limit: Annotated[
        int,
        typer.Option(
            "--eval-limit",
            min=0,
            metavar="N",
            help="Held-out items of each phase's source to score at the start and after phases.",
        ),
    ] = 0,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", min=1, metavar="M", help="Score them also every M steps.")
    ] = None,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    unsafe_programs: UnsafePrograms = False,
    device_profile: DeviceProfile = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Learn a fixed number of steps and leave a run folder: configuration, events, metrics, figures, adapter, summary."""
    from edge.cli import learn as command

    settings = Settings(
        config,
        sets,
        model,
        coordinator,
        state,
        mode,
        tasks,
        target_rate,
        seed,
        phase_steps=steps,
        unsafe_programs=unsafe_programs,
        device_profile=device_profile,
    )
    return command.learn(settings, command.LearnOptions(out, eval_limit, eval_every, json))


@app.command(name="eval")
def evaluate(
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            help="Task source, as in learning. Repeatable (default: the configuration's).",
            metavar="SOURCE",
            autocompletion=completing.sources,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source (200).", metavar="N")
    ] = None,
    per_level: Annotated[
        int | None,
        typer.Option(
            "--per-level", min=1, max=MOST_ITEMS, help="N items of each level of each family; totals keep the mix.", metavar="N"
        ),
    ] = None,
    adapter: Annotated[
        str,
        typer.Option(
            "--adapter",
            help="What serves now, the newest version, none, or an adapter folder.",
            metavar="serving|latest|none|PATH",
        ),
    ] = "serving",
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="Run folder whose last adapter is measured.", metavar="DIR")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.", metavar="T")] = 0.0,
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", min=1, max=MOST_STEPS, help="Reasoning steps allowed (default: each item's).", metavar="N"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, max=MOST_TOKENS, help="Longest response (default: as in learning).", metavar="N"),
    ] = None,
    no_cloud: Annotated[
        bool, typer.Option("--no-cloud", "--local-only", help="Ask no cloud; joint accuracy is then not known.")
    ] = False,
    cloud_all: Annotated[
        bool, typer.Option("--cloud-all", help="Ask the cloud for every item, once, to know its accuracy.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep every cloud answer here (goes on in an existing file).", metavar="FILE")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Take cloud answers from here: no coordinator, no key.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw cost against quality; its numbers go beside it as .json.", metavar="FILE.png"),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json-out", help="Write the report here too; an interrupted run goes on.", metavar="FILE")
    ] = None,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Measure accuracy, coverage and assist rate on the test split, by family and level."""
    from edge.cli import evaluate as command

    settings = Settings(config, sets, model, coordinator, state, seed=seed, unsafe_programs=unsafe_programs)
    options = command.EvalOptions(
        sources=tuple(tasks or ()),
        limit=limit,
        per_level=per_level,
        adapter=adapter,
        run_folder=run_folder,
        temperature=temperature,
        max_steps=max_steps,
        max_tokens=max_tokens,
        no_cloud=no_cloud,
        cloud_all=cloud_all,
        record=record,
        replay=replay,
        plot=plot,
        json_out=json_out,
        json=json,
    )
    return command.evaluate(settings, options)


LocalOnly = Annotated[bool, typer.Option("--local-only", help="Ask no cloud.")]


def _mode(mode: str | None, *, local_only: bool, cloud: bool) -> str | None:
    """The one mode that the options say. Raises UsageError where they say two."""
    said = dict.fromkeys([*(["local-only"] * local_only), *(["cloud-only"] * cloud), *([mode] if mode else [])])
    if len(said) > 1:
        raise UsageError(f"{' and '.join(said)} are two modes", hint="give one of --mode, --local-only and --cloud")
    return next(iter(said), None)


@app.command()
def ask(
    question: Annotated[str | None, typer.Argument(help="The question; `-` or nothing reads stdin.")] = None,
    local_only: LocalOnly = False,
    cloud: Annotated[bool, typer.Option("--cloud", help="Ask the cloud, whatever the model would do.")] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="What the answerer is told before the question.", metavar="TEXT")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="Text that is put before the question. Repeatable.", metavar="FILE")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, max=MOST_TOKENS, help="Longest answer of the local model.", metavar="N"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.", metavar="T")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of this answer, above temperature 0.", metavar="N")
    ] = None,
    task: Task = None,
    full: Annotated[bool, typer.Option("--full", help="Show the reasoning too.")] = False,
    fail_on_fallback: Annotated[
        bool, typer.Option("--fail-on-fallback", help="Exit with 3 where help was asked for but not had.")
    ] = False,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Answer one question in the terminal.

    With a question, what is piped in is put before it: `edge-agent ask "What went wrong?" < build.log`.

    Exit codes: 0 answered; 1 not answered, also where --cloud was given and the cloud could or might not answer; 2 wrong usage;
    3 answered locally though help was asked for, with --fail-on-fallback (the answer is printed all the same); 130 Ctrl-C.
    """
    from edge.cli import ask as command

    settings = Settings(
        config, sets, model, coordinator, state, _mode(mode, local_only=local_only, cloud=cloud), never_send=never_send
    )
    options = command.AskOptions(
        system,
        tuple(files or ()),
        max_tokens,
        temperature,
        seed,
        full=full,
        json=json,
        fail_on_fallback=fail_on_fallback,
        task=task_label(task),
    )
    return command.ask(settings, question, options)


@app.command()
def chat(
    local_only: LocalOnly = False,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not remember what is asked (always: chat.history: false).")
    ] = False,
    task: Task = None,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout for each line of stdin.")] = False,
) -> int:
    """Talk with the agent; Ctrl-C stops an answer, Ctrl-D leaves, /help shows the commands."""
    from edge.cli import chat as command

    settings = Settings(
        config, sets, model, coordinator, state, _mode(mode, local_only=local_only, cloud=False), never_send=never_send
    )
    return command.chat(settings, command.ChatOptions(history=not no_history, json=json, task=task_label(task)))


@app.command()
def why(
    answer_id: Annotated[str, typer.Argument(help="The id that stands beside an answer.")],
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Explain where one answer came from."""
    from edge.cli import why as command

    return command.why(Settings(config, sets, state=state), answer_id, as_json=json)


@app.command()
def feedback(
    answer_id: Annotated[str, typer.Argument(help="The id that stands beside an answer.", metavar="ID")],
    verdict: Annotated[
        str, typer.Argument(help="good, bad, or none to take it back.", metavar="VERDICT", autocompletion=completing.verdicts)
    ],
    correction: Annotated[str | None, typer.Argument(help="With bad: what would have been right.", metavar="CORRECTION")] = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Say whether an answer was right."""
    from edge.cli import feedback as command

    return command.feedback(Settings(config, sets, state=state), answer_id, verdict, correction, as_json=json)


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL", autocompletion=completing.shells)],
) -> int:
    """Print the lines that make a shell complete this command, e.g. for a file of its own; --install-completion puts them in place."""
    from edge.cli import completion as command

    return command.completion(shell)


@app.command()
def doctor(
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure memory, arithmetic and the model, and recommend a batch (under a minute).")
    ] = False,
    write_profile: Annotated[
        Path | None, typer.Option("--write-profile", help="Measure, and write a device profile.", metavar="FILE")
    ] = None,
    keep_profile: Annotated[
        bool, typer.Option("--keep-profile", help="Measure, and write it where run and learn find it by themselves.")
    ] = False,
    device_profile: DeviceProfile = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Check this machine: Python, extras, engines, models, memory, cores, sandbox, coordinator, state folder."""
    from edge.cli import doctor as command

    settings = Settings(config, sets, model, coordinator, state, device_profile=device_profile)
    return command.doctor(settings, as_json=json, measure=measure, profile=write_profile, keep=keep_profile)


@app.command()
def whatif(
    share: Annotated[str | None, typer.Argument(help="The share to look at, as 10% or 0.1.", metavar="RATE")] = None,
    rate: Annotated[str | None, typer.Option("--target-rate", help="The same.", metavar="RATE")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="A table over several rates.")] = False,
    task: Annotated[str | None, typer.Option("--task", help="Answers to this task alone.", metavar="LABEL")] = None,
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="How many of the last answers.", metavar="N")] = 1000,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Replay recorded answers (20 at least) at another rate: calls, spend, how good, how fast. Nothing is changed or asked."""
    from edge.cli import whatif as command

    if share is not None and rate is not None:
        raise UsageError("two rates", hint="give one, or --sweep for several")
    options = command.WhatIfOptions(share if rate is None else rate, sweep, task, last, json)
    return command.whatif(Settings(config, sets, state=state), options)


@app.command()
def report(
    since: Annotated[
        str, typer.Option("--since", help="yesterday, today, ever, 24h, 7d, or a local date or time.", metavar="WHEN")
    ] = "yesterday",
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """What was learned, gained, forgotten and spent, beside a running agent or without one."""
    from edge.cli import report as command

    return command.report(Settings(config, sets, state=state), since, as_json=json)


app.command("status")(status.command)


@app.command()
def pause(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Stop learning until `resume`, also over restarts; answers go on."""
    from edge.cli import pause as command

    return command.set_paused(Settings(config, sets, state=state), paused=True, as_json=json)


@app.command()
def resume(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Go on learning after `pause`."""
    from edge.cli import pause as command

    return command.set_paused(Settings(config, sets, state=state), paused=False, as_json=json)


@app.command("serve-token")
def serve_token(
    new: Annotated[bool, typer.Option("--new", help="Make another one in its place.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
) -> int:
    """Print the token that clients show to the endpoint; make it first where there is none."""
    from edge.cli import serve_token as command

    return command.serve_token(Settings(config, sets, state=state), new=new)
