"""The commands `pki` and `token`: names, options, help and what they print. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.core.errors import UsageError

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from coordinator.service.pki import Written
    from coordinator.service.tokens import Tokens, TokenStore

pki_app = typer.Typer(help="Certificates of this fleet.", no_args_is_help=True, rich_markup_mode=None)
TOKENS = "Short-lived tokens. Coordinators on one PostgreSQL ledger share keys and revocations through auth.folder in the configuration."
token_app = typer.Typer(help=TOKENS, no_args_is_help=True, rich_markup_mode=None)


def folder_named(text: str | Path) -> Path:
    """The folder; an empty text, as of a variable that is not set, does not mean the present one. Raises a usage error."""
    if not str(text).strip():
        raise typer.BadParameter("the name of the folder is empty")
    return Path(text)


Folder = Annotated[Path, typer.Argument(parser=folder_named, help="Where the authority lies.", metavar="DIR")]
AuthorityFolder = Annotated[Path, typer.Option("--dir", help="Where the authority lies.", metavar="DIR")]
Names = Annotated[
    list[str] | None, typer.Option("--name", help="Host name or address of the server. Repeatable.", metavar="NAME")
]
Holder = Annotated[str, typer.Argument(help="Device, person or program.", metavar="NAME")]
Config = Annotated[Path | None, typer.Option("--config", help="YAML configuration file.", metavar="FILE")]
State = Annotated[
    Path | None, typer.Option("--state", parser=folder_named, help="State folder (default: the platform's).", metavar="DIR")
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
Epoch = Annotated[
    int | None, typer.Option("--epoch", help="The holder's epoch (default: from the state folder; `token list` shows it).", min=0)
]
RoleName = Annotated[str, typer.Option("--role", help="device, admin, console or metrics.", metavar="ROLE")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Set one value, e.g. admin.tls.ca=ca.crt. Repeatable.", metavar="K=V")
]
Coordinator = Annotated[
    str | None,
    typer.Option("--coordinator", help="Ask the coordinator there, on another machine: its admin_listen.", metavar="HOST:PORT"),
]
NotThere = Annotated[str | None, typer.Option("--coordinator", hidden=True)]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, one object a line.")]


@pki_app.command("init")
def pki_init(folder: Folder, names: Names = None, days: int = 90, force: Force = False) -> int:
    """Make an authority and the server's certificate. Keep ca.key away from the server; ca.crt goes to every device."""
    from coordinator.service.pki import Authority
    from edge.core.clock import SystemClock

    now, authority = SystemClock().now(), Authority(folder)
    made = authority.create(now, force=force)
    server = authority.issue_server(names or ["localhost", "127.0.0.1", "::1"], now, days=days, force=force)
    _tell(made)
    _tell(server)
    return 0


@pki_app.command("server")
def pki_server(folder: Folder, names: Names = None, days: int = 90, force: Force = False) -> int:
    """Make the server's certificate anew; a running coordinator takes it at its next connection."""
    from coordinator.service.pki import Authority
    from edge.core.clock import SystemClock

    _tell(Authority(folder).issue_server(names or [], SystemClock().now(), days=days, force=force))
    return 0


@pki_app.command("device")
def pki_device(
    name: Holder,
    folder: AuthorityFolder,
    days: int = 7,
    epoch: Epoch = None,
    config: Config = None,
    state: State = None,
    force: Force = False,
    json_lines: Json = False,
) -> int:
    """Make a certificate for a device: 7 days unless --days says otherwise."""
    return _client("device", name, folder, days, epoch, config, state, force, json_lines)


@pki_app.command("admin")
def pki_admin(
    name: Holder,
    folder: AuthorityFolder,
    days: int = 1,
    epoch: Epoch = None,
    config: Config = None,
    state: State = None,
    force: Force = False,
    json_lines: Json = False,
) -> int:
    """Make a certificate for a person who administers: 1 day unless --days says otherwise."""
    return _client("admin", name, folder, days, epoch, config, state, force, json_lines)


@token_app.command("issue")
def token_issue(
    name: Holder,
    role: RoleName = "device",
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="A task it may work on. Repeatable; none: every task.")
    ] = None,
    life_s: Annotated[int | None, typer.Option("--life-s", help="Seconds; at most 900.", metavar="S")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it there (mode 0600) and not to stdout.", metavar="FILE")
    ] = None,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    force: Force = False,
) -> int:
    """Issue a token. Its holder renews it before it ends; `coordinator.token_file` of the agent is where it lies."""
    from coordinator.service.pki import write_private

    _checked_name(name)
    resolved = _resolved(config, state, sets, coordinator)
    if resolved.admin.address is not None:
        _require_device_role(role, "issued")
        token = _issued_there(resolved, name, tasks or (), life_s)
    else:
        token = _tokens(config, state)[0].issue(role, name, tasks or (), life_s)
    if out is None:
        typer.echo(token)
    else:
        write_private(out, f"{token}\n".encode(), force=force)
        typer.echo(f"wrote {out}")
    return 0


@token_app.command("rotate")
def token_rotate(
    at_once: Annotated[bool, typer.Option("--at-once", help="A key got out: every token of older keys ends now.")] = False,
    coordinator: NotThere = None,
    config: Config = None,
    state: State = None,
) -> int:
    """Sign with a new key from now on; tokens of older keys live out their 15 minutes.

    Only where the keys lie: on the coordinator's own machine, with its --config or --state. A running coordinator sees it at once.
    """
    if coordinator is not None:
        raise UsageError(
            "keys are not rotated from another machine", hint="run it on the coordinator's own, without --coordinator"
        )
    tokens, _ = _tokens(config, state)
    typer.echo(f"signing with key {tokens.rotate(at_once=at_once).kid}")
    return 0


@token_app.command("revoke")
def token_revoke(
    name: Holder,
    role: RoleName = "device",
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """End all tokens and certificates of a holder, at once and for good, at every coordinator that shares auth.folder; what is issued
    later is valid."""
    _checked_name(name)
    resolved = _resolved(config, state, sets, coordinator)
    if resolved.admin.address is not None:
        _require_device_role(role, "revoked")
        epoch, known = _revoked_there(resolved, name)
    else:
        row = _tokens(config, state)[0].revoke(role, name)
        epoch, known = row.epoch, row.issued_at is not None
    anew = _certificate_anew(role, name, epoch)
    if json_lines:
        print(json.dumps({"role": role, "name": name, "epoch": epoch, "known": known, "certificate_anew": anew}), flush=True)
    else:
        typer.echo(f"{role} {name}: everything issued before now is refused; its epoch is {epoch}")
    if not known:
        typer.echo(
            f"note: no token was issued to a {role} {name} before: is that the name? Its certificates are refused", err=True
        )
    if anew is not None and not json_lines:
        typer.echo(f"a certificate that is valid again: {anew}")
    return 0


@token_app.command("list")
def token_list(config: Config = None, state: State = None, json_lines: Json = False) -> int:
    """Signing keys and holders with their epochs. Tokens themselves are kept nowhere."""
    _, store = _tokens(config, state)
    keys, holders = store.signing_keys(), [store.holders()[key] for key in sorted(store.holders())]
    if json_lines:
        told = [{"kid": key.kid, "made_at": key.made_at, "ends_at": key.ends_at} for key in keys]
        print(json.dumps({"keys": told, "holders": [asdict(row) for row in holders]}), flush=True)
        return 0
    for key in keys:
        typer.echo(f"key {key.kid}: made {_when(key.made_at)}, {_end_of(key.ends_at)}")
    for row in holders:
        typer.echo(f"{row.role} {row.name}: epoch {row.epoch}, revoked {_when(row.revoked_at)}, issued {_when(row.issued_at)}")
    if not keys and not holders:
        typer.echo("nothing was issued yet")
    return 0


def _client(
    role: str,
    name: str,
    folder: Path,
    days: int,
    epoch: int | None,
    config: Path | None,
    state: Path | None,
    force: bool,
    json_lines: bool,
) -> int:
    from coordinator.service.pki import Authority, Holder
    from edge.core.clock import SystemClock

    _checked_name(name)
    held, not_in = (epoch, None) if epoch is not None else _present_epoch(role, name, config, state)
    written = Authority(folder).issue_client(Holder(role, name, held), SystemClock().now(), days=days, force=force)
    if json_lines:
        files = {"certificate": str(written.certificate), "key": str(written.key)}
        told = {**files, "role": role, "name": name, "epoch": held, "epoch_is_a_guess": not_in is not None}
        print(json.dumps(told), flush=True)
    else:
        typer.echo(f"wrote {written.certificate} and {written.key} for epoch {held}")
    if not_in is not None:
        where = "give --epoch, --state or --config of the coordinator"
        typer.echo(f"note: epoch {held} is a guess: no revocations found in {not_in}; {where}", err=True)
    return 0


def _present_epoch(role: str, name: str, config: Path | None, state: Path | None) -> tuple[int, Path | None]:
    """A holder's epoch; and where it is a guess, the folder that is not there and would tell."""
    _, store = _tokens(config, state)
    return store.epoch_of(role, name), None if store.folder.is_dir() else store.folder


def _certificate_anew(role: str, name: str, epoch: int) -> str | None:
    """The command that makes a certificate of this epoch; None for a role that shows none."""
    from coordinator.service.pki import HOLDERS

    return f"edge-coordinator pki {role} {name} --epoch {epoch} --dir DIR --force" if role in HOLDERS else None


def _require_device_role(role: str, done: str) -> None:
    if role != "device":
        raise UsageError(f"only what devices show is {done} from another machine, not what role {role} does", hint="do it there")


def _issued_there(config: CoordinatorConfig, device: str, tasks: Sequence[str], life_s: int | None) -> str:
    from coordinator.commands.admin_client import access_of, required_coordinator
    from edge.rpc.v1 import admin_pb2

    request = admin_pb2.IssueTokenRequest(device=device, tasks=tasks)
    if life_s is not None:
        request.lifetime.FromSeconds(life_s)
    with required_coordinator(access_of(config)) as client:
        return str(client.ask("IssueToken", request).token)


def _revoked_there(config: CoordinatorConfig, device: str) -> tuple[int, bool]:
    """Its epoch, and whether it was known there."""
    from coordinator.commands.admin_client import access_of, required_coordinator
    from edge.rpc.v1 import admin_pb2

    with required_coordinator(access_of(config)) as client:
        reply = client.ask("RevokeDevice", admin_pb2.RevokeDeviceRequest(device=device))
        return int(reply.epoch), bool(reply.known)


def _tokens(config: Path | None, state: Path | None) -> tuple[Tokens, TokenStore]:
    from coordinator.app import state_dir_of
    from coordinator.service.security import token_store, token_terms
    from coordinator.service.tokens import Tokens
    from edge.core.clock import SystemClock

    resolved = _resolved(config, state)
    store = token_store(resolved, state_dir_of(resolved))
    return Tokens(store, token_terms(resolved.auth), SystemClock()), store


def _resolved(
    config: Path | None, state: Path | None, sets: Sequence[str] | None = None, coordinator: str | None = None
) -> CoordinatorConfig:
    from coordinator.config import resolve_coordinator_config
    from edge.config.loader import Flag

    flags = [Flag("state_dir", str(state), "--state")] if state is not None else []
    if coordinator is not None:
        flags.append(Flag("admin.address", coordinator, "--coordinator"))
    return resolve_coordinator_config(config, sets or (), flags).config


def _checked_name(name: str) -> None:
    from coordinator.control.devices import is_device_id

    if not is_device_id(name):
        raise UsageError(f"{name!r} is no name", hint="1 to 64 letters, digits, dots, dashes or underscores")


def _tell(written: Written) -> None:
    typer.echo(f"wrote {written.certificate} and {written.key}")


def _when(seconds: int | None) -> str:
    from datetime import UTC, datetime

    return "never" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _end_of(ends_at: int | None) -> str:
    return "signs" if ends_at is None else f"verifies until {_when(ends_at)}"
