"""The command line: names, options and help. Knows typer; loads what a command needs only when it runs.

Each command hands its options to a module of the same name and returns an exit code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli import completing
from edge.cli.settings import Settings
from edge.core.errors import UsageError
from edge.core.limits import LARGEST_SEED, MOST_ITEMS, MOST_STEPS, MOST_TOKENS
from edge.core.names import TASK_LABEL_FORM, is_task_label, shown

app = typer.Typer(
    name="edge-agent",
    help="A small language model on your own machine that answers, learns, and asks a cloud LLM within a budget.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Begin, show and check the configuration.", no_args_is_help=True, rich_markup_mode=None)
tasks_app = typer.Typer(help="What can be learned and evaluated on.", no_args_is_help=True, rich_markup_mode=None)
budget_app = typer.Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)
models_app = typer.Typer(help="Models on this machine, and how to get more.", no_args_is_help=True, rich_markup_mode=None)
adapters_app = typer.Typer(
    help="What was learned: list, inspect, go back, take away.", no_args_is_help=True, rich_markup_mode=None
)
router_app = typer.Typer(
    help="A classifier that decides what is handed over: the baseline.", no_args_is_help=True, rich_markup_mode=None
)
service_app = typer.Typer(
    help="Run in the background from log-in on (systemd, launchd).", no_args_is_help=True, rich_markup_mode=None
)
outbox_app = typer.Typer(help="What left this device, when and why.", invoke_without_command=True, rich_markup_mode=None)
privacy_app = typer.Typer(help="What is private, and stays here.", no_args_is_help=True, rich_markup_mode=None)
hints_app = typer.Typer(help="Whether hints to the cloud LLM pay.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(adapters_app, name="adapters")
app.add_typer(config_app, name="config")
app.add_typer(models_app, name="models")
app.add_typer(router_app, name="router")
app.add_typer(tasks_app, name="tasks")
app.add_typer(budget_app, name="budget")
app.add_typer(service_app, name="service")
app.add_typer(outbox_app, name="outbox")
app.add_typer(privacy_app, name="privacy")
app.add_typer(hints_app, name="hints")

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="GGUF file, or the name of a bundled or pulled model.",
        metavar="NAME|PATH",
        autocompletion=completing.models,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator", help="Coordinator to ask; without one, an embedded one is started.", metavar="HOST:PORT|unix:PATH"
    ),
]
State = Annotated[Path | None, typer.Option("--state", help="State folder (default: the platform's).", metavar="DIR")]
Config = Annotated[Path | None, typer.Option("--config", help="YAML configuration file.", metavar="FILE")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Set one value, e.g. learning.group_size=8. Repeatable.", metavar="K=V")
]
DeviceProfile = Annotated[
    Path | None,
    typer.Option("--device-profile", help="Device profile, as `doctor --write-profile` writes it.", metavar="FILE"),
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        help="auto, prefer-local, local-only or cloud-only.",
        metavar="MODE",
        autocompletion=completing.modes,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        help="A source (edge-agent tasks list) or a .jsonl file. Repeatable: one phase each.",
        metavar="SOURCE",
        autocompletion=completing.sources,
    ),
]
TargetRate = Annotated[
    float | None,
    typer.Option("--target-rate", min=0.0, max=1.0, help="τ: share of responses that may ask for help.", metavar="TAU"),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of every random choice.", metavar="N")]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, max=MOST_STEPS, metavar="N", help="Learning steps; without it, go on until Ctrl-C."),
]
UnsafePrograms = Annotated[
    bool, typer.Option("--unsafe-programs", help="Run programs written by a model without isolation where there is none.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
NeverSend = Annotated[
    list[str] | None,
    typer.Option(
        "--never-send", help="Text, or like:PATTERN, that no request may hold; added to the configured rules.", metavar="TEXT"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout: one object, or one event a line.")]


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


Task = Annotated[str | None, typer.Option("--task", help="The task, whose budget and dial apply.", metavar="LABEL")]


def _label(task: str | None) -> str | None:
    """The task's label as it was given. Raises UsageError for one that no task can have."""
    if task is not None and not is_task_label(task):
        raise UsageError(
            f"--task {shown(task)!r}: not {TASK_LABEL_FORM}", hint="edge-agent budget show lists the tasks that were used"
        )
    return task


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
        task=_label(task),
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
    return command.chat(settings, command.ChatOptions(history=not no_history, json=json, task=_label(task)))


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
    device_profile: DeviceProfile = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Check this machine: Python, extras, engines, models, memory, cores, sandbox, coordinator, state folder."""
    from edge.cli import doctor as command

    settings = Settings(config, sets, model, coordinator, state, device_profile=device_profile)
    return command.doctor(settings, as_json=json, measure=measure, profile=write_profile)


@config_app.command("init")
def config_init(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE")] = Path("edge-agent.yaml"),
    force: Force = False,
    json: Json = False,
) -> int:
    """Write a file to begin with: the keys that people set first, each described, at its default."""
    from edge.cli import config as command

    return command.init(file, force=force, as_json=json)


@config_app.command("show")
def config_show(
    config: Config = None,
    sets: Sets = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
    json: Json = False,
) -> int:
    """Every setting, its value, and where the value came from."""
    from edge.cli import config as command

    return command.show(Settings(config, sets), changed=changed, as_json=json)


@config_app.command("check")
def config_check(
    file: Annotated[Path | None, typer.Argument(help="YAML configuration file.", metavar="FILE")] = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Whether a configuration file can be used, or all that is wrong with it, by line."""
    from edge.cli import config as command

    if file and config:
        raise UsageError("two files to check", hint="give FILE or --config FILE")
    return command.check(Settings(file or config, sets), as_json=json)


@config_app.command("keys")
def config_keys(
    prefix: Annotated[
        str, typer.Argument(help="Only these, e.g. learning or coordinator.embedded.", metavar="PREFIX", show_default=False)
    ] = "",
    json: Json = False,
) -> int:
    """Every key that a configuration may hold: its type, range, default, and what it does."""
    from edge.cli import config as command

    return command.keys(prefix, as_json=json)


@config_app.command("path")
def config_path(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Where the state folder and the logs are."""
    from edge.cli import config as command

    return command.path(Settings(config, sets, state=state), as_json=json)


@budget_app.command("show")
def budget_show(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Of each task: calls, tokens and money used and allowed, the dial and the rate realised, the price of asking."""
    from edge.cli import budget as command

    return command.show(Settings(config, sets, None, coordinator, state), as_json=json)


@budget_app.command("set")
def budget_set(
    rate: Annotated[
        str, typer.Argument(help="Share of questions that may ask, as 15% or 0.15; off: the model decides.", metavar="RATE")
    ],
    task: Annotated[
        str | None, typer.Option("--task", help="Of this task alone (default: of every one).", metavar="LABEL")
    ] = None,
    coordinator: Coordinator = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Turn the dial: how many of the next questions may ask the cloud. No retraining; kept over restarts."""
    from edge.cli import budget as command

    return command.set_dial(Settings(config, sets, None, coordinator, state), rate, _label(task), as_json=json)


@budget_app.command("pause")
def budget_pause(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Ask no cloud, for answers or for learning, until `budget resume`."""
    from edge.cli import budget as command

    return command.pause(Settings(config, sets, None, coordinator, state), paused=True, as_json=json)


@budget_app.command("resume")
def budget_resume(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Let the cloud be asked again."""
    from edge.cli import budget as command

    return command.pause(Settings(config, sets, None, coordinator, state), paused=False, as_json=json)


@app.command()
def whatif(
    rate: Annotated[
        str | None, typer.Option("--target-rate", help="The share to look at, as 10% or 0.1.", metavar="RATE")
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="A table over several rates.")] = False,
    task: Annotated[str | None, typer.Option("--task", help="Answers to this task alone.", metavar="LABEL")] = None,
    last: Annotated[int, typer.Option("--last", min=1, max=100_000, help="How many of the last answers.", metavar="N")] = 1000,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Replay recorded answers at another rate: calls, spend, how good, how fast. Nothing is changed or asked."""
    from edge.cli import whatif as command

    options = command.WhatIfOptions(rate, sweep, task, last, json)
    return command.whatif(Settings(config, sets, state=state), options)


Source = Annotated[
    str,
    typer.Argument(
        help="A name that `tasks list` shows, NAME:PATH, or a .jsonl file.", metavar="SOURCE", autocompletion=completing.sources
    ),
]


@tasks_app.command("list")
def tasks_list(json: Json = False) -> int:
    """Task sources: families, levels, how many items, where to get them."""
    from edge.cli import tasks as command

    return command.list_sources(as_json=json)


@tasks_app.command("show")
def tasks_show(source: Source, model: Model = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Levels, label and step limit of a source, an example of each level, and the prompt as the model sees it."""
    from edge.cli import tasks as command

    return command.show(Settings(config, sets, model), source, as_json=json)


@tasks_app.command("sample")
def tasks_sample(
    source: Source,
    count: Annotated[int, typer.Option("--n", min=1, max=MOST_ITEMS, help="How many items.", metavar="N")] = 5,
    level: Annotated[int | None, typer.Option("--level", min=0, help="Only this level.", metavar="N")] = None,
    split: Annotated[str, typer.Option("--split", help="train or test.", metavar="SPLIT")] = "train",
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of the choice.", metavar="N")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One task item a line, as a .jsonl task file has it.")] = False,
) -> int:
    """Some items of a source."""
    from edge.cli import tasks as command

    return command.sample(source, command.SampleOptions(count, level, split, seed, json))


@models_app.command("list")
def models_list(json: Json = False) -> int:
    """Bundled models, those in the agent's models folder, and those in the hub's cache."""
    from edge.cli import models as command

    return command.list_models(as_json=json)


@models_app.command("pull")
def models_pull(
    model: Annotated[str, typer.Argument(help="OWNER/NAME on the hub, or a local file or folder.", metavar="REPO|PATH")],
    file: Annotated[
        str | None, typer.Option("--file", help="Which of its files (default: the only GGUF, else Q4_K_M).", metavar="NAME")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit.", metavar="R")] = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Fetch a model from the hub into its cache, or take a local one into the models folder."""
    from edge.cli import models as command

    return command.pull(model, command.PullOptions(file, revision, force, json))


@models_app.command("convert")
def models_convert(
    folder: Annotated[
        str, typer.Argument(help="Hugging Face model folder with safetensors; for ONNX a GGUF model.", metavar="FOLDER|MODEL")
    ],
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.gguf|OUT.onnx")],
    type_name: Annotated[str, typer.Option("--type", help="GGUF: f16, bf16, f32 or q8_0.", metavar="TYPE")] = "f16",
    force: Force = False,
    json: Json = False,
) -> int:
    """Convert safetensors of a Qwen2, Qwen3 or Llama model to GGUF, or a GGUF model to an ONNX graph."""
    from edge.cli import models as command

    return command.convert(folder, out, type_name, force=force, as_json=json)


@models_app.command("quantize")
def models_quantize(
    source: Annotated[str, typer.Argument(help="GGUF model in f16, bf16 or f32: a name or a file.", metavar="MODEL")],
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.gguf")],
    type_name: Annotated[str, typer.Option("--type", help="Q4_K_M, Q8_0, ...", metavar="TYPE")] = "Q4_K_M",
    threads: Annotated[int, typer.Option("--threads", min=0, help="0: all.", metavar="N")] = 0,
    force: Force = False,
    json: Json = False,
) -> int:
    """Make a GGUF file smaller."""
    from edge.cli import models as command

    return command.quantize(source, out, type_name, force=force, threads=threads, as_json=json)


@models_app.command("show")
def models_show(
    model: Annotated[
        str,
        typer.Argument(help="A name that `models list` shows, or a file.", metavar="MODEL", autocompletion=completing.models),
    ],
    json: Json = False,
) -> int:
    """One model: shape, types, chat template, prompt form, memory, metadata."""
    from edge.cli import models as command

    return command.show(model, as_json=json)


Version = Annotated[int, typer.Argument(min=0, help="A version that `adapters list` shows.", metavar="VERSION")]


@adapters_app.command("list")
def adapters_list(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """The versions in the state folder: step, task, size, gate, which one serves, which are damaged."""
    from edge.cli import adapters as command

    return command.list_versions(Settings(config, sets, state=state), as_json=json)


@adapters_app.command("show")
def adapters_show(version: Version, state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """One version: where it came from, its scores, configuration and norms."""
    from edge.cli import adapters as command

    return command.show(Settings(config, sets, state=state), version, as_json=json)


@adapters_app.command("rollback")
def adapters_rollback(version: Version, state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Serve and learn on from a version (0: the bare model), whether an agent runs or not. Nothing is deleted."""
    from edge.cli import adapters as command

    return command.rollback(Settings(config, sets, state=state), version, as_json=json)


@adapters_app.command("export")
def adapters_export(
    version: Version,
    out: Annotated[Path, typer.Argument(help="Folder (peft, mlx) or file (gguf) to write.", metavar="OUT")],
    form: Annotated[str, typer.Option("--format", help="peft, gguf or mlx.", metavar="FORMAT")] = "peft",
    force: Force = False,
    model: Model = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Write a version for other programs: a peft folder, a llama.cpp LoRA file, or an mlx-lm adapter folder."""
    from edge.cli import adapters as command

    options = command.ExportOptions(version, out, form, force=force, json=json)
    return command.export(Settings(config, sets, model, state=state), options)


@router_app.command("train")
def router_train(
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.onnx")],
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            help="A source of training items. Repeatable; default: the configuration's.",
            metavar="SOURCE",
            autocompletion=completing.sources,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=8, max=MOST_ITEMS, help="Training items of each source.", metavar="N")
    ] = 400,
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, max=1.0, help="The largest share that is handed over.", metavar="TAU")
    ] = 0.3,
    adapter: Annotated[
        str, typer.Option("--adapter", help="serving, latest, none or an adapter folder.", metavar="A")
    ] = "serving",
    force: Force = False,
    model: Model = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    json: Json = False,
) -> int:
    """Train a router on the local model's own answers: will it fail on this one? Written as ONNX with its threshold."""
    from edge.cli import router as command

    settings = Settings(config, sets, model, state=state, seed=seed, unsafe_programs=unsafe_programs)
    options = command.RouterOptions(out, tuple(tasks or ()), limit, rate, adapter, force=force, json=json)
    return command.train(settings, options)


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


@service_app.command("install")
def service_install(
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1 (0: any free one).")] = None,
    no_learn: Annotated[bool, typer.Option("--no-learn", help="Serve only.")] = False,
    device_profile: DeviceProfile = None,
    config: Config = None,
    sets: Sets = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the unit, and change nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    force: Force = False,
) -> int:
    """Start `edge-agent run` with these options at every log-in, and now."""
    from edge.cli import service as command

    settings = Settings(config, sets, model, coordinator, state, mode, port=port, device_profile=device_profile)
    options = command.run_options(settings, learn=not no_learn)
    return command.install(settings, options, command.Plan(print_only=print_only, dry_run=dry_run, force=force))


@service_app.command("uninstall")
def service_uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
) -> int:
    """Stop the service and remove it; what the agent has learned stays."""
    from edge.cli import service as command

    return command.uninstall(command.Plan(dry_run=dry_run))


@service_app.command("status")
def service_status(json: Json = False) -> int:
    """Whether the service is installed and runs; exit code 0 when it runs, 3 when not."""
    from edge.cli import service as command

    return command.status(as_json=json)


@service_app.command("logs")
def service_logs(
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=MOST_ITEMS, help="How many of the last lines.", metavar="N")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> int:
    """What the service said."""
    from edge.cli import service as command

    return command.logs(lines, follow=follow)


@outbox_app.callback(invoke_without_command=True)
def outbox(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Most entries.", metavar="N")] = 20,
    since: Annotated[
        str | None, typer.Option("--since", help="Only since then: 90m, 2h, 3d, 1w ago, or a date.", metavar="TIME")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="answering, learning, evaluation, 'step report', registration or inquiry.", metavar="KIND"),
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Reports of steps that have not left yet.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int | None:
    """Every request that left this device, newest first; `outbox show ID` has its content."""
    from edge.cli import outbox as command

    if context.invoked_subcommand is not None:
        return None
    options = command.OutboxOptions(limit, since, kind, waiting, json)
    return command.list_sent(Settings(config, sets, state=state), options)


@outbox_app.command("show")
def outbox_show(
    entry_id: Annotated[int, typer.Argument(min=1, help="The number that outbox shows.", metavar="ID")],
    raw: Annotated[bool, typer.Option("--raw", help="The very bytes on stdout.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """One request exactly as it left."""
    from edge.cli import outbox as command

    return command.show(Settings(config, sets, state=state), entry_id, as_json=json, raw=raw)


@privacy_app.command("check")
def privacy_check(
    text: Annotated[str | None, typer.Argument(help="The text; `-` or nothing reads stdin.")] = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """What would leave of a text; nothing is sent. Exit code 3: it would be kept here."""
    from edge.cli import privacy as command

    return command.check(Settings(config, sets, never_send=never_send), text, as_json=json)


@hints_app.command("measure")
def hints_measure(
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", help="Task source. Repeatable (default: the configuration's).", metavar="SOURCE"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source.", metavar="N")] = 400,
    chars: Annotated[int, typer.Option("--chars", min=1, max=16_000, help="Characters of a hint.", metavar="N")] = 400,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=1.0, help="Difference that still counts as equal accuracy.", metavar="SHARE")
    ] = 0.03,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep cloud answers here (default: in the state folder).", metavar="FILE")
    ] = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="Take cloud answers from here.", metavar="FILE")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Say how to set what was measured; writes nothing.")] = False,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Ask the cloud LLM with and without hints for the same items, and say whether they pay. They stay off unless they do."""
    from edge.cli import hints as command

    settings = Settings(config, sets, model, coordinator, state, seed=seed, unsafe_programs=unsafe_programs)
    return command.measure(settings, command.HintOptions(tuple(tasks or ()), limit, chars, margin, record, replay, apply, json))


@hints_app.command("show")
def hints_show(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """The last verdict."""
    from edge.cli import hints as command

    return command.show(Settings(config, sets, state=state), as_json=json)
