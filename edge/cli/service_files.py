"""What a service is to systemd and to launchd: the text of a unit and of a property list. Knows their rules; runs and writes nothing.

No secret goes into either: both can be read by more programs than a key should be.
"""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
