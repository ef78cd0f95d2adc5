"""`edge-agent service install | uninstall | status | logs`: the agent in the background, from log-in on.

The user's own service, of systemd or launchd: nothing here needs or takes more rights.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from edge.cli.options import Force, Json
from edge.cli.output import one_line, print_line, print_result
from edge.cli.run import check_run
from edge.cli.settings import Settings, takes
from edge.core.errors import EdgeError, UsageError
from edge.core.files import write_atomically
from edge.core.formatting import shown
from edge.core.limits import MOST_ITEMS

app = Typer(help="Run in the background from log-in on (systemd, launchd).", no_args_is_help=True, rich_markup_mode=None)

UNIT = "edge-agent.service"
LABEL = "edge-agent"
STOP_S = 90
"""How long the work in progress may take to end; a kill after that loses at most a learning step."""
NOT_RUNNING = 3
"""Exit code of `status` for a service that does not run, as service managers have it."""
CARRIED = ("EDGE_AGENT_NO_CLOUD", "EDGE_AGENT_MODELS", "EDGE_AGENT_ALLOCATOR", "EDGE_AGENT_DEVICE_PROFILE", "HF_HOME")
"""Settings from the environment that a service would miss; none is a secret."""
DryRun = Annotated[bool, Option("--dry-run", help="Print what would be done, and do nothing.")]


@app.command("install")
@takes("model coordinator state mode port device_profile")
def service_install(
    *,
    settings: Settings,
    no_learn: Annotated[bool, Option("--no-learn", help="Serve only.")] = False,
    print_only: Annotated[bool, Option("--print", help="Print the unit, and change nothing.")] = False,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Start `edge-agent run` with these options at every log-in, and now."""
    from edge.app.agents import why_learning_is_off

    config = settings.config()
    learns = not no_learn and config.learning.enabled and not why_learning_is_off(config)
    check_run(config, learns=learns, serves=True)
    manager = _manager()
    command = [sys.executable, "-P", "-m", "edge.cli", "run", *_run_options(settings), *(["--no-learn"] if no_learn else [])]
    carried = {name: os.environ[name] for name in CARRIED if os.environ.get(name)}
    text = manager.text(ServiceSpec(command, Path.home(), carried, _environment_file()))
    if print_only:
        print(text, end="")
        return
    if dry_run:
        print(f"write {manager.file}")
        print("\n".join(map(shlex.join, manager.start())))
        return
    file = manager.file
    if not force and file.exists() and file.read_text(encoding="utf-8", errors="replace") != text:
        raise UsageError(f"{file}: another one is installed", hint="--force replaces it; --print shows the new one")
    _require(manager)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
    except OSError as error:
        raise EdgeError(f"{file}: cannot be written ({error.strerror})", hint="check the folder and its permissions") from error
    for words in manager.start():
        _run(words, f"{shlex.join(words)} failed")
    print(f"installed and started: {file}")
    if manager.lingers:  # without lingering a user's services end with the last session
        code, answer = _outcome(manager.lingers)
        if code or answer.strip() != "yes":
            print_line("it runs while you are logged in; to let it run always: loginctl enable-linger")
    embedded = config.coordinator.embedded
    name = embedded.api_key_env or (embedded.api_key or "").removeprefix("env:")
    if name and not name.startswith("file:"):  # a key in this shell's environment is not in the service's
        print_line(manager.key_advice(name))


@app.command("uninstall")
def service_uninstall(dry_run: DryRun = False) -> None:
    """Stop the service and remove it; what the agent has learned stays."""
    manager = _manager()
    if dry_run:
        print("\n".join([*map(shlex.join, manager.stop), f"remove {manager.file}", *map(shlex.join, manager.forget)]))
        return
    if not manager.file.exists():
        raise UsageError(f"no service is installed ({manager.file} is not there)")
    _require(manager)
    for words in manager.stop:
        _run(words, f"{shlex.join(words)} failed")
    manager.file.unlink()
    for words in manager.forget:
        _run(words, f"{shlex.join(words)} failed")
    print(f"stopped and removed: {manager.file}; state, models and what was learned stay")


@app.command("status")
def service_status(json: Json = False) -> int:
    """Whether the service is installed and runs; exit code 0 when it runs, 3 when not."""
    manager = _manager()
    installed = manager.file.exists()
    running = installed and _outcome(manager.is_running)[0] == 0
    text = (
        f"{'runs' if running else 'does not run'}: {manager.file}" if installed else "not installed; edge-agent service install"
    )
    print_result({"installed": installed, "running": running, "file": str(manager.file)}, [text], as_json=json)
    return 0 if running else NOT_RUNNING


@app.command("logs")
def service_logs(
    lines: Annotated[int, Option("--lines", "-n", min=1, max=MOST_ITEMS, help="How many of the last lines.", metavar="N")] = 50,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> int:
    """The service's output."""
    manager = _manager()
    if not manager.file.exists():
        raise UsageError(f"no service is installed ({manager.file} is not there)", hint="edge-agent service install")
    command = manager.logs(lines, follow)
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise EdgeError(f"{command[0]} cannot be run: {error.strerror}") from error


def _run_options(settings: Settings) -> list[str]:
    """The options of `run` that mean the same as these settings, from any folder; a model's name stays as it is."""
    paths = {"--config": settings.config_file, "--state": settings.state, "--device-profile": settings.device_profile}
    options: dict[str, object] = {name: path and path.expanduser().absolute() for name, path in paths.items()}
    model = Path(settings.model or "").expanduser()
    options["--model"] = model.absolute() if settings.model and model.exists() else settings.model
    options |= {"--coordinator": settings.coordinator, "--mode": settings.mode, "--port": settings.port}
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return [*words, *(word for value in settings.sets or () for word in ("--set", value))]


def _outcome(command: Sequence[str]) -> tuple[int, str]:
    """Run a command to its end: its exit code, 127 where it cannot be run, and what it printed."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    return ended.returncode, ended.stdout + ended.stderr


def _run(command: Sequence[str], problem: str, hint: str = "") -> None:
    """Raises EdgeError with the problem and what the command printed where it fails."""
    code, text = _outcome(command)
    if code:
        raise EdgeError(f"{problem}: {shown(one_line(text)) or f'exit code {code}'}", hint=hint)


def _require(manager: Manager) -> None:
    """Raises EdgeError where the service manager cannot be spoken to, before anything is changed."""
    elsewhere = "log in as this user, or take edge-agent service install --print to another service manager"
    _run(manager.probe, f"{' '.join(manager.probe[:2])} cannot be used here", hint=f"nothing was changed; {elsewhere}")


@dataclass(frozen=True, slots=True)
class Manager:
    """A service manager of this user, as its commands. `probe` succeeds where it can be spoken to, `start` are those that take `file` up
    and start the service, `stop` those that stop it for good while `file` is still there, `forget` those after it is gone."""

    file: Path
    text: Callable[[ServiceSpec], str]
    probe: Sequence[str]
    start: Callable[[], Sequence[Sequence[str]]]
    stop: Sequence[Sequence[str]]
    forget: Sequence[Sequence[str]]
    is_running: Sequence[str]
    logs: Callable[[int, bool], Sequence[str]]
    lingers: Sequence[str]
    """Prints `yes` where services go on without a session; (): they always do."""
    key_advice: Callable[[str], str]
    """Where a key belongs that is in the environment variable of this name here."""


def _manager() -> Manager:
    """That of this machine. Raises UsageError on a system with neither."""
    if sys.platform == "linux":
        return _systemd()
    if sys.platform == "darwin":
        return _launchd(Path.home())
    raise UsageError(
        f"there is no service for {sys.platform}", hint="systemd and launchd are known; start edge-agent run yourself"
    )


def _systemd() -> Manager:
    """A systemd that runs for the user."""
    control = ("systemctl", "--user")
    journal = ("journalctl", "--user-unit", UNIT)
    return Manager(
        file=_config_home() / "systemd" / "user" / UNIT,
        text=systemd_unit,
        probe=[*control, "show-environment"],
        start=lambda: [[*control, *words] for words in (["daemon-reload"], ["enable", UNIT], ["restart", UNIT])],
        stop=[[*control, "disable", "--now", UNIT]],
        forget=[[*control, "daemon-reload"]],
        is_running=[*control, "is-active", "--quiet", UNIT],
        logs=lambda lines, follow: [*journal, "--lines", str(lines), "--no-pager", *(["--follow"] if follow else [])],
        lingers=["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"],
        key_advice=lambda name: (
            f"the service does not see your shell's {name}: write {name}=... to {_environment_file()} (mode 0600), "
            f"then systemctl --user restart {UNIT}"
        ),
    )


def _launchd(home: Path) -> Manager:
    """The launchd of a Mac, for the user who is logged in at the screen."""
    file, domain = home / "Library" / "LaunchAgents" / f"{LABEL}.plist", f"gui/{os.getuid()}"
    is_running, stop = ["launchctl", "print", f"{domain}/{LABEL}"], [["launchctl", "bootout", f"{domain}/{LABEL}"]]

    def start() -> Sequence[Sequence[str]]:
        is_loaded = _outcome(is_running)[0] == 0
        return [*(stop if is_loaded else []), ["launchctl", "bootstrap", domain, str(file)]]

    return Manager(
        file=file,
        text=launchd_plist,
        probe=["launchctl", "print", domain],
        start=start,
        stop=stop,
        forget=[],
        is_running=is_running,
        logs=lambda lines, follow: ["tail", "-n", str(lines), *(["-f"] if follow else []), str(_log_file(home))],
        lingers=[],
        key_advice=lambda name: (
            f"the service does not see {name}: put the key into a file (mode 0600), and coordinator.embedded.api_key: file:/PATH"
        ),
    )


def _config_home() -> Path:
    """The user's folder of configuration, as systemd finds it."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else Path.home() / ".config"


def _environment_file() -> Path:
    """Where a person may keep what no unit should show, as NAME=value lines."""
    return _config_home() / "edge-agent" / "environment"


def _log_file(home: Path) -> Path:
    """Where a launch agent's output goes; systemd has its journal."""
    return home / "Library" / "Logs" / "edge-agent.log"


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What runs, and how. `environment_file` is read by systemd alone, where it is there: a place for secrets."""

    command: Sequence[str]
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_file: Path | None = None


def systemd_unit(spec: ServiceSpec) -> str:
    """The text of a user unit.

    What would hide parts of the file system is left out: models and task files may lie anywhere, and the sandbox for programs that a
    model writes needs namespaces of its own.
    """
    environment = [f"Environment={_word(f'{name}={value}')}" for name, value in spec.environment.items()]
    file = [f"EnvironmentFile=-{str(spec.environment_file).replace('%', '%%')}"] if spec.environment_file else []
    lines = [
        "[Unit]",
        "Description=edge-agent: a small language model that answers and learns on this machine",
        "StartLimitIntervalSec=300",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(_word(word).replace('$', '$$') for word in spec.command)}",
        *environment,
        *file,
        "WorkingDirectory=%h",
        "Restart=on-failure",
        "RestartSec=5",
        "# 2 is wrong usage, which does not mend itself; 130 is a second request to stop.",
        "RestartPreventExitStatus=2",
        "SuccessExitStatus=130",
        "# The agent ends its embedded coordinator itself, after the last report.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
        "Nice=10",
        "UMask=0077",
        "LimitCORE=0",
        "NoNewPrivileges=yes",
        "LockPersonality=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "SystemCallArchitectures=native",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def launchd_plist(spec: ServiceSpec) -> str:
    """The text of a launch agent."""
    log = str(_log_file(spec.home))
    job = {
        "Label": LABEL,
        "ProgramArguments": list(spec.command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Background",
        "Umask": 0o077,
        "WorkingDirectory": str(spec.home),
        "StandardOutPath": log,
        "StandardErrorPath": log,
        **({"EnvironmentVariables": dict(spec.environment)} if spec.environment else {}),
    }
    import plistlib

    return plistlib.dumps(job, sort_keys=False).decode()


def _word(text: str) -> str:
    """One word of a command line or an assignment, so that systemd neither splits it nor sees a specifier in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    plain = text and all(char.isalnum() or char in "/._-=:,+@" for char in text)
    return text if plain else f'"{escaped}"'
