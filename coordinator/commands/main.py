"""The commands: names, options, help and what they print. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from coordinator.commands.security import State, pki_app, token_app
from edge.core.errors import ConfigError, EdgeError, StateError, UsageError
from edge.core.files import replacing
from edge.core.formatting import counted

if TYPE_CHECKING:
    from coordinator.app import Serving
    from coordinator.commands.admin_client import Spending
    from coordinator.config import BudgetsConfig, CoordinatorConfig
    from coordinator.ledger.accounts import BudgetRow, TaskRow
    from coordinator.ledger.verify import VerifyReport
    from edge.config.loader import Resolved

app = typer.Typer(
    name="edge-coordinator",
    help="Brokers cloud LLM calls for many devices within exact budgets, and prices them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
budget_app = typer.Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)
devices_app = typer.Typer(help="List the devices that a running coordinator has seen, or shut one out.", rich_markup_mode=None)
ledger_app = typer.Typer(help="The ledger and its journal.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="The configuration.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(budget_app, name="budget")
app.add_typer(devices_app, name="devices")
app.add_typer(ledger_app, name="ledger")
app.add_typer(config_app, name="config")
app.add_typer(pki_app, name="pki")
app.add_typer(token_app, name="token")

Config = Annotated[Path | None, typer.Option("--config", help="YAML configuration file.", metavar="FILE")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Set one value, e.g. budgets.device.calls_limit=100. Repeatable.", metavar="K=V")
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        help="Administer the coordinator there, on another machine: its admin_listen. `admin.tls` says with which certificate.",
        metavar="HOST:PORT",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, one object a line.")]
Device = Annotated[str, typer.Argument(help="The device.", metavar="DEVICE")]
Limit = str | None
LIMIT_HELP = "Most {unit} in the window, `none`, or `config`: what the configuration says."


class LedgerDiffers(EdgeError):
    """The ledger's tables are not what its journal says."""


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False) -> None:
    if version:
        from edge import __version__

        typer.echo(__version__)
        raise typer.Exit


def _run_quickly(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop's event loop where it is installed, which takes a tenth of the processor time off every call."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        asyncio.run(main)
    else:
        uvloop.run(main)


@app.command()
def serve(
    config: Config = None,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", help="Where to listen. Repeatable.", metavar="HOST:PORT|unix:PATH")
    ] = None,
    state: State = None,
    sets: Sets = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when the process that started this one is gone.")
    ] = False,
    console: Annotated[
        str | None, typer.Option("--console", help="Serve the web console there.", metavar="HOST:PORT", show_default=False)
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Serve Prometheus metrics there.", metavar="HOST:PORT", show_default=False)
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the ledger first, as `ledger verify` does; do not serve one that differs.")
    ] = False,
    json_lines: Json = False,
) -> int:
    """Serve devices until SIGTERM or Ctrl-C.

    Without a configuration the bundled nano-cloud model is the cloud LLM (practice cloud, nothing is charged), at a price for practice of
    0.10 USD / 0.40 USD per million tokens in / out, so that spend moves and caps can be tried.

    It does not verify the ledger by itself, which takes as long as the journal is: `--verify`, or `ledger verify` now and then and after a
    crash, a restored copy or a full disk.
    """
    import os

    parent_pid = os.getppid() if exit_with_parent else None
    from coordinator import failpoints
    from coordinator.app import serve as run
    from coordinator.redact import redact_logs
    from edge.core.log import configure_logging

    if log_level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level {log_level!r} is none of debug, info, warning, error")
    configure_logging(log_level)
    redact_logs()
    failpoints.arm(os.environ)

    latest: list[Resolved[CoordinatorConfig]] = []

    def read() -> CoordinatorConfig:
        if latest and config is not None:
            _require_settings(config)
        latest[:] = [_read(config, state, sets, listen, {"console_listen": console, "metrics_listen": metrics})]
        return latest[0].config

    try:
        if verify:
            _require_verified(read())
        _run_quickly(run(read, lambda serving: _tell(serving, json_lines), parent_pid=parent_pid))
    except ConfigError as error:
        if not latest:
            raise
        raise latest[0].placed(error) from error
    return 0


@budget_app.command("show")
def budget_show(
    coordinator: Coordinator = None, config: Config = None, state: State = None, sets: Sets = None, json_lines: Json = False
) -> int:
    """Show every budget and every task's λ; also while a coordinator is running."""
    from coordinator.config import BudgetsConfig
    from coordinator.ledger.budgets import SCOPES

    resolved = _resolved(config, state, sets, coordinator=coordinator)
    configured = config is not None or resolved.budgets != BudgetsConfig()
    asked = _spending_in_running(resolved)
    spending = asked or _spending_in_file(resolved, configured)
    configured = configured or asked is not None
    if json_lines:
        _print_json(_spending_json(spending))
        return 0
    limits = spending.limits
    recorded = {row.key.split("@")[0].split("[")[0] for row in spending.budgets}
    unlimited = {scope: "no limit" if configured or scope in recorded else "as configured" for scope in SCOPES}
    held_to = [
        f"limit of {scope}: {_limit_text(getattr(limits, scope), unlimited[scope], spending.settings_set.get(scope, ()))}"
        for scope in SCOPES
    ]
    shared = [f"shared price {row.key}: λ {row.dual:.4f} after {counted(row.updates, 'step')}" for row in spending.prices]
    for line in (*held_to, *_budget_lines(spending.budgets), *shared, *map(_task_line, spending.tasks)):
        typer.echo(line)
    return 0


@budget_app.command("set")
def budget_set(
    scope: Annotated[str, typer.Argument(help="fleet, fleet_task, device or device_task.", metavar="SCOPE")],
    calls: Annotated[Limit, typer.Option("--calls", help=LIMIT_HELP.format(unit="calls"), metavar="N|none")] = None,
    tokens: Annotated[Limit, typer.Option("--tokens", help=LIMIT_HELP.format(unit="tokens"), metavar="N|none")] = None,
    spend_uusd: Annotated[Limit, typer.Option("--spend-uusd", help=LIMIT_HELP.format(unit="micro-USD"), metavar="N|none")] = None,
    window: Annotated[
        str | None, typer.Option("--window", help="total, month, week, day, hour or config.", metavar="WINDOW")
    ] = None,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Change limits in the ledger: at once, and for every coordinator that shares it. What is spent stays spent.

    What is set here wins over the configuration, also after a restart and SIGHUP, until it is set to `config`.
    """
    from coordinator.ledger.budgets import SCOPES

    if scope not in SCOPES:
        raise UsageError(f"unknown scope {scope!r}; known: {', '.join(SCOPES)}")
    given = {"calls_limit": calls, "tokens_limit": tokens, "spend_limit_uusd": spend_uusd}
    changes: dict[str, Any] = {name: _limit(name, text) for name, text in given.items() if text is not None}
    if window is not None:
        changes["window"] = _window(window)
    if not changes:
        raise UsageError("nothing to set", hint="give --calls, --tokens, --spend-uusd or --window")
    resolved = _resolved(config, state, sets, coordinator=coordinator)
    limits: BudgetsConfig | None = _set_in_running(resolved, scope, changes)
    if limits is None:
        limits = _set_in_ledger(resolved, scope, changes)
    _print_json(limits.model_dump()) if json_lines else typer.echo(f"{scope}: {_limit_text(getattr(limits, scope))}")
    return 0


@devices_app.callback(invoke_without_command=True)
def devices(
    context: typer.Context,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """List the devices that a running coordinator has seen; or disable and enable one."""
    if context.invoked_subcommand is not None:
        if json_lines or any(value is not None for value in (coordinator, config, state, sets)):
            raise UsageError(f"options belong behind `devices {context.invoked_subcommand}`")
        return 0
    return _list_devices(_resolved(config, state, sets, coordinator=coordinator), json_lines)


@devices_app.command("list")
def devices_list(
    coordinator: Coordinator = None, config: Config = None, state: State = None, sets: Sets = None, json_lines: Json = False
) -> int:
    """The same as `devices`."""
    return _list_devices(_resolved(config, state, sets, coordinator=coordinator), json_lines)


@devices_app.command("disable")
def devices_disable(
    device: Device,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Refuse a device from now on, at every replica, until it is enabled; also one that never called. What it has under way is settled
    and charged. Its tokens and certificates stay valid: `token revoke` ends those."""
    return _set_disabled(device, True, _resolved(config, state, sets, coordinator=coordinator), json_lines)


@devices_app.command("enable")
def devices_enable(
    device: Device,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Let a device in again."""
    return _set_disabled(device, False, _resolved(config, state, sets, coordinator=coordinator), json_lines)


@app.command()
def calls(
    device: Annotated[str, typer.Option("--device", help="Only this device's.", metavar="ID")] = "",
    call_state: Annotated[
        str | None, typer.Option("--in-state", help="running, completed, refunded, failed or in_doubt.", metavar="STATE")
    ] = None,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """List the calls of a running coordinator, without prompts and answers."""
    from coordinator.service.admin_text import call_line, call_state_of
    from edge.rpc.v1 import admin_pb2

    request = admin_pb2.ListCallsRequest(device=device, state=call_state_of(call_state))
    resolved = _resolved(config, state, sets, coordinator=coordinator)
    return _print_pages(resolved, "ListCalls", request, call_line, json_lines)


@app.command()
def upstreams(
    coordinator: Coordinator = None, config: Config = None, state: State = None, sets: Sets = None, json_lines: Json = False
) -> int:
    """List the cloud LLMs of a running coordinator, their prices, and how busy they are."""
    from coordinator.commands.admin_client import access_of, required_coordinator
    from coordinator.service.admin_text import as_json, upstream_line
    from edge.rpc.v1 import admin_pb2

    with required_coordinator(access_of(_resolved(config, state, sets, coordinator=coordinator))) as client:
        listed = client.ask("ListUpstreams", admin_pb2.ListUpstreamsRequest())
        prices = {price.alias: price for price in client.ask("ListPrices", admin_pb2.ListPricesRequest()).prices}
    for upstream in listed.upstreams:
        price = prices.get(upstream.alias)
        told = {**as_json(upstream), "price": None if price is None else as_json(price)}
        _print_json(told) if json_lines else typer.echo(upstream_line(upstream, price))
    return 0


@app.command()
def status(
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """How a running coordinator is doing: open calls, what was spent today (UTC), devices seen, upstreams."""
    from coordinator.commands.admin_client import access_of, required_coordinator
    from coordinator.commands.status import status_of
    from edge.core.clock import SystemClock

    with required_coordinator(access_of(_resolved(config, state, sets, coordinator=coordinator))) as client:
        found = status_of(client, SystemClock().now())
    if json_lines:
        _print_json(found.to_json())
    else:
        for line in found.lines():
            typer.echo(line)
    return 0


@app.command()
def drain(
    grace_s: Annotated[
        float | None,
        typer.Option(
            "--grace-s", help="Seconds that running calls get, then they are cut (default: as configured).", min=0.0, metavar="S"
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it has stopped.")] = False,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Let a running coordinator finish its work and stop.

    As with SIGTERM it takes nothing new, lets what is under way end, settles it and stops. Calls that do not end in time are cut and
    charged as in doubt. This command waits until it has stopped.
    """
    from coordinator.commands.admin_client import access_of, required_coordinator

    def tell(kind: str, running: int, text: str) -> None:
        _print_json({"kind": kind, "in_flight": running}) if json_lines else typer.echo(text)

    with required_coordinator(access_of(_resolved(config, state, sets, coordinator=coordinator))) as client:
        running = client.drain(grace_s)
        tell("draining", running, f"draining: {_calls_text(running)} under way")
        for now in () if no_wait else client.until_drained():
            if now != running:
                running = now
                tell("draining", running, f"{_calls_text(running)} under way")
    if not no_wait:
        tell("stopped", 0, "stopped")
    return 0


@app.command()
def healthcheck(
    address: Annotated[
        str | None,
        typer.Argument(help="Default: the administrators' or devices' socket on this machine.", metavar="[HOST:PORT|unix:PATH]"),
    ] = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    timeout_s: Annotated[float, typer.Option("--timeout-s", help="Seconds to wait.", min=0.1)] = 3.0,
) -> int:
    """Exit code 0 when a coordinator serves, 1 when it does not (stopping, or not there). For containers and scripts.

    A ledger that cannot be written refuses calls and shows in the log and in edge_coordinator_ledger_failures_total, not here: a restart
    would not help.
    """
    from coordinator.commands.healthcheck import require_serving
    from edge.rpc.address import shown

    typer.echo(f"SERVING on {shown(require_serving(_resolved(config, state, sets), address, timeout_s))}")
    return 0


@ledger_app.command("verify")
def ledger_verify(
    coordinator: Coordinator = None, config: Config = None, state: State = None, sets: Sets = None, json_lines: Json = False
) -> int:
    """Recompute every balance and every λ from the journal and compare bit for bit; exit code 1 when anything differs.

    With --coordinator it is the coordinator there that recomputes; who does not trust it exports the journal.
    """
    from coordinator.app import open_rows
    from coordinator.commands.admin_client import access_of, required_coordinator
    from coordinator.ledger.verify import verify

    resolved = _resolved(config, state, sets, coordinator=coordinator)
    if resolved.admin.address is not None:
        with required_coordinator(access_of(resolved)) as client:
            return _report(client.verify(), json_lines)
    with open_rows(resolved) as rows:
        report = verify(rows)
    return _report(report, json_lines)


@ledger_app.command("export")
def ledger_export(
    after: Annotated[int, typer.Option("--after", help="Only entries above this number: the last `seq` you have.", min=0)] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="A new file (default: stdout); a name ending in .gz is compressed.", metavar="FILE"),
    ] = None,
    coordinator: Coordinator = None,
    config: Config = None,
    state: State = None,
    sets: Sets = None,
) -> int:
    """Write the journal as JSON lines, for audits. It holds no prompts and no answers, only their digests.

    Interrupted or grown since? `--after N` goes on behind entry N; files put one behind the other are one export.
    """
    resolved = _resolved(config, state, sets, coordinator=coordinator)
    with _export_stream(output) as stream:
        count = _export(resolved, stream, after)
    if output is not None:
        typer.echo(f"{counted(count, 'entry', 'entries')} after {after} written to {output}")
    return 0


@ledger_app.command("backup")
def ledger_backup(
    output: Annotated[Path, typer.Argument(help="A new file.", metavar="FILE", show_default=False)],
    config: Config = None,
    state: State = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Copy the ledger as it is now into a new file, also while the coordinator serves, and verify the copy.

    A ledger in PostgreSQL is copied with pg_dump. To go back: stop the coordinator, put the copy where the ledger was (without the old -wal
    and -shm files), and start with `serve --verify`. What was spent after the copy is not in it: take it off the limits.
    """
    from coordinator.app import ledger_path, state_dir_of
    from coordinator.ledger.stores.sqlite import copy_file
    from coordinator.ledger.verify import verify_file

    resolved = _resolved(config, state, sets)
    if resolved.storage.backend != "sqlite":
        raise ConfigError(
            f"a ledger in {resolved.storage.backend} is no file",
            hint="copy a PostgreSQL ledger with pg_dump, which sees one state of it",
        )
    copy_file(ledger_path(state_dir_of(resolved)), output)
    return _report(verify_file(output), json_lines)


def _export(config: CoordinatorConfig, stream: TextIO, after: int) -> int:
    from coordinator.app import open_rows
    from coordinator.commands.admin_client import access_of, required_coordinator
    from coordinator.ledger.verify import export, write_entries

    if config.admin.address is not None:
        with required_coordinator(access_of(config)) as client:
            return write_entries(client.journal(after), stream)
    with open_rows(config) as rows:
        return export(rows, stream, after)


@contextmanager
def _export_stream(output: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file that is there whole or not at all. Raises StateError when it is there already or cannot be written."""
    import gzip
    import sys

    if output is None:
        yield sys.stdout
        return
    try:
        if output.exists():
            raise StateError(f"{output} exists already", hint="name a new file; --after N writes only what came since entry N")
        with (
            replacing(output) as partial,
            gzip.open(partial, "wt", encoding="ascii")
            if output.suffix == ".gz"
            else partial.open("w", encoding="ascii") as stream,
        ):
            yield stream
    except OSError as error:
        raise StateError(f"{output} cannot be written: {error.strerror or error}") from error


@config_app.command("check")
def config_check(
    file: Annotated[Path | None, typer.Argument(help="YAML configuration file.", metavar="FILE", show_default=False)] = None,
    config: Config = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Check a configuration file; exit code 1 with file and line when something is wrong, 2 for a wrong option."""
    from coordinator.app import build_upstreams, check_security, notes_on
    from coordinator.commands.addresses import check_listening
    from coordinator.config import resolve_coordinator_config
    from coordinator.redact import redacted_data
    from coordinator.service.security import keys_are_shared
    from coordinator.service.tokens import SHARE_KEYS
    from edge.core.clock import SystemClock

    if file and config:
        raise UsageError("two files to check", hint="give FILE or --config FILE")
    read = resolve_coordinator_config(file or config, sets or ())
    resolved = read.config
    try:
        check_listening(resolved)
        check_security(resolved)
        built = build_upstreams(resolved)
    except ConfigError as error:
        raise read.placed(error) from error
    notes = notes_on(resolved)
    now = SystemClock().now()
    unpriced = {alias: why for alias, upstream in built.items() if (why := upstream.why_unpriced(now))}
    if json_lines:
        _print_json(
            {
                "ok": True,
                "unpriced": list(unpriced),
                "unpriced_because": unpriced,
                "keys_shared": keys_are_shared(resolved),
                "notes": notes,
                "config": redacted_data(resolved.model_dump(mode="json")),
            }
        )
        return 0
    typer.echo(f"{config or 'defaults'}: ok")
    for note in notes:
        typer.echo(f"note: {note}")
    for alias, why in unpriced.items():
        typer.echo(f"note: upstream {alias} has no price, so its calls will be refused (UNPRICED): {why}")
    if not keys_are_shared(resolved):
        typer.echo(f"note: tokens will be neither issued nor revoked (KEYS_NOT_SHARED): {SHARE_KEYS}")
    return 0


@config_app.command("show")
def config_show(
    prefix: Annotated[str, typer.Argument(help="Only these, e.g. storage.", metavar="PREFIX", show_default=False)] = "",
    config: Config = None,
    sets: Sets = None,
    json_lines: Json = False,
) -> int:
    """Show every value and where it comes from. Secrets are shown as references only."""
    from coordinator.config import CoordinatorConfig, resolve_coordinator_config
    from coordinator.redact import redacted_data
    from edge.config.reference import keys_of, rows_under

    found = rows_under(resolve_coordinator_config(config, sets or ()).rows(), keys_of(CoordinatorConfig), prefix)
    rows = [(key, redacted_data(value), origin) for key, value, origin in found]
    for key, value, origin in rows:
        if json_lines:
            _print_json({"key": key, "value": value, "origin": origin})
        else:
            typer.echo(f"{key}: {json.dumps(value, ensure_ascii=False)}  # {origin}")
    return 0


@config_app.command("keys")
def config_keys(
    prefix: Annotated[
        str, typer.Argument(help="Only these, e.g. storage or upstreams.NAME.prices.", metavar="PREFIX", show_default=False)
    ] = "",
    json_lines: Json = False,
) -> int:
    """Every key that a configuration may hold: its type, range, default, and what it does."""
    from coordinator.config import CoordinatorConfig
    from edge.config.reference import keys_of, keys_under, text_of

    keys = keys_under(keys_of(CoordinatorConfig), prefix)
    if json_lines:
        for key in keys:
            _print_json(key.to_json())
    else:
        typer.echo(text_of(keys))
    return 0


def _resolved(
    file: Path | None, state: Path | None, sets: Sequence[str] | None, coordinator: str | None = None
) -> CoordinatorConfig:
    return _read(file, state, sets, coordinator=coordinator).config


def _require_settings(file: Path) -> None:
    """A file that is empty when it is read again was cut short: taken at its word it would lift every limit. Raises ConfigError."""
    from edge.config.yaml_lines import load_yaml

    if not load_yaml(file).data:
        raise ConfigError(f"{file} says nothing, and would lift every limit", hint="write it whole and send SIGHUP again")


def _read(
    file: Path | None,
    state: Path | None,
    sets: Sequence[str] | None,
    listen: Sequence[str] | None = None,
    sides: Mapping[str, str | None] | None = None,
    coordinator: str | None = None,
) -> Resolved[CoordinatorConfig]:
    from coordinator.config import resolve_coordinator_config
    from edge.config.loader import Flag

    flags = [Flag("state_dir", str(state), "--state")] if state is not None else []
    if coordinator is not None:
        flags.append(Flag("admin.address", coordinator, "--coordinator"))
    if listen:
        flags.append(Flag("listen", list(listen), "--listen"))
    flags += [Flag(key, value, f"--{key.removesuffix('_listen')}") for key, value in (sides or {}).items() if value is not None]
    return resolve_coordinator_config(file, sets or (), flags)


def _spending_in_running(config: CoordinatorConfig) -> Spending | None:
    """Limits, budgets and prices as a running coordinator tells them; None when none runs."""
    from coordinator.commands.admin_client import access_of, running_coordinator, spending_of

    with running_coordinator(access_of(config)) as client:
        return None if client is None else spending_of(client)


def _spending_in_file(config: CoordinatorConfig, configured: bool) -> Spending:
    """The same from the ledger of a state folder. Raises StateError."""
    from coordinator.app import open_rows
    from coordinator.commands.admin_client import Spending
    from coordinator.ledger.budgets import limits_in_ledger, overlaid, rows_held_to_next, rows_with_set, settings_set
    from coordinator.ledger.transitions import task_as_seen
    from edge.core.clock import SystemClock

    with open_rows(config) as rows:
        budgets, prices = list(rows.all_budgets()), {row.key: row for row in rows.all_prices()}
        tasks = [task_as_seen(row, prices.get(row.price)) for row in rows.all_tasks()]
        was_set = tuple(rows.set_limits())
    known = config.budgets if configured else limits_in_ledger(budgets)
    limits, now = overlaid(known, was_set), SystemClock().now()
    shown = rows_held_to_next(budgets, limits, now) if configured else rows_with_set(budgets, was_set, now)
    return Spending(limits, shown, tasks, list(prices.values()), settings_set(was_set))


def _set_in_running(config: CoordinatorConfig, scope: str, changes: dict[str, Any]) -> BudgetsConfig | None:
    """Change limits in a running coordinator; None when none runs."""
    from coordinator.commands.admin_client import access_of, limit_change, running_coordinator, spending_of
    from edge.rpc.v1 import admin_pb2

    with running_coordinator(access_of(config)) as client:
        if client is None:
            return None
        fields = {"calls_limit": "calls", "tokens_limit": "tokens", "spend_limit_uusd": "uusd"}
        units = {field: limit_change(changes[name]) for name, field in fields.items() if name in changes}
        client.ask("SetBudget", admin_pb2.SetBudgetRequest(scope=scope, window=changes.get("window", ""), **units))
        return spending_of(client).limits


def _set_in_ledger(config: CoordinatorConfig, scope: str, changes: dict[str, Any]) -> BudgetsConfig:
    """Change limits where no coordinator of this state folder runs."""
    from coordinator.app import in_ledger
    from coordinator.ledger.budgets import overlaid
    from edge.core.clock import SystemClock

    return overlaid(config.budgets, in_ledger(config, lambda store: store.set_limits(scope, changes, SystemClock().now())))


def _list_devices(config: CoordinatorConfig, json_lines: bool) -> int:
    from coordinator.service.admin_text import device_line
    from edge.rpc.v1 import admin_pb2

    return _print_pages(config, "ListDevices", admin_pb2.ListDevicesRequest(), device_line, json_lines)


def _set_disabled(device: str, disabled: bool, config: CoordinatorConfig, json_lines: bool) -> int:
    """By a running coordinator, or in the ledger itself where none runs; and tell what is so now."""
    from coordinator.app import in_ledger
    from coordinator.commands.admin_client import access_of, running_coordinator
    from coordinator.control.devices import Fleet
    from coordinator.service.admin_api import device_record
    from coordinator.service.admin_text import as_json, device_line
    from edge.core.clock import SystemClock
    from edge.rpc.v1 import admin_pb2

    with running_coordinator(access_of(config)) as client:
        if client is not None:
            request = admin_pb2.SetDeviceDisabledRequest(device=device, disabled=disabled)
            record = client.ask("SetDeviceDisabled", request).device
        else:
            record = device_record(in_ledger(config, lambda store: Fleet(store, SystemClock()).set_disabled(device, disabled)))
    _print_json(as_json(record)) if json_lines else typer.echo(device_line(record))
    if disabled and not (json_lines or record.last_seen_ms or device in config.auth.devices):
        typer.echo(
            f"note: no device called {device!r} is known; it is refused should one come (`edge-coordinator devices` lists them)"
        )
    return 0


def _print_pages(config: CoordinatorConfig, method: str, request: Any, line: Callable[[Any], str], json_lines: bool) -> int:
    """Print every record of a running coordinator's list, a line each, page by page."""
    from coordinator.commands.admin_client import access_of, required_coordinator
    from coordinator.service.admin_text import as_json, records_of

    with required_coordinator(access_of(config)) as client:
        shown = 0
        for reply in client.pages(method, request):
            for record in records_of(reply):
                shown += 1
                _print_json(as_json(record)) if json_lines else typer.echo(line(record))
    if not shown:
        typer.echo(f"no {method.removeprefix('List').lower()} to show", err=True)
    return 0


def _tell(serving: Serving, json_lines: bool) -> None:
    """A line once the service answers, for which whoever started this process waits; for people also where everything else is."""
    if json_lines:
        where = {"addresses": serving.addresses, "admin_addresses": serving.admin_addresses}
        urls = {"metrics_url": serving.metrics_url, "console_url": serving.console_url}
        _print_json({"kind": "serving", **where, **urls, "state_dir": str(serving.state_dir), "upstreams": serving.upstreams})
    else:
        from edge.rpc.address import shown

        off = "off; --{0} HOST:PORT or {0}_listen in the configuration turns it on"
        told = {
            "administrators": " ".join(map(shown, serving.admin_addresses)) or "off",
            "metrics": serving.metrics_url or off.format("metrics"),
            "console": serving.console_url or off.format("console"),
            "state": shown(str(serving.state_dir)),
        }
        lines = [f"SERVING on {' '.join(map(shown, serving.addresses))}", *(f"  {name}: {where}" for name, where in told.items())]
        print("\n".join(lines), flush=True)


def _calls_text(count: int) -> str:
    return "1 call is" if count == 1 else f"{count or 'no'} calls are"


def _limit(name: str, text: str) -> int | str | None:
    from coordinator.ledger.accounts import AS_CONFIGURED
    from coordinator.service.admin_api import MOST_UNITS

    if text in ("none", "config"):
        return None if text == "none" else AS_CONFIGURED
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_UNITS):
        raise UsageError(f"{name} must be a whole number up to {MOST_UNITS}, `none` or `config`, not {text!r}")
    return int(text)


def _window(text: str) -> str:
    from coordinator.ledger.accounts import AS_CONFIGURED
    from edge.core.periods import PERIODS

    if text == "config":
        return AS_CONFIGURED
    if text not in PERIODS:
        raise UsageError(f"unknown window {text!r}; known: {', '.join(PERIODS)}, config")
    return text


def _limit_text(limits: Any, none: str = "no limit", was_set: Sequence[str] = ()) -> str:
    from coordinator.ledger.accounts import amount_text

    units = (("calls", limits.calls_limit), ("tokens", limits.tokens_limit), ("uusd", limits.spend_limit_uusd))
    amounts = [amount_text(unit, value) for unit, value in units if value is not None]
    names = [name.removesuffix("_limit").removesuffix("_limit_uusd") for name in was_set]
    text = f"{', '.join(amounts)} ({limits.window})" if amounts else "no limit" if was_set else none
    return text + (f"; by `budget set`: {', '.join(names)}" if names else "")


def _budget_json(row: BudgetRow) -> dict[str, Any]:
    units, told = ("calls", "tokens", "uusd"), (("committed", row.committed), ("reserved", row.reserved), ("limits", row.asked))
    return {
        "key": row.key,
        **{unit: {name: getattr(amount, unit) for name, amount in told} for unit in units},
    }


def _spending_json(spending: Spending) -> dict[str, Any]:
    return {
        "limits": spending.limits.model_dump(),
        "set": {scope: list(names) for scope, names in spending.settings_set.items()},
        "budgets": [_budget_json(row) for row in spending.budgets],
        "tasks": [_task_json(row) for row in spending.tasks],
        "prices": [{"key": row.key, "dual": row.dual, "updates": row.updates} for row in spending.prices],
    }


def _task_json(row: TaskRow) -> dict[str, Any]:
    return {
        "device": row.device,
        "task": row.task,
        "dual": row.dual,
        "target_rate": row.target_rate,
        "next_step": row.next_step,
        "spend_uusd": row.charged.uusd,
        "calls": row.charged.calls,
        "tokens": row.charged.tokens,
    }


def _budget_lines(rows: Sequence[BudgetRow]) -> list[str]:
    shown = [row for row in rows if not row.key.startswith(("step[", "share/"))]
    if not shown:
        return ["nothing was spent yet"]
    return [
        f"used by {row.key}: "
        + ", ".join(_meter(label, getattr(row.used, unit), getattr(row.asked, unit)) for label, unit in _UNITS)
        for row in shown
    ]


_UNITS = (("calls", "calls"), ("tokens", "tokens"), ("micro-USD", "uusd"))


def _meter(label: str, used: int, limit: int | None) -> str:
    return f"{label} {used}" + ("" if limit is None else f" of {limit}")


def _task_line(row: TaskRow) -> str:
    from coordinator.ledger.accounts import amount_text

    calls = amount_text("calls", row.charged.calls)
    return f"{row.device} {row.task}: λ {row.dual:.4f}, τ {row.target_rate:g}, next step {row.next_step}, {calls}"


def _require_verified(config: CoordinatorConfig) -> None:
    """Raises LedgerDiffers. A ledger that is still to be made, or in memory, has nothing to verify."""
    from coordinator.app import ledger_path, open_rows, state_dir_of
    from coordinator.ledger.verify import verify

    backend = config.storage.backend
    if backend == "memory" or (backend == "sqlite" and not ledger_path(state_dir_of(config)).exists()):
        return
    with open_rows(config) as rows:
        report = verify(rows)
    if not report.ok:
        raise LedgerDiffers(
            f"the ledger does not verify, so it is not served: {report.differences[0]}",
            hint="`edge-coordinator ledger verify` names every difference",
        )


def _report(report: VerifyReport, json_lines: bool) -> int:
    if json_lines:
        _print_json(report.to_json())
    else:
        print("\n".join(report.lines()), flush=True)
    if not report.ok:
        raise LedgerDiffers(f"the ledger does not verify: {report.differences[0]}")
    return 0


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)
