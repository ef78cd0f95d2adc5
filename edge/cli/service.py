"""`edge-agent service install | uninstall | status | logs`: the agent in the background, from log-in on.

The user's own service, of systemd or launchd: nothing here needs or takes more rights.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from edge.cli.options import Config, Coordinator, DeviceProfile, Force, Json, Mode, Model, Sets, State
from edge.cli.output import one_line, print_json, print_line
from edge.cli.settings import Settings
from edge.core.errors import EdgeError, UsageError
from edge.core.files import write_atomically
from edge.core.formatting import shown
from edge.core.limits import MOST_ITEMS

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig


app = typer.Typer(help="Run in the background from log-in on (systemd, launchd).", no_args_is_help=True, rich_markup_mode=None)


@app.command("install")
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
    settings = Settings(config, sets, model, coordinator, state, mode, port=port, device_profile=device_profile)
    options = run_options(settings, learn=not no_learn)
    return install(settings, options, Plan(print_only=print_only, dry_run=dry_run, force=force, learns=not no_learn))


@app.command("uninstall")
def service_uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
) -> int:
    """Stop the service and remove it; what the agent has learned stays."""
    return uninstall(Plan(dry_run=dry_run))


@app.command("status")
def service_status(json: Json = False) -> int:
    """Whether the service is installed and runs; exit code 0 when it runs, 3 when not."""
    return status(as_json=json)


@app.command("logs")
def service_logs(
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=MOST_ITEMS, help="How many of the last lines.", metavar="N")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> int:
    """What the service said."""
    return logs(lines, follow=follow)


NOT_RUNNING = 3
"""Exit code of `status` for a service that does not run, as service managers have it."""
CARRIED = ("EDGE_AGENT_NO_CLOUD", "EDGE_AGENT_MODELS", "EDGE_AGENT_ALLOCATOR", "EDGE_AGENT_DEVICE_PROFILE", "HF_HOME")
"""Settings from the environment that a service would miss; none is a secret."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What `--print` and `--dry-run` do instead, whether a unit that is there may be replaced, and whether the service learns."""

    print_only: bool = False
    dry_run: bool = False
    force: bool = False
    learns: bool = True


class Manager(Protocol):
    """A service manager of this user."""

    file: Path

    def text(self, spec: ServiceSpec) -> str:
        """What belongs in `file`."""
        ...

    def probe(self) -> list[str]:
        """A command that succeeds where the manager can be spoken to."""
        ...

    def start(self) -> list[list[str]]:
        """Commands that take `file` up and start the service."""
        ...

    def stop(self) -> list[list[str]]:
        """Commands that stop it for good, while `file` is still there."""
        ...

    def forget(self) -> list[list[str]]:
        """Commands after `file` is gone."""
        ...

    def is_running(self) -> list[str]:
        """A command that succeeds while the service runs."""
        ...

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """A command that shows what the service said."""
        ...

    def advice(self) -> str:
        """What else a person may have to do, or ""."""
        ...


class Systemd:
    """A systemd that runs for the user."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the user's folder of configuration."""
        self.file = folder / "systemd" / "user" / UNIT

    def text(self, spec: ServiceSpec) -> str:
        """The unit."""
        return systemd_unit(spec)

    def probe(self) -> list[str]:
        """Fails where no systemd runs, or none for this user."""
        return ["systemctl", "--user", "show-environment"]

    def start(self) -> list[list[str]]:
        """Taken up, and restarted where it ran with an older unit."""
        return [["systemctl", "--user", *words] for words in (["daemon-reload"], ["enable", UNIT], ["restart", UNIT])]

    def stop(self) -> list[list[str]]:
        """Stopped, and not started at the next log-in."""
        return [["systemctl", "--user", "disable", "--now", UNIT]]

    def forget(self) -> list[list[str]]:
        """The unit is no longer known."""
        return [["systemctl", "--user", "daemon-reload"]]

    def is_running(self) -> list[str]:
        """By systemd's word."""
        return ["systemctl", "--user", "is-active", "--quiet", UNIT]

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """The journal."""
        return ["journalctl", "--user-unit", UNIT, "--lines", str(lines), "--no-pager", *(["--follow"] if follow else [])]

    def advice(self) -> str:
        """Without lingering a user's services end with the last session."""
        asked = outcome(["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"])
        if asked.code == 0 and asked.text.strip() == "yes":
            return ""
        return "it runs while you are logged in; to let it run always: loginctl enable-linger"


class Launchd:
    """The launchd of a Mac, for the user who is logged in."""

    def __init__(self, home: Path) -> None:
        self.file = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self._log = log_file(home)
        self._domain = f"gui/{os.getuid()}"

    def text(self, spec: ServiceSpec) -> str:
        """The property list."""
        return launchd_plist(spec)

    def probe(self) -> list[str]:
        """Fails where nobody is logged in at the screen."""
        return ["launchctl", "print", self._domain]

    def start(self) -> list[list[str]]:
        """Loaded; RunAtLoad starts it."""
        loaded = outcome(self.is_running()).code == 0
        return [*(self.stop() if loaded else []), ["launchctl", "bootstrap", self._domain, str(self.file)]]

    def stop(self) -> list[list[str]]:
        """Stopped and unloaded."""
        return [["launchctl", "bootout", f"{self._domain}/{LABEL}"]]

    def forget(self) -> list[list[str]]:
        """Unloading was all."""
        return []

    def is_running(self) -> list[str]:
        """Whether it is loaded."""
        return ["launchctl", "print", f"{self._domain}/{LABEL}"]

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """The log file."""
        return ["tail", "-n", str(lines), *(["-f"] if follow else []), str(self._log)]

    def advice(self) -> str:
        """Nothing more."""
        return ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and what it said."""

    code: int
    text: str


def install(settings: Settings, options: Sequence[str], plan: Plan) -> int:
    """Write the service's file and start it. `options` are those of `run`, checked as `run` checks them. Raises UsageError, EdgeError."""
    from edge.cli.run import check_run

    config = settings.config()
    check_run(config, learns=plan.learns and config.learning.enabled, serves=True)
    manager = manager_of_this_machine()
    spec = ServiceSpec(
        [sys.executable, "-P", "-m", "edge.cli", "run", *options],
        Path.home(),
        {name: os.environ[name] for name in CARRIED if os.environ.get(name)},
        environment_file(),
    )
    text = manager.text(spec)
    if plan.print_only:
        print(text, end="")
        return 0
    if plan.dry_run:
        print(f"write {manager.file}")
        print("\n".join(map(shlex.join, manager.start())))
        return 0
    _refuse_other_text(manager.file, text, force=plan.force)
    _require(manager)
    _write(manager.file, text)
    _run_all(manager.start())
    print(f"installed and started: {manager.file}")
    for line in filter(None, (manager.advice(), _key_advice(config))):
        print_line(line)
    return 0


def run_options(settings: Settings, *, learn: bool) -> list[str]:
    """The options of `run` that say the same as these settings, from any folder."""
    paths = (("--config", settings.file), ("--state", settings.state), ("--device-profile", settings.device_profile))
    words = [
        *(word for name, path in paths if path is not None for word in (name, str(path.expanduser().absolute()))),
        *_option("--model", _absolute_model(settings.model)),
        *_option("--coordinator", settings.coordinator),
        *_option("--mode", settings.mode),
        *_option("--port", settings.port),
        *(word for value in settings.sets or () for word in ("--set", value)),
    ]
    return words if learn else [*words, "--no-learn"]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _absolute_model(name: str | None) -> str | None:
    """A model by path, from any folder; a name as it is."""
    path = Path(name or "").expanduser()
    return str(path.absolute()) if name and path.exists() else name


def uninstall(plan: Plan) -> int:
    """Stop the service and remove its file; what the agent has learned stays. Raises UsageError where there is none."""
    manager = manager_of_this_machine()
    if plan.dry_run:
        print("\n".join([*map(shlex.join, manager.stop()), f"remove {manager.file}", *map(shlex.join, manager.forget())]))
        return 0
    if not manager.file.exists():
        raise UsageError(f"no service is installed ({manager.file} is not there)")
    _require(manager)
    _run_all(manager.stop())
    manager.file.unlink()
    _run_all(manager.forget())
    print(f"stopped and removed: {manager.file}; state, models and what was learned stay")
    return 0


def status(*, as_json: bool) -> int:
    """Whether the service is installed and runs; 0 when it runs, 3 when not."""
    manager = manager_of_this_machine()
    installed = manager.file.exists()
    running = installed and outcome(manager.is_running()).code == 0
    if as_json:
        print_json({"installed": installed, "running": running, "file": str(manager.file)})
    elif installed:
        print(f"{'runs' if running else 'does not run'}: {manager.file}")
    else:
        print("not installed; edge-agent service install")
    return 0 if running else NOT_RUNNING


def logs(lines: int, *, follow: bool) -> int:
    """What the service said. Raises UsageError where there is none, EdgeError where its words cannot be had."""
    manager = manager_of_this_machine()
    if not manager.file.exists():
        raise UsageError(f"no service is installed ({manager.file} is not there)", hint="edge-agent service install")
    command = manager.logs(lines, follow=follow)
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise EdgeError(f"{command[0]} cannot be run: {error.strerror}") from error


def manager_of_this_machine() -> Manager:
    """Raises UsageError on a system with neither."""
    if sys.platform == "darwin":
        return Launchd(Path.home())
    if sys.platform == "linux":
        return Systemd(config_home())
    raise UsageError(
        f"there is no service for {sys.platform}", hint="systemd and launchd are known; start edge-agent run yourself"
    )


def config_home() -> Path:
    """The user's folder of configuration, as systemd finds it."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else Path.home() / ".config"


def environment_file() -> Path:
    """Where a person may keep what no unit should show, as NAME=value lines."""
    return config_home() / "edge-agent" / "environment"


def outcome(command: Sequence[str]) -> Outcome:
    """Run a command to its end; 127 where it cannot be run."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return Outcome(127, f"{command[0]}: {error.strerror}")
    return Outcome(ended.returncode, ended.stdout + ended.stderr)


def _require(manager: Manager) -> None:
    """Raises EdgeError where the service manager cannot be spoken to, before anything is changed."""
    asked = outcome(manager.probe())
    if asked.code:
        name = " ".join(manager.probe()[:2])
        raise EdgeError(
            f"{name} cannot be used here: {shown(one_line(asked.text)) or f'exit code {asked.code}'}",
            hint="nothing was changed; log in as this user, or take edge-agent service install --print to another service manager",
        )


def _refuse_other_text(file: Path, text: str, *, force: bool) -> None:
    if not force and file.exists() and file.read_text(encoding="utf-8", errors="replace") != text:
        raise UsageError(f"{file}: another one is installed", hint="--force replaces it; --print shows the new one")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
    except OSError as error:
        raise EdgeError(f"{file}: cannot be written ({error.strerror})", hint="check the folder and its permissions") from error


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        ended = outcome(command)
        if ended.code:
            raise EdgeError(f"{shlex.join(command)} failed: {shown(one_line(ended.text)) or f'exit code {ended.code}'}")


def _key_advice(config: AgentConfig) -> str:
    """That a key in this shell's environment is not in the service's."""
    embedded = config.coordinator.embedded
    name = embedded.api_key_env or (embedded.api_key or "").removeprefix("env:")
    if not name or name.startswith("file:"):
        return ""
    if sys.platform == "darwin":
        return (
            f"the service does not see {name}: put the key into a file (mode 0600), and coordinator.embedded.api_key: file:/PATH"
        )
    place = f"write {name}=... to {environment_file()} (mode 0600)"
    return f"the service does not see your shell's {name}: {place}, then systemctl --user restart {UNIT}"


UNIT = "edge-agent.service"
LABEL = "edge-agent"
STOP_S = 90
"""How long the work in progress may take to end; a kill after that loses at most a learning step."""


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
    file = [f"EnvironmentFile=-{_path(spec.environment_file)}"] if spec.environment_file else []
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
    log = str(log_file(spec.home))
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
    return plistlib.dumps(job, sort_keys=False).decode()


def log_file(home: Path) -> Path:
    """Where a launch agent's output goes; systemd has its journal."""
    return home / "Library" / "Logs" / "edge-agent.log"


def _word(text: str) -> str:
    """One word of a command line or an assignment, so that systemd neither splits it nor sees a specifier in it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    plain = text and all(char.isalnum() or char in "/._-=:,+@" for char in text)
    return text if plain else f'"{escaped}"'


def _path(path: Path) -> str:
    return str(path).replace("%", "%%")
