"""The commands: names, options, help and what they print. What a command needs is loaded when it runs."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from typer import Argument, Context, Exit, Option, Typer

from coordinator.commands.options import Json, SharedOptions, print_json, print_result, takes
from coordinator.commands.security import pki_app, token_app
from edge.core.clock import SystemClock
from edge.core.errors import ConfigError, EdgeError, StateError, UsageError
from edge.core.files import replacing
from edge.core.formatting import counted
from edge.rpc.address import shown

if TYPE_CHECKING:
    from coordinator.app import Serving
    from coordinator.config import ServerConfig
    from coordinator.ledger.verify import VerifyReport
    from edge.config.loader import Resolved

app = Typer(
    name="edge-coordinator",
    help="Brokers cloud LLM calls for many devices within exact budgets, and prices them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
budget_app = Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)
devices_app = Typer(help="List the devices that a running coordinator has seen, or shut one out.", rich_markup_mode=None)
ledger_app = Typer(help="The ledger and its journal.", no_args_is_help=True, rich_markup_mode=None)
config_app = Typer(help="The configuration.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(budget_app, name="budget")
app.add_typer(devices_app, name="devices")
app.add_typer(ledger_app, name="ledger")
app.add_typer(config_app, name="config")
app.add_typer(pki_app, name="pki")
app.add_typer(token_app, name="token")

Device = Annotated[str, Argument(help="The device.", metavar="DEVICE")]
LIMIT_HELP = "Most {} in the window, `none`, or `config`: as configured."


class LedgerDiffers(EdgeError):
    """The ledger's tables differ from its journal."""


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="Show the version.", is_eager=True)] = False) -> None:
    if version:
        from edge import __version__

        print(__version__)
        raise Exit


@app.command()
@takes("config_file listen state sets console metrics openai")
def serve(
    settings: SharedOptions,
    exit_with_parent: Annotated[
        bool, Option("--exit-with-parent", help="Stop when the process that started this one is gone.")
    ] = False,
    log_level: Annotated[str, Option("--log-level", help="debug, info, warning or error.")] = "warning",
    verify: Annotated[
        bool, Option("--verify", help="Verify the ledger first, as `ledger verify` does; do not serve one that differs.")
    ] = False,
    json_lines: Json = False,
) -> None:
    """Serve devices until SIGTERM or Ctrl-C.

    Without a configuration the bundled nano-cloud model is the cloud LLM (practice cloud, nothing is charged), at a price for practice of
    0.10 USD / 0.40 USD per million tokens in / out, so that spend moves and caps can be tried.

    It does not verify the ledger by itself, which takes as long as the journal is: `--verify`, or `ledger verify` now and then and after a
    crash, a restored copy or a full disk.
    """
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

    latest: list[Resolved[ServerConfig]] = []

    def read() -> ServerConfig:
        if latest and settings.config_file is not None:
            _require_settings(settings.config_file)
        latest[:] = [settings.resolve()]
        return latest[0].config

    try:
        if verify:
            _require_verified(read())
        _run_quickly(run(read, lambda serving: _announce(serving, json_lines), parent_pid=parent_pid))
    except ConfigError as error:
        if not latest:
            raise
        raise latest[0].placed(error) from error


def _run_quickly(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop's event loop where it is installed, which takes a tenth of the processor time off every call."""
    try:
        import uvloop as loop
    except ImportError:
        import asyncio as loop  # type: ignore[no-redef]
    loop.run(main)


def _require_settings(file: Path) -> None:
    """A file that is empty when it is read again was cut short: taken at its word it would lift every limit. Raises ConfigError."""
    from edge.config.yaml_lines import load_yaml

    if not load_yaml(file).data:
        raise ConfigError(f"{file} is empty, and would lift every limit", hint="write it whole and send SIGHUP again")


def _require_verified(config: ServerConfig) -> None:
    """Raises LedgerDiffers. A ledger that is still to be made, or in memory, has nothing to verify."""
    from coordinator.ledger.opening import ledger_path, open_rows
    from coordinator.ledger.verify import verify

    backend = config.storage.backend
    if backend == "memory" or (backend == "sqlite" and not ledger_path(config).exists()):
        return
    with open_rows(config) as rows:
        report = verify(rows)
    if not report.ok:
        raise LedgerDiffers(
            f"the ledger does not verify, so it is not served: {report.differences[0]}",
            hint="`edge-coordinator ledger verify` names every difference",
        )


def _announce(serving: Serving, json_lines: bool) -> None:
    """A line once the service answers, for which whoever started this process waits; for people also where everything else is."""
    value = {
        "kind": "serving",
        "addresses": serving.addresses,
        "admin_addresses": serving.admin_addresses,
        "metrics_url": serving.metrics_url,
        "console_url": serving.console_url,
        "openai_url": serving.openai_url,
        "state_dir": str(serving.state_dir),
        "upstreams": serving.upstreams,
    }
    off = "off; --{0} HOST:PORT or {0}_listen in the configuration turns it on"
    no_admins = "off; admin_listen is empty, or the state folder's path is too long for a socket"
    lines = (
        f"SERVING on {' '.join(map(shown, serving.addresses))}",
        f"  administrators: {' '.join(map(shown, serving.admin_addresses)) or no_admins}",
        f"  metrics: {serving.metrics_url or off.format('metrics')}",
        f"  OpenAI's clients: {serving.openai_url or off.format('openai')}",
        f"  console: {serving.console_url or off.format('console')}",
        f"  state: {shown(str(serving.state_dir))}",
    )
    print_result(value, lines, as_json=json_lines)


@budget_app.command("show")
@takes()
def budget_show(settings: SharedOptions, json_lines: Json = False) -> None:
    """Show every budget and every task's λ; also while a coordinator is running."""
    from coordinator.commands.budgets import spending_of
    from coordinator.config import BudgetsConfig

    config = settings.config()
    spending = spending_of(config, configured=settings.config_file is not None or config.budgets != BudgetsConfig())
    print_result(spending.to_json(), spending.lines(SystemClock().now()), as_json=json_lines)


@budget_app.command("set")
@takes()
def budget_set(
    scope: Annotated[str, Argument(help="fleet, fleet_task, device, device_task or user.", metavar="SCOPE")],
    calls: Annotated[str | None, Option("--calls", help=LIMIT_HELP.format("calls"), metavar="N|none")] = None,
    tokens: Annotated[str | None, Option("--tokens", help=LIMIT_HELP.format("tokens"), metavar="N|none")] = None,
    spend_uusd: Annotated[str | None, Option("--spend-uusd", help=LIMIT_HELP.format("micro-USD"), metavar="N|none")] = None,
    window: Annotated[str | None, Option("--window", help="total, month, week, day, hour or config.", metavar="WINDOW")] = None,
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """Change limits in the ledger: at once, and for every coordinator that shares it. What is spent stays spent.

    What is set here wins over the configuration, also after a restart and SIGHUP, until it is set to `config`.
    """
    from coordinator.commands.budgets import changes_given, limit_text, set_limits

    changes = changes_given(scope, {"calls": calls, "tokens": tokens, "uusd": spend_uusd}, window)
    limits = set_limits(settings.config(), scope, changes)
    print_result(limits.model_dump(), f"{scope}: {limit_text(getattr(limits, scope))}", as_json=json_lines)


@devices_app.callback(invoke_without_command=True)
@takes()
def devices(context: Context, settings: SharedOptions, json_lines: Json = False) -> None:
    """List the devices that a running coordinator has seen; or disable and enable one."""
    if context.invoked_subcommand is None:
        _list_devices(settings, json_lines)
    elif json_lines or settings != SharedOptions():
        raise UsageError(f"options belong after `devices {context.invoked_subcommand}`")


@devices_app.command("list")
@takes()
def devices_list(settings: SharedOptions, json_lines: Json = False) -> None:
    """The same as `devices`."""
    _list_devices(settings, json_lines)


def _list_devices(settings: SharedOptions, json_lines: bool) -> None:
    from coordinator.service.admin_text import device_line
    from edge.rpc.v1 import admin_pb2

    _print_list(settings, "ListDevices", admin_pb2.ListDevicesRequest(), device_line, json_lines)


@devices_app.command("disable")
@takes()
def devices_disable(device: Device, settings: SharedOptions, json_lines: Json = False) -> None:
    """Refuse a device from now on, at every replica, until it is enabled; also one that never called. What it has under way is settled
    and charged. Its tokens and certificates stay valid: `token revoke` ends those."""
    _set_disabled(settings, device, True, json_lines)


@devices_app.command("enable")
@takes()
def devices_enable(device: Device, settings: SharedOptions, json_lines: Json = False) -> None:
    """Let a device in again."""
    _set_disabled(settings, device, False, json_lines)


def _set_disabled(settings: SharedOptions, device: str, disabled: bool, json_lines: bool) -> None:
    from coordinator.commands.status import set_disabled
    from coordinator.service.admin_text import as_json, device_line

    config = settings.config()
    record = set_disabled(config, device, disabled)
    print_result(as_json(record), device_line(record), as_json=json_lines)
    if disabled and not (json_lines or record.last_seen_ms or device in config.auth.devices):
        print(
            f"note: no device called {device!r} has registered; it is refused should one come (`edge-coordinator devices` lists them)"
        )


@app.command()
@takes()
def calls(
    device: Annotated[str, Option("--device", help="Only this device's.", metavar="ID")] = "",
    call_state: Annotated[
        str | None, Option("--in-state", help="running, completed, refunded, failed or in_doubt.", metavar="STATE")
    ] = None,
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """List the calls of a running coordinator, without prompts and answers."""
    from coordinator.service.admin_text import call_line, call_state_of
    from edge.rpc.v1 import admin_pb2

    request = admin_pb2.ListCallsRequest(device=device, state=call_state_of(call_state))
    _print_list(settings, "ListCalls", request, call_line, json_lines)


def _print_list(settings: SharedOptions, method: str, request: Any, line: Callable[[Any], str], json_lines: bool) -> None:
    from coordinator.commands.status import listed

    none = True
    for record, text in listed(settings.config(), method, request, line):
        none = False
        print_result(record, text, as_json=json_lines)
    if none:
        print(f"no {method.removeprefix('List').lower()} to show", file=sys.stderr)


@app.command()
@takes()
def upstreams(settings: SharedOptions, json_lines: Json = False) -> None:
    """List the cloud LLMs of a running coordinator, their prices, and how busy they are."""
    from coordinator.commands.admin_client import required_coordinator
    from coordinator.service.admin_text import as_json, upstream_line
    from edge.rpc.v1 import admin_pb2

    with required_coordinator(settings.config()) as client:
        for record in client.ask("ListUpstreams", admin_pb2.ListUpstreamsRequest()).upstreams:
            print_result(as_json(record), upstream_line(record), as_json=json_lines)


@app.command()
@takes()
def status(settings: SharedOptions, json_lines: Json = False) -> None:
    """How a running coordinator is doing: open calls, what was spent today (UTC), devices that registered, upstreams."""
    from coordinator.commands.admin_client import required_coordinator
    from coordinator.commands.status import status_of

    with required_coordinator(settings.config()) as client:
        found = status_of(client, SystemClock().now())
    print_result(found.to_json(), found.lines(), as_json=json_lines)


@app.command()
@takes()
def drain(
    grace_s: Annotated[
        float | None,
        Option(
            "--grace-s", help="Seconds that running calls get, then they are cut (default: as configured).", min=0.0, metavar="S"
        ),
    ] = None,
    no_wait: Annotated[bool, Option("--no-wait", help="Do not wait until it has stopped.")] = False,
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """Let a running coordinator finish its work and stop.

    As with SIGTERM it takes nothing new, lets what is under way end, settles it and stops. Calls that do not end in time are cut and
    charged as in doubt. This command waits until it has stopped.
    """
    from coordinator.commands.admin_client import required_coordinator

    def report(kind: str, running: int, text: str) -> None:
        print_result({"kind": kind, "in_flight": running}, text, as_json=json_lines)

    def running_text(count: int) -> str:
        return "1 call is under way" if count == 1 else f"{count or 'no'} calls are under way"

    with required_coordinator(settings.config()) as client:
        running = client.drain(grace_s)
        report("draining", running, f"draining: {running_text(running)}")
        for now in () if no_wait else client.until_drained():
            if now != running:
                running = now
                report("draining", running, running_text(running))
    if not no_wait:
        report("stopped", 0, "stopped")


@app.command()
@takes("config_file state sets")
def healthcheck(
    address: Annotated[
        str | None,
        Argument(help="Default: the administrators' or devices' socket on this machine.", metavar="[HOST:PORT|unix:PATH]"),
    ] = None,
    *,
    settings: SharedOptions,
    timeout_s: Annotated[float, Option("--timeout-s", help="Seconds to wait.", min=0.1)] = 3.0,
) -> None:
    """Exit code 0 when a coordinator serves, 1 when it does not (stopping, or not there). For containers and scripts.

    A ledger that cannot be written refuses calls and shows in the log and in edge_coordinator_ledger_failures_total, not here: a restart
    would not help.
    """
    from coordinator.commands.status import require_serving

    print(f"SERVING on {shown(require_serving(settings.config(), address, timeout_s))}")


@ledger_app.command("verify")
@takes()
def ledger_verify(settings: SharedOptions, json_lines: Json = False) -> None:
    """Recompute every balance and every λ from the journal and compare bit for bit; exit code 1 when anything differs.

    With --coordinator it is the coordinator there that recomputes; who does not trust it exports the journal.
    """
    from coordinator.commands.admin_client import required_coordinator
    from coordinator.ledger.opening import open_rows
    from coordinator.ledger.verify import verify

    config = settings.config()
    if config.admin.address is not None:
        with required_coordinator(config) as client:
            report = client.verify()
    else:
        with open_rows(config) as rows:
            report = verify(rows)
    _print_verified(report, json_lines)


def _print_verified(report: VerifyReport, json_lines: bool) -> None:
    print_result(report.to_json(), report.lines(), as_json=json_lines)
    if not report.ok:
        raise LedgerDiffers(f"the ledger does not verify: {report.differences[0]}")


@ledger_app.command("export")
@takes()
def ledger_export(
    after: Annotated[int, Option("--after", help="Only entries above this number: the last `seq` you have.", min=0)] = 0,
    output: Annotated[
        Path | None,
        Option("--output", help="A new file (default: stdout); a name ending in .gz is compressed.", metavar="FILE"),
    ] = None,
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """Write the journal as JSON lines, for audits. It holds no prompts and no answers, only their digests.

    Interrupted or grown since? `--after N` continues after entry N; files joined in order are one export.
    """
    from coordinator.commands.admin_client import required_coordinator
    from coordinator.ledger.opening import open_rows
    from coordinator.ledger.verify import export, write_entries

    config = settings.config()
    with _export_stream(output) as stream:
        if config.admin.address is not None:
            with required_coordinator(config) as client:
                count = write_entries(client.journal(after), stream)
        else:
            with open_rows(config) as rows:
                count = export(rows, stream, after)
    if output is not None:
        text = f"{counted(count, 'entry', 'entries')} after {after} written to {output}"
        print_result({"file": str(output), "after": after, "entries": count}, text, as_json=json_lines)


@contextmanager
def _export_stream(output: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file that is there whole or not at all. Raises StateError when it is there already or cannot be written."""
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


@ledger_app.command("backup")
@takes("config_file state sets")
def ledger_backup(
    output: Annotated[Path, Argument(help="A new file.", metavar="FILE", show_default=False)],
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """Copy the ledger as it is now into a new file, also while the coordinator serves, and verify the copy.

    A ledger in PostgreSQL is copied with pg_dump. To go back: stop the coordinator, put the copy where the ledger was (without the old -wal
    and -shm files), and start with `serve --verify`. What was spent after the copy is not in it: take it off the limits.
    """
    from coordinator.ledger.opening import ledger_path
    from coordinator.ledger.stores.sqlite import copy_file
    from coordinator.ledger.verify import verify_file

    config = settings.config()
    if config.storage.backend != "sqlite":
        raise ConfigError(
            f"a ledger in {config.storage.backend} is no file",
            hint="copy a PostgreSQL ledger with pg_dump, which sees one state of it",
        )
    copy_file(ledger_path(config), output)
    _print_verified(verify_file(output), json_lines)
    if not json_lines:
        print(f"wrote {output}")


@config_app.command("check")
@takes("config_file sets")
def config_check(
    file: Annotated[Path | None, Argument(help="YAML configuration file.", metavar="FILE", show_default=False)] = None,
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> int:
    """Check a configuration file; exit code 1 with file and line of what is wrong, 2 for a wrong option.

    What does not fit together is checked once every single value is right.
    """
    from coordinator.app import build_upstreams, check_security, notes_on
    from coordinator.commands.addresses import check_listening
    from coordinator.config import ServerConfig
    from coordinator.redact import redacted, redacted_data
    from coordinator.service.security import keys_are_shared
    from coordinator.service.tokens import SHARE_KEYS
    from edge.config.loader import problem_of, problems

    if file and settings.config_file:
        raise UsageError("two files to check", hint="give FILE or --config FILE")
    settings = replace(settings, config_file=file or settings.config_file)
    files = [settings.config_file] if settings.config_file else []
    try:
        resolved = settings.resolve()
        config = resolved.config
        try:
            check_listening(config)
            check_security(config)
            built = build_upstreams(config)
        except ConfigError as error:
            raise resolved.placed(error) from error
    except UsageError:
        raise
    except ConfigError as error:
        found = problems(ServerConfig, files=files, sets=settings.sets or ())
        if len(found) < 2 and not json_lines:
            raise
        wrong = [
            {"key": problem.key, "line": problem.line, "message": redacted(" ".join(problem.text.split()))}
            for problem in found or [replace(problem_of(error, str(files[0]) if files else ""), text=error.with_hint)]
        ]
        if json_lines:
            print_json({"ok": False, "file": str(files[0]) if files else None, "problems": wrong})
        else:
            print("\n".join(f"error: {problem['message']}" for problem in wrong), file=sys.stderr)
        return 1
    now, notes, shared = SystemClock().now(), notes_on(config), keys_are_shared(config)
    unpriced = {alias: why for alias, upstream in built.items() if (why := upstream.why_unpriced(now))}
    value = {
        "ok": True,
        "unpriced": list(unpriced),
        "unpriced_because": unpriced,
        "keys_shared": shared,
        "notes": notes,
        "config": redacted_data(config.model_dump(mode="json")),
    }
    notes = [
        *notes,
        *(f"upstream {alias} has no price, so its calls will be refused (UNPRICED): {why}" for alias, why in unpriced.items()),
        *([] if shared else [f"tokens will be neither issued nor revoked (KEYS_NOT_SHARED): {SHARE_KEYS}"]),
    ]
    lines = (f"{settings.config_file or 'defaults'}: ok", *(f"note: {note}" for note in notes))
    print_result(value, lines, as_json=json_lines)
    return 0


@config_app.command("show")
@takes("config_file sets")
def config_show(
    prefix: Annotated[str, Argument(help="Only these, e.g. storage.", metavar="PREFIX", show_default=False)] = "",
    *,
    settings: SharedOptions,
    json_lines: Json = False,
) -> None:
    """Show every value and where it comes from. Secrets are shown as references only."""
    from coordinator.config import ServerConfig
    from coordinator.redact import redacted_data
    from edge.config.reference import keys_of, rows_under

    for key, value, origin in rows_under(settings.resolve().rows(), keys_of(ServerConfig), prefix):
        shown = redacted_data(value)
        line = f"{key}: {json.dumps(shown, ensure_ascii=False)}  # {origin}"
        print_result({"key": key, "value": shown, "origin": origin}, line, as_json=json_lines)


@config_app.command("keys")
def config_keys(
    prefix: Annotated[
        str, Argument(help="Only these, e.g. storage or upstreams.NAME.prices.", metavar="PREFIX", show_default=False)
    ] = "",
    json_lines: Json = False,
) -> None:
    """Every key that a configuration may hold: its type, range, default, and what it does."""
    from coordinator.config import ServerConfig
    from edge.config.reference import keys_of, keys_under, text_of

    keys = keys_under(keys_of(ServerConfig), prefix)
    if json_lines:
        for key in keys:
            print_json(key.to_json())
    else:
        print(text_of(keys))
