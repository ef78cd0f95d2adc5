from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from coordinator.app import tariff_of
from coordinator.calls.prices import Price
from coordinator.config import ServerConfig, UpstreamConfig
from edge.cloud.embedded import MAX_SOCKET_PATH, EmbeddedCoordinator, embedded_settings, socket_path
from edge.config.agent import resolve_agent_config
from edge.config.schema import EmbeddedCoordinatorConfig
from edge.core.clock import SystemClock
from edge.core.errors import ConfigError, CoordinatorUnavailable
from edge.core.events import MemorySink
from edge.dagrpo.dual import Controller
from edge.state.events import Notice
from tests.until import until

CHILD = "import pathlib, signal, sys; pathlib.Path(sys.argv[sys.argv.index('--state') + 1], 'up').touch(); signal.pause()"


def child_of(folder: Path, code: str, sink: MemorySink, timeout_s: float = 30.0) -> EmbeddedCoordinator:
    async def up() -> bool:
        return (folder / "up").exists()

    return EmbeddedCoordinator(
        folder, {"a": 1}, up, sink, SystemClock(), start_timeout_s=timeout_s, command=[sys.executable, "-c", code]
    )


async def test_the_child_is_started_with_its_settings_and_stopped(tmp_path: Path) -> None:
    child = child_of(tmp_path / "c", CHILD, MemorySink())
    await child.start()
    pid = child.pid
    assert pid is not None
    assert yaml.safe_load((tmp_path / "c" / "coordinator.yaml").read_text()) == {"a": 1}
    assert {(tmp_path / "c" / f"coordinator.{end}").stat().st_mode & 0o777 for end in ("yaml", "log")} == {0o600}
    await child.aclose()
    await child.aclose()
    assert child.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGILL], ids=["killed", "crashed"])
async def test_dead_child_is_restarted_and_reported_once(tmp_path: Path, signalled: signal.Signals) -> None:
    sink = MemorySink()
    child = child_of(tmp_path / "c", CHILD, sink)
    await child.start()
    first = child.pid
    os.kill(first or 0, signalled)
    await until(lambda: child.pid not in (None, first))
    await child.aclose()
    (notice,) = [event.text for event in sink.events if isinstance(event, Notice)]
    assert signalled.name in notice and ("edge-agent doctor" in notice) is (signalled == signal.SIGILL)


STARTS_SLOWLY = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--state") + 1])
(folder / "born").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
signal.signal(signal.SIGHUP, lambda *_: (folder / "read").open("a").write("again "))
(folder / "up").touch()
while True:
    signal.pause()
"""


async def test_starting_child_is_signalled_only_once_it_serves(tmp_path: Path) -> None:
    folder, sink = tmp_path / "c", MemorySink()
    child = child_of(folder, STARTS_SLOWLY, sink)
    starting = asyncio.create_task(child.start())
    async with asyncio.timeout(60):
        while not (folder / "born").exists():
            await asyncio.sleep(0.01)
        await child.hold_to({"calls_limit": 3})
        (folder / "go").touch()
        await starting
        assert not (folder / "read").exists()
        for _ in range(3):
            await child.take_up()
        while not (folder / "read").exists():
            await asyncio.sleep(0.01)
    assert yaml.safe_load((folder / "coordinator.yaml").read_text())["budgets"] == {"device": {"calls_limit": 3}}
    await child.aclose()
    assert (folder / "read").read_text() == "again "
    assert not [event for event in sink.events if isinstance(event, Notice)], "it did not end"


async def test_slow_child_continues_starting_after_the_wait(tmp_path: Path) -> None:
    child = child_of(tmp_path / "c", STARTS_SLOWLY, MemorySink(), timeout_s=2.0)
    with pytest.raises(CoordinatorUnavailable, match="not serving after 2 s"):
        await child.start()
    assert child.pid is not None
    (tmp_path / "c" / "go").touch()
    await until((tmp_path / "c" / "up").exists)
    await child.aclose()
    assert child.pid is None


DIES = "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("code", "timeout_s", "message", "hint"),
    [
        ("import sys; sys.exit('the port is taken')", 3.0, "the port is taken", ""),
        (DIES, 3600.0, "SIGSEGV", "edge-agent doctor"),  # at once, long before the time is over
    ],
    ids=["ends", "crashes"],
)
async def test_a_child_that_cannot_start_is_reported_with_its_last_words(
    tmp_path: Path, code: str, timeout_s: float, message: str, hint: str
) -> None:
    child = child_of(tmp_path / "c", code, MemorySink(), timeout_s=timeout_s)
    with pytest.raises(CoordinatorUnavailable, match=message) as error:
        await child.start()
    assert child.pid is None and hint in (error.value.hint or "")


def test_long_socket_path_is_replaced_by_a_short_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "s"
    assert socket_path(short) == short / "coordinator.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    long = tmp_path / ("x" * 120)
    path = socket_path(long)
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH
    assert path == socket_path(long) != socket_path(tmp_path / ("y" * 120))
    assert path.parent.stat().st_mode & 0o077 == 0
    path.parent.rmdir()
    socket_path(tmp_path / ("y" * 120)).parent.rmdir()


async def test_a_stopped_child_leaves_no_short_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    long = tmp_path / ("x" * 120)
    child = child_of(long, CHILD, MemorySink())
    await child.start()
    folder = socket_path(long).parent
    assert folder.is_dir() and folder.parent == Path("/tmp")
    await child.aclose()
    assert not folder.exists()
    await child.aclose()


def test_the_childs_budget_and_price_rule_are_the_agents() -> None:
    rule = ("dual_lr=0.05", "dual_init=0.25", "dual_scope=global", "dual_proportional=0.5", "dual_window=4", "dual_ceiling=1.5")
    config = resolve_agent_config(sets=["budget.calls_limit=7", *(f"learning.control.{setting}" for setting in rule)]).config
    child = ServerConfig.model_validate(embedded_settings(config))
    task = child.effective_tasks["*"]
    assert (task.dual_scope, task.dual_init, task.step_credit_kappa, task.target_rate_from_device) == ("global", 0.25, None, True)
    assert (task.dual_rule, task.dual_ceiling) == (config.learning.control.dual_rule, 1.5)
    assert task.dual_rule.lr == 0.05 and task.dual_rule.proportional == 0.5 and task.dual_rule.window == 4
    assert child.budgets.device.calls_limit == 7
    assert child.effective_upstreams["default"].provider == "bundled"


ANTHROPIC = ("upstream=anthropic", "model=claude-sonnet-4-5-20250929")


@pytest.mark.parametrize("controller", get_args(Controller))
def test_childs_default_rule_of_a_controller_is_the_agents(controller: Controller) -> None:
    config = resolve_agent_config(sets=[f"learning.control.controller={controller}"]).config
    child = ServerConfig.model_validate(embedded_settings(config))
    assert child.effective_tasks["*"].dual_rule == config.learning.control.dual_rule


def embedded(*settings: str) -> list[str]:
    return [f"coordinator.embedded.{setting}" for setting in settings]


def child_upstream(*settings: str) -> UpstreamConfig:
    """The child's upstream for an agent's cloud settings."""
    config = resolve_agent_config(sets=embedded(*settings)).config
    return ServerConfig.model_validate(embedded_settings(config)).effective_upstreams["default"]


def test_an_anthropic_upstream_has_its_key_by_reference_and_its_published_price() -> None:
    for reference, name in (("api_key_env=MY_KEY", "MY_KEY"), ("api_key=env:MY_KEY", "MY_KEY"), ("api_key=file:/k", "file:/k")):
        upstream = child_upstream(*ANTHROPIC, reference)
        assert (upstream.provider, upstream.key_name) == ("anthropic", name)
        tariff = tariff_of(upstream)
        assert tariff.at(SystemClock().now()) == Price(3_000_000, 15_000_000)


def test_cassette_or_local_server_can_be_the_cloud() -> None:
    assert child_upstream("upstream=recorded", "path=/a.jsonl").path == "/a.jsonl"
    server = ("base_url=http://10.0.0.2/v1", "api_key_env=SOME_KEY", "allow_plaintext=true", "tokens_field=max_completion_tokens")
    prices = ("price_in_uusd_per_mtok=1000", "price_out_uusd_per_mtok=2000")
    upstream = child_upstream("upstream=openai_compatible", *server, *prices)
    assert (upstream.provider, upstream.api_key_env, upstream.constant_price) == ("openai_compatible", "SOME_KEY", (1000, 2000))
    assert (upstream.allow_plaintext, upstream.tokens_field) == (True, "max_completion_tokens")


def test_cloud_settings_of_the_child_use_the_coordinators_names() -> None:
    own = set(EmbeddedCoordinatorConfig.model_fields) - {"upstream", "step_credit_kappa", "start_timeout_s"}
    assert own <= set(UpstreamConfig.model_fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("upstream=anthropic", "api_key_env=K"), "needs model"),
        (ANTHROPIC, "api_key_env"),
        ((*ANTHROPIC, "api_key=sk-ant-abcdefghijklmnop"), "env:NAME"),
        ((*ANTHROPIC, "api_key=env:A", "api_key_env=A"), "not both"),
        (("upstream=recorded",), "needs path"),
        (("upstream=azure",), "upstream"),
    ],
)
def test_unusable_cloud_is_refused_in_one_line_without_its_secret(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        resolve_agent_config(sets=embedded(*settings))
    assert "\n" not in str(refused.value) and "abcdefghijklmnop" not in str(refused.value)
