"""The reference of both configurations: every key is described and can be set, and defaults and bounds are the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from coordinator.cli import main
from coordinator.config import ServerConfig, resolve_coordinator_config
from edge.config.agent import resolve_agent_config
from edge.config.loader import Resolved
from edge.config.reference import Key, keys_of
from edge.config.schema import AgentConfig
from edge.core.errors import ConfigError
from tests.unit.conftest import EdgeAgent

KEYS = keys_of(ServerConfig)
COORDINATOR_BASE = """
upstreams:
  NAME:
    prices: [{in_uusd_per_mtok: 1, out_uusd_per_mtok: 2}]
aliases:
  NAME: [{upstream: NAME}]
tasks:
  NAME:
    target_rate_from_device: false
    target_rate_schedule: [{from_step: 0, target_rate: 0.5}]
tls: {cert: a.crt, key: a.key, client_ca: ca.crt}
auth: {devices: {NAME: {}}}
admin: {tls: {ca: ca.crt}}
telemetry: {otlp_endpoint: http://127.0.0.1:4318}
"""
AGENT_BASE = """
device:
  decode: [{rows: 1, tokens_per_s: 1}]
  speeds: [{model: tiny, decode: [{rows: 1, tokens_per_s: 1}]}]
  sources: [{of: decode, source: measured}]
phases: [{source: "practice:group1"}]
coordinator: {tls: {ca: ca.crt}}
"""


@dataclass(frozen=True)
class Kind:
    """A configuration, and a file with one of everything that may be there any number of times or not at all. `needed`: keys with a default
    that the file cannot do without; that it loads shows that they can be set.
    """

    name: str
    schema: type[BaseModel]
    base: str
    resolve: Callable[..., Resolved]  # type: ignore[type-arg]
    needed: frozenset[str]

    def resolved(self, folder: Path, sets: Sequence[str] = ()) -> Resolved:  # type: ignore[type-arg]
        (folder / "base.yaml").write_text(self.base)
        return self.resolve(folder / "base.yaml", sets)

    def values(self) -> list[Key]:
        return [key for key in keys_of(self.schema) if not key.has_keys]


COORDINATOR = Kind(
    "coordinator",
    ServerConfig,
    COORDINATOR_BASE,
    resolve_coordinator_config,
    frozenset({"tasks.NAME.target_rate_from_device", "tasks.NAME.target_rate_schedule[].from_step", "tls.client_ca"}),
)
AGENT = Kind("agent", AgentConfig, AGENT_BASE, resolve_agent_config, frozenset({"phases[].source"}))


def of_each_kind(wanted: Callable[[Key], object] = lambda key: True) -> pytest.MarkDecorator:
    """The test runs for each such key of both configurations; sections count only by their keys."""
    pairs = [(kind, key) for kind in (COORDINATOR, AGENT) for key in kind.values() if wanted(key)]
    return pytest.mark.parametrize(("kind", "key"), pairs, ids=[f"{kind.name}:{key.path}" for kind, key in pairs])


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["config", "keys", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def concrete(path: str) -> str:
    """The path of the first element, where it goes through a list."""
    return path.replace("[]", ".0")


def instead_of(key: Key) -> list[str]:
    """The setting that must be removed where this key is given."""
    if key.path == "learning.optimiser.updates_per_rollout":
        return ["learning.method=grpo"]
    if key.path.endswith(".dual_ceiling"):
        return [f"{concrete(key.path.replace('ceiling', 'init'))}=0"]
    return ["upstreams.NAME.prices=[]"] if key.path.startswith("upstreams.NAME.price_") else []


def paths_in(value: object, path: str = "") -> Iterator[str]:
    """Every path of nested data as the reference writes it; names are NAME there already."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from paths_in(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from paths_in(value[0], f"{path}[]")
    else:
        yield path


@pytest.mark.parametrize("kind", [COORDINATOR, AGENT], ids=lambda kind: kind.name)
def test_every_key_and_section_is_described_in_one_line(kind: Kind) -> None:
    keys = keys_of(kind.schema)
    assert len(keys) > 100
    assert [key.path for key in keys if not key.description.endswith(".") or "\n" in key.description] == []


@pytest.mark.parametrize("kind", [COORDINATOR, AGENT], ids=lambda kind: kind.name)
def test_reference_lists_exactly_the_keys_of_a_loaded_configuration(kind: Kind, tmp_path: Path) -> None:
    loaded = kind.resolved(tmp_path).config.model_dump(mode="json")
    assert {key.path for key in kind.values()} == set(paths_in(loaded))


@pytest.mark.parametrize("kind", [COORDINATOR, AGENT], ids=lambda kind: kind.name)
def test_the_printed_default_of_every_key_can_be_set_and_is_its_default(kind: Kind, tmp_path: Path) -> None:
    assert kind.needed <= set(paths_in(yaml.safe_load(kind.base)))
    keys = [key for key in kind.values() if not key.required and key.path not in kind.needed]
    defaults = [f"{concrete(key.path)}={json.dumps(key.default)}" for key in keys]
    explicit = kind.resolved(tmp_path, defaults)
    assert explicit.config == kind.resolved(tmp_path).config
    assert {concrete(key.path) for key in keys} <= {key.removeprefix("--set ") for key in explicit.origins.values()}


@of_each_kind(lambda key: key.choices and key.type == "choice")
def test_every_printed_choice_is_taken_and_no_other(kind: Kind, key: Key, tmp_path: Path) -> None:
    for choice in key.choices:
        shown = {
            path: value
            for path, value, _ in kind.resolved(tmp_path, [f"{key.path}={choice or EMPTY}", *MORE.get(choice, ())]).rows()
        }
        assert shown[key.path] == choice
    with pytest.raises(ConfigError, match="must be"):
        kind.resolved(tmp_path, [f"{key.path}=nothing_of_them"])


EMPTY = '""'
MORE = {
    "postgres": ["storage.dsn_env=DSN"],
    "openai_compatible": ["coordinator.embedded.base_url=https://cloud.example/v1"],
    "anthropic": ["coordinator.embedded.api_key_env=KEY", "coordinator.embedded.model=large"],
    "recorded": ["coordinator.embedded.path=cassette.jsonl"],
    "router": ["routing.router=router.onnx"],
    "none": ["programs.unsafe=true"],
}
"""What some choices cannot do without."""


@of_each_kind(lambda key: "minimum" in key.bounds)
def test_printed_minimum_is_accepted_and_less_is_not(kind: Kind, key: Key, tmp_path: Path) -> None:
    least = key.bounds["minimum"]
    kind.resolved(tmp_path, [*instead_of(key), f"{concrete(key.path)}={least}"])
    with pytest.raises(ConfigError, match=r"must be at least|must lie in \[0, 1\]"):
        kind.resolved(tmp_path, [*instead_of(key), f"{concrete(key.path)}={least - 1}"])


@of_each_kind(lambda key: "maximum" in key.bounds)
def test_printed_maximum_is_accepted_and_more_is_not(kind: Kind, key: Key, tmp_path: Path) -> None:
    most = key.bounds["maximum"]
    kind.resolved(tmp_path, [*instead_of(key), f"{concrete(key.path)}={most}"])
    with pytest.raises(ConfigError, match=r"must be at most|must lie in \[0, 1\]"):
        kind.resolved(tmp_path, [*instead_of(key), f"{concrete(key.path)}={most + 1}"])


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("storge", "did you mean storage"),
        ("service.calls_per_min", "rates.device.calls_per_min"),
        ("storage.backend.kind", "storage.backend.kind"),
        ("zzz", "sections: upstreams, aliases, tasks,"),
    ],
)
def test_an_unknown_prefix_is_one_line_with_names_near_it_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], prefix: str, message: str
) -> None:
    code, out, err = outcome(capsys, prefix)
    assert (code, out) == (2, "") and err.count("\n") == 1 and message in err


def test_the_json_form_has_one_object_a_line_with_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(capsys, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["key"] for row in rows] == [key.path for key in KEYS]
    (deadline,) = [row for row in rows if row["key"] == "upstreams.NAME.deadline_s"]
    assert (deadline["type"], deadline["exclusiveMinimum"], deadline["required"], deadline["default"]) == (
        "number",
        0.0,
        False,
        60.0,
    )
    assert json.loads(outcome(capsys, "storage.backend", "--json")[1])["choices"] == ["sqlite", "postgres", "memory"]


def test_the_agent_has_the_same_command(edge_agent: EdgeAgent) -> None:
    assert edge_agent("config", "keys", "serve.port").out.startswith("serve.port: whole number, 0 to 65535; default 8040")
    assert [row["key"] for row in edge_agent("config", "keys", "--json").json] == [key.path for key in keys_of(AgentConfig)]
    edge_agent("config", "keys", "serv.port").refused(2, "did you mean serve.port")
