"""The commands `pki` and `token`: names, options, help and what they print. What a command needs is loaded when it runs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.options import Json, SharedOptions, folder_named, print_result, takes
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted

if TYPE_CHECKING:
    from coordinator.config import ServerConfig
    from coordinator.service.pki import Written
    from coordinator.service.tokens import TokenAuthority, TokenStore

pki_app = typer.Typer(help="Certificates of this fleet.", no_args_is_help=True, rich_markup_mode=None)
TOKENS = "Short-lived tokens. Coordinators on one PostgreSQL ledger share keys and revocations through auth.folder in the configuration."
token_app = typer.Typer(help=TOKENS, no_args_is_help=True, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(parser=folder_named, help="Where the authority lies.", metavar="DIR")]
AuthorityFolder = Annotated[Path, typer.Option("--dir", help="Where the authority lies.", metavar="DIR")]
Names = Annotated[
    list[str] | None, typer.Option("--name", help="Host name or address of the server. Repeatable.", metavar="NAME")
]
Holder = Annotated[str, typer.Argument(help="Device, person or program.", metavar="NAME")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
Epoch = Annotated[
    int | None, typer.Option("--epoch", help="The holder's epoch (default: from the state folder; `token list` shows it).", min=0)
]
RoleName = Annotated[str, typer.Option("--role", help="device, client, admin, console or metrics.", metavar="ROLE")]


@pki_app.command("init")
def pki_init(folder: Folder, names: Names = None, days: int = 90, force: Force = False) -> None:
    """Make an authority and the server's certificate. Keep ca.key away from the server; ca.crt goes to every device."""
    from coordinator.service.pki import Authority

    now, authority = SystemClock().now(), Authority(folder)
    made = authority.create(now, force=force)
    server = authority.issue_server(names or ["localhost", "127.0.0.1", "::1"], now, days=days, force=force)
    _print_written(made)
    _print_written(server)


@pki_app.command("server")
def pki_server(folder: Folder, names: Names = None, days: int = 90, force: Force = False) -> None:
    """Make the server's certificate anew; a running coordinator takes it at its next connection."""
    from coordinator.service.pki import Authority

    _print_written(Authority(folder).issue_server(names or [], SystemClock().now(), days=days, force=force))


def _client_command(role: str, holder: str, default_days: int) -> None:
    """`pki device` and `pki admin`."""

    @pki_app.command(role, help=f"Make a certificate for {holder}: {counted(default_days, 'day')} unless --days says otherwise.")
    @takes("config_file state")
    def issue_client(
        name: Holder,
        folder: AuthorityFolder,
        days: int = default_days,
        epoch: Epoch = None,
        *,
        settings: SharedOptions,
        force: Force = False,
        json_lines: Json = False,
    ) -> None:
        from coordinator.service.holders import Holder
        from coordinator.service.pki import Authority

        guessed_without: Path | None = None
        if epoch is None:
            _, store = _tokens(settings.config())
            epoch, guessed_without = store.epoch_of(role, name), None if store.folder.is_dir() else store.folder
        written = Authority(folder).issue_client(Holder(role, name, epoch), SystemClock().now(), days=days, force=force)
        value = {
            "certificate": str(written.certificate),
            "key": str(written.key),
            "role": role,
            "name": name,
            "epoch": epoch,
            "epoch_is_a_guess": guessed_without is not None,
        }
        print_result(value, f"wrote {written.certificate} and {written.key} for epoch {epoch}", as_json=json_lines)
        if guessed_without is not None:
            where = "give --epoch, --state or --config of the coordinator"
            typer.echo(f"note: epoch {epoch} is a guess: no revocations found in {guessed_without}; {where}", err=True)


_client_command("device", "a device", 7)
_client_command("admin", "a person who administers", 1)


@token_app.command("issue")
@takes()
def token_issue(
    name: Holder,
    role: RoleName = "device",
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="A task it may work on. Repeatable; none: every task.")
    ] = None,
    life_s: Annotated[
        int | None, typer.Option("--life-s", help="Seconds; at most 900, of role client a year.", metavar="S")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it there (mode 0600) and not to stdout.", metavar="FILE")
    ] = None,
    *,
    settings: SharedOptions,
    force: Force = False,
    json_lines: Json = False,
) -> None:
    """Issue a token. A device renews it before it ends; `coordinator.token_file` of the agent is where it lies. One of role client is the
    API key of a program that speaks OpenAI's protocol: it lasts, and is charged to the device of its name."""
    from coordinator.commands.admin_client import required_coordinator
    from coordinator.service.holders import require_name
    from coordinator.service.pki import write_private
    from edge.rpc.v1 import admin_pb2

    require_name(name)
    config = settings.config()
    if config.admin.address is not None:
        _require_device_role(role, "issued")
        request = admin_pb2.IssueTokenRequest(device=name, tasks=tasks)
        if life_s is not None:
            request.lifetime.FromSeconds(life_s)
        with required_coordinator(config) as client:
            token = str(client.ask("IssueToken", request).token)
    else:
        token = _tokens(config)[0].issue(role, name, tasks or (), life_s)
    if out is not None:
        write_private(out, f"{token}\n".encode(), force=force)
    value = {"role": role, "name": name, "tasks": tasks or [], **({"file": str(out)} if out else {"token": token})}
    print_result(value, f"wrote {out}" if out else token, as_json=json_lines)


@token_app.command("rotate")
@takes("config_file state")
def token_rotate(
    at_once: Annotated[bool, typer.Option("--at-once", help="A key got out: every token of older keys ends now.")] = False,
    coordinator: Annotated[str | None, typer.Option("--coordinator", hidden=True)] = None,
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """Sign with a new key from now on; tokens of older keys are valid to their end.

    Only where the keys lie: on the coordinator's own machine, with its --config or --state. A running coordinator sees it at once.
    """
    if coordinator is not None:
        raise UsageError(
            "keys are not rotated from another machine", hint="run it on the coordinator's own, without --coordinator"
        )
    tokens, _ = _tokens(settings.config())
    kid = tokens.rotate(at_once=at_once).kid
    print_result({"kid": kid}, f"signing with key {kid}", as_json=json_lines)


@token_app.command("revoke")
@takes()
def token_revoke(name: Holder, role: RoleName = "device", *, settings: SharedOptions, json_lines: Json = False) -> None:
    """End all tokens and certificates of a holder, at once and for good, at every coordinator that shares auth.folder; what is issued
    later is valid."""
    from coordinator.commands.admin_client import required_coordinator
    from coordinator.service.holders import HOLDERS, require_name
    from edge.rpc.v1 import admin_pb2

    require_name(name)
    config = settings.config()
    if config.admin.address is not None:
        _require_device_role(role, "revoked")
        with required_coordinator(config) as client:
            reply = client.ask("RevokeDevice", admin_pb2.RevokeDeviceRequest(device=name))
        epoch, known = int(reply.epoch), bool(reply.known)
        others: list[str] = []
    else:
        tokens, store = _tokens(config)
        row = tokens.revoke(role, name)
        epoch, known = row.epoch, row.issued_at is not None
        others = sorted(of for of, holder in store.holders() if holder == name and of != role)
    anew = f"edge-coordinator pki {role} {name} --epoch {epoch} --dir DIR --force" if role in HOLDERS else None
    value = {"role": role, "name": name, "epoch": epoch, "known": known, "certificate_anew": anew}
    print_result(value, f"{role} {name}: everything issued before now is refused; its epoch is {epoch}", as_json=json_lines)
    if not known:
        typer.echo(
            f"note: no token was issued to a {role} {name} before: is that the name? Its certificates are refused", err=True
        )
    for other in others:
        typer.echo(f"note: what was issued to the {other} {name} is still valid: --role {other} ends that", err=True)
    if anew is not None and not json_lines:
        typer.echo(f"a certificate that is valid again: {anew}")


@token_app.command("list")
@takes("config_file state")
def token_list(settings: SharedOptions, json_lines: Json = False) -> None:
    """Signing keys and holders with their epochs. Tokens themselves are kept nowhere."""
    _, store = _tokens(settings.config())
    keys, holders = store.signing_keys(), [store.holders()[key] for key in sorted(store.holders())]
    value = {
        "keys": [{"kid": key.kid, "made_at": key.made_at, "ends_at": key.ends_at} for key in keys],
        "holders": [asdict(row) for row in holders],
    }
    lines = [
        *(f"key {key.kid}: made {_when(key.made_at)}, {_end_of(key.ends_at)}" for key in keys),
        *(
            f"{row.role} {row.name}: epoch {row.epoch}, revoked {_when(row.revoked_at)}, issued {_when(row.issued_at)}"
            for row in holders
        ),
    ]
    print_result(value, lines or "nothing was issued yet", as_json=json_lines)


def _require_device_role(role: str, done: str) -> None:
    if role != "device":
        raise UsageError(f"only what devices show is {done} from another machine, not what role {role} does", hint="do it there")


def _tokens(config: ServerConfig) -> tuple[TokenAuthority, TokenStore]:
    from coordinator.service.security import token_store
    from coordinator.service.tokens import TokenAuthority

    store = token_store(config, config.state_folder)
    return TokenAuthority(store, config.auth, SystemClock()), store


def _print_written(written: Written) -> None:
    typer.echo(f"wrote {written.certificate} and {written.key}")


def _when(seconds: int | None) -> str:
    return "never" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _end_of(ends_at: int | None) -> str:
    return "signs" if ends_at is None else f"verifies until {_when(ends_at)}"
