"""`edge-agent doctor`: is this machine ready? Each check is one line: ok, warn or fail. It leaves nothing behind.

A fail means that `edge-agent run` will not work; a warn that a part of it will not. The exit code is 1 with any fail. With --measure, what
the machine reaches follows (edge/cli/measure.py).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from typer import Option

from edge.cli.allocator import FLAG, LEAN
from edge.cli.exits import EXTRAS
from edge.cli.options import Json
from edge.cli.output import print_json, print_line
from edge.cli.remote import announcement
from edge.cli.settings import Settings, layers_line, takes
from edge.core.clock import SystemClock
from edge.core.engines import ENGINES, engine_named
from edge.core.errors import EdgeError, ModelFileError, UsageError
from edge.core.formatting import PRACTICE_CLOUD, exit_name, has_crashed
from edge.core.install import install_extra, pip_install
from edge.core.llama_build import FOR_ANY, WITHOUT_AMX
from edge.core.machine import cpu_flags, cpu_name, usable_cores

if TYPE_CHECKING:
    from edge.cli.measure import MachineMeasures
    from edge.config.schema import AgentConfig


@takes("model coordinator state device_profile")
def command(
    *,
    settings: Settings,
    measure: Annotated[
        bool, Option("--measure", help="Measure memory, arithmetic and the model, and recommend a batch (under a minute).")
    ] = False,
    write_profile: Annotated[
        Path | None, Option("--write-profile", help="Measure, and write a device profile.", metavar="FILE")
    ] = None,
    keep_profile: Annotated[
        bool, Option("--keep-profile", help="Measure, and write it where run and learn find it by themselves.")
    ] = False,
    json: Json = False,
) -> int:
    """Check this machine: Python, extras, engines, models, memory, cores, sandbox, coordinator, state folder."""
    from edge.app.settings import kept_profile
    from edge.config.device_profile import check_writable

    profile = write_profile
    if keep_profile:
        profile = kept_profile(settings.config())
        if write_profile is not None:
            raise UsageError(f"--keep-profile writes {profile}, --write-profile another file", hint="give one of them")
        with suppress(OSError):  # the check that follows reports what is wrong
            profile.parent.mkdir(parents=True, exist_ok=True)
    if profile is not None:
        check_writable(profile)
    findings: list[Finding] = []
    for finding in examine(settings):
        findings.append(finding)
        if not json:
            hint = f" ({finding.hint})" if finding.hint and finding.state != "ok" else ""
            print(f"{finding.state:<5} {finding.name:<14} {finding.text}{hint}", flush=True)
    failed = any(finding.state == "fail" for finding in findings)
    wanted = measure or profile is not None
    measured = _measured(settings.config(), profile) if wanted and not failed else None
    if json:
        checks = [asdict(finding) for finding in findings]
        print_json({"ok": not failed, "checks": checks, **(measured.to_json() if measured else {})})
    elif measured is not None:
        from edge.cli.measure import measured_lines

        print("\n".join(["", *measured_lines(measured)]), flush=True)
    elif wanted:
        print_line("nothing was measured: put right what failed first")
    return int(failed)


_NEEDED_GIB, _FREE_GIB = 1.0, 0.5
_REACH_S = 2.0
_SHOWN_FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve")
"""Processor features that the engines make use of."""
_ENGINES = (*((engine.title, engine.distribution, engine.extra) for engine in ENGINES.values()), ("torch", "torch", "train"))
"""What is shown, the package it comes from, and the extra that brings it."""


_CUDA_BUILD = f'build it for CUDA: CMAKE_ARGS="-DGGML_CUDA=on" {pip_install("--force-reinstall --no-cache-dir llama-cpp-python")}'


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


def _measured(config: AgentConfig, profile: Path | None) -> MachineMeasures:
    """Measure, and write the profile where one is wanted."""
    from edge.app.settings import kept_profile
    from edge.cli.measure import measure
    from edge.config.device_profile import profile_text, write_profile

    doubt = ""
    if (load := busy_cores(config)) > usable_cores() / 2:
        used = f"other programs used {load:.1f} of {usable_cores()} cores"
        doubt = f"this machine was busy ({used}) when it was measured: the numbers are too low"
        print_line(f"this machine is busy (other programs use {load:.1f} of {usable_cores()} cores): the numbers will be too low")
    measured = measure(config, lambda stage: print_line(f"measuring {stage} ..."))
    if profile is not None:
        write_profile(profile, profile_text(measured.device, measured.settings(), doubt))
        found = profile == kept_profile(config)
        use = "run and learn use it from now on" if found else f"use it with --device-profile {profile}"
        print_line(f"device profile written to {profile}; {use}")
        if doubt:
            print_line(f"warning: {doubt}; measure again when it is quiet")
    return measured


def busy_cores(config: AgentConfig) -> float:
    """Cores that other programs use for a second; a running agent of this state folder is none. 0 where it cannot be measured."""
    from edge.app.settings import state_folder
    from edge.learning.conditions import MachineProbe

    agent = (announcement(state_folder(config)) or {}).get("pid")
    probe = MachineProbe(SystemClock(), ours=[agent] if isinstance(agent, int) else [])
    probe.read()
    asyncio.run(asyncio.sleep(1.0))
    return (probe.read().other_load or 0.0) * (os.cpu_count() or 1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Findings one by one, each as soon as it is known: what follows may take seconds. Raises ConfigError: half of the checks need the
    configuration."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    config = settings.config()
    yield Finding("configuration", "ok", str(settings.config_file or "defaults"))
    yield from (check_extra(name) for name in ("agent", "train"))
    yield from check_backends()
    computes, version = True, _version("llama-cpp-python")
    if version is not None:  # it is tried in a process of its own; where it crashes, no check may touch it in this one
        fault, crashed = llama_fault()
        computes = not fault
        hint = rebuild_hint(version) if crashed else install_extra("agent")
        works = Finding("decoding", "ok", "llama.cpp computes on this processor")
        yield Finding("decoding", "fail", f"llama.cpp {fault}", hint) if fault else works
    if computes:
        yield check_graphics()
    yield from check_machine()
    yield check_engine(config)
    if computes:
        yield from check_devices(config)
    yield from check_allocator()
    if computes:
        yield (model := _check_model("model", config.model.path))
        if model.state == "ok":
            yield check_conversations(config)
        yield from check_learnable_here(config)
        embedded = config.coordinator.embedded
        if config.coordinator.address is None and embedded.upstream == "bundled":
            found = _check_model("cloud model", embedded.model)
            yield replace(found, text=f"{found.text} ({PRACTICE_CLOUD})") if found.state == "ok" else found
    yield check_sandbox(config)
    yield check_state(config)
    yield check_coordinator(config)
    if config.coordinator.address is None:
        yield check_cloud(config)
    yield check_other_load(config, busy_cores(config), usable_cores())


def check_extra(name: str) -> Finding:
    """Whether the packages of a part are there; they are looked up, not imported."""
    missing = [package for package in EXTRAS[name] if importlib.util.find_spec(package) is None]
    if not missing:
        return Finding(name, "ok", "installed")
    hint = install_extra(name)
    return Finding(name, "fail" if name == "agent" else "warn", f"missing: {', '.join(missing)}", hint)


def check_machine() -> Iterator[Finding]:
    """Cores that this process may use, the processor with the features that the engines use, and free memory."""
    cores = usable_cores()
    alone = Finding("cores", "warn", "1 core", "learning and serving will take turns on it")
    yield alone if cores < 2 else Finding("cores", "ok", f"{cores} cores")
    flags = cpu_flags()
    features = ", ".join(feature for feature in _SHOWN_FEATURES if feature in flags) or "no features reported"
    yield Finding("processor", "ok", f"{cpu_name() or platform.machine()}: {features}")
    if importlib.util.find_spec("psutil") is None:
        yield Finding("memory", "warn", "unknown (psutil is not installed)")
        return
    import psutil

    memory = psutil.virtual_memory()
    free, whole = memory.available / 2**30, memory.total / 2**30
    hint = "learning with the bundled model wants about 1 GiB" if free < _NEEDED_GIB else ""
    yield Finding("memory", "warn" if hint else "ok", f"{free:.1f} GiB free of {whole:.1f} GiB", hint)


def check_other_load(config: AgentConfig, busy: float, usable: int) -> Finding:
    """Whether other programs keep the cores busy, in which threads of ours would wait for each other."""
    from edge.app.agents import high_load_settings
    from edge.learning.conditions import HIGH_LOAD

    text = f"they use {busy:.1f} of {usable} cores"
    settings = " ".join(f"--set {one}" for one in high_load_settings(config))
    if busy < HIGH_LOAD * usable or not settings:
        return Finding("other programs", "ok", text)
    hint = f"run and ask use fewer threads by themselves then; for learn try {settings}"
    return Finding("other programs", "warn", f"{text}: threads that wait for each other get many times slower", hint)


def check_backends() -> Iterator[Finding]:
    """Which engines are there, with their versions; those of other machines may well be missing."""
    for name, package, extra in _ENGINES:
        version = _version(package)
        yield Finding(name, "ok", f"{package} {version}" if version else f"not installed ({install_extra(extra)})")


def check_graphics() -> Finding:
    """What the engines do with a graphics processor."""
    from edge.core.machine import nvidia_driver

    offloads, trains_on = False, None
    if _version("llama-cpp-python") is not None:
        from edge.inference.gguf_model import llama_offloads

        offloads = llama_offloads()
    if _version("torch") is not None:
        from edge.training.device import graphics_name

        trains_on = graphics_name()
    if not offloads and trains_on is None and not nvidia_driver():
        return Finding("graphics", "ok", "none that the engines can use")
    serving = "llama.cpp serves on it" if offloads else "llama.cpp is built for the processor alone"
    training = f"torch can train on {trains_on}" if trains_on else "torch sees none"
    hint = _CUDA_BUILD if nvidia_driver() and not offloads else ""
    return Finding("graphics", "warn" if hint else "ok", f"{serving}; {training}", hint)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_engine(config: AgentConfig) -> Finding:
    """Which engine serves and trains; a model that is not there is the next check's business."""
    from edge.app.engines import apple_silicon, choose_engine, installed
    from edge.app.settings import model_file

    try:
        chosen = choose_engine(config, model_file(config.model.path))
    except ModelFileError:
        return Finding("engine", "warn", "open until there is a model")
    except EdgeError as error:
        return Finding("engine", "fail", str(error), error.hint)
    if chosen.name == "onnx":
        from edge.core.engines import choose_providers

        try:
            available = importlib.import_module("onnxruntime").get_available_providers()
        except ImportError as error:
            return Finding("engine", "fail", f"ONNX Runtime cannot be loaded ({error})", install_extra("onnx"))
        choice = choose_providers(config.engine.onnx_providers, available)
        advice = "install the onnxruntime package of that provider, or leave it out of engine.onnx_providers"
        hint = advice if choice.missing else ""
        return Finding("engine", "warn" if hint else "ok", f"{choice.summary}; torch trains", hint)
    if config.engine.backend == "auto" and apple_silicon() and not installed(ENGINES["mlx"]):
        hint = f"{install_extra('mlx')}, to use this Mac's GPU for learning too"
        return Finding("engine", "warn", "llama.cpp serves, torch trains; MLX is not installed", hint)
    return Finding("engine", "ok", chosen.about)


def check_devices(config: AgentConfig) -> Iterator[Finding]:
    """Whether torch and llama.cpp have the devices that were asked for by name; nothing where none was."""
    from edge.app.engines import with_its_device
    from edge.app.settings import model_file
    from edge.sizing import training_device

    try:
        wished = with_its_device(config, model_file(config.model.path))
    except EdgeError:  # no model or no engine: reported by the checks of those
        return
    if wished.learning.device != "auto" and _version("torch") is not None:
        try:
            yield Finding("training", "ok", f"torch trains on {training_device(wished).type}")
        except EdgeError as error:
            yield Finding("training", "fail", str(error), error.hint)
    if line := layers_line(config):
        yield Finding("gpu layers", "warn", line, _CUDA_BUILD)


def check_learnable_here(config: AgentConfig) -> Iterator[Finding]:
    """That the model can answer and not learn, where that is so."""
    from edge.app.agents import why_learning_is_off

    try:
        if off := why_learning_is_off(config):
            yield Finding(
                "learning", "warn", f"off for this model: {off}", "for learning take another model; answering needs nothing"
            )
    except (EdgeError, ImportError):  # reported by the checks of model and engine
        return


def check_allocator() -> Iterator[Finding]:
    """That memory is given back at once, where the environment asks for it."""
    if os.environ.get(FLAG) == LEAN:
        yield Finding("allocator", "ok", f"lean ({FLAG}): learning takes less memory and more time")


def _check_model(name: str, path: str) -> Finding:
    try:
        text = _loaded(path)
    except ImportError as error:
        return Finding(name, "fail", f"{path}: cannot be loaded without {error.name}", install_extra("agent"))
    except EdgeError as error:
        return Finding(name, "fail", str(error), error.hint)
    return Finding(name, "ok", text)


def _loaded(path: str) -> str:
    """Open the model, a file with llama.cpp, a folder with MLX, and its chat template. Raises ModelFileError."""
    from edge.app.settings import model_file
    from edge.inference.gguf_model import GgufModel
    from edge.inference.model_tokenizer import gguf_tokenizer, tokenizer_of

    file = model_file(path)
    if file.is_dir():
        from edge.models.mlx_decoder import load_mlx_decoder

        shape = load_mlx_decoder(file).shape
        tokenizer_of(file, shape.vocab_size)
        return f"{file.resolve().name}, {shape.parameters / 1e6:.1f} M parameters"
    with closing(GgufModel(file)) as model:
        gguf_tokenizer(model)
        return f"{file.stem}, {model.parameters / 1e6:.1f} M parameters, {file.stat().st_size / 2**20:.1f} MiB"


def check_conversations(config: AgentConfig) -> Finding:
    """How long a conversation may be, and whether the memory that conversations take is free."""
    from edge.app.settings import model_file
    from edge.core.formatting import data_size
    from edge.models.catalogue import look_at
    from edge.models.weights import available_memory
    from edge.sizing import row_tokens, serving_memory_of

    path = model_file(config.model.path)
    if path.is_dir() or not engine_named(config.engine.backend).serves_apart:
        return Finding("conversations", "ok", f"{row_tokens(config, path):,} tokens each")
    serving = serving_memory_of(config, path)
    needed, free = serving.held_tokens * look_at(path).kv_bytes_per_token, available_memory()
    text = f"{serving.context_tokens:,} tokens each ({serving.reason}); {data_size(needed)} for {serving.held_tokens:,} tokens together"
    if needed > free:
        return Finding("conversations", "warn", f"{text}, but {data_size(free)} are free", "lower model.context_tokens")
    return Finding("conversations", "ok", text)


def check_sandbox(config: AgentConfig) -> Finding:
    """What programs written by a model run in, tried for real; only tasks that ask for programs need it."""
    from edge.app.judging import program_sandbox

    try:
        sandbox = program_sandbox(config)
    except EdgeError as error:
        return Finding("sandbox", "warn", f"{error}; tasks that ask for programs cannot be used", error.hint)
    protection = sandbox.protection
    if not protection.isolates:
        text = f"{sandbox.name}: programs run with your rights, nothing is blocked"
        return Finding("sandbox", "warn", text, "install bubblewrap and leave out --unsafe-programs")
    return Finding("sandbox", "ok", f"{sandbox.name}; blocks {'; '.join(protection.holds)}. Not: {'; '.join(protection.lacks)}")


def check_state(config: AgentConfig) -> Finding:
    """Whether the state folder can be written, has room, and is free."""
    from edge.app.settings import state_folder

    folder = state_folder(config)
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())  # what is made below it is removed again
    made = [path for path in (folder, *folder.parents) if path != place and path.is_relative_to(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"edge-agent")
    except OSError as error:
        return Finding("state folder", "fail", f"{folder} cannot be written ({error.strerror})", "choose another with --state")
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()
    free = shutil.disk_usage(place).free / 2**30
    if free < _FREE_GIB:
        return Finding("state folder", "warn", f"{folder}: only {free:.2f} GiB free on this disk")
    found = announcement(folder)
    use = f", in use by the agent at {found['url']}" if found else ""
    return Finding("state folder", "ok", f"{folder}, {free:.0f} GiB free{use}")


def check_coordinator(config: AgentConfig) -> Finding:
    """Whether the coordinator answers; an embedded one is only started by an agent."""
    from edge.app.coordinator import build_credentials
    from edge.rpc.health import is_serving, require_handshake

    address = config.coordinator.address
    if address is None:
        if importlib.util.find_spec("coordinator") is None:
            return Finding("coordinator", "fail", "the coordinator package is missing", install_extra("coordinator"))
        return Finding("coordinator", "ok", "embedded, started with the agent")
    try:
        credentials = build_credentials(config)
        if asyncio.run(is_serving(address, credentials=credentials)):
            return Finding("coordinator", "ok", f"{address} answers")
        asyncio.run(require_handshake(address, _REACH_S, credentials))  # raises when TLS is the reason that nothing answers
    except EdgeError as error:
        return Finding("coordinator", "fail", f"{address}: {error}", error.hint)
    hint = "is edge-coordinator serve running there? The agent will answer locally until it does"
    return Finding("coordinator", "warn", f"{address} does not answer", hint)


def check_cloud(config: AgentConfig) -> Finding:
    """Whether the cloud LLM of the embedded coordinator can be connected to; it is asked nothing, and no key is shown to it."""
    from edge.app.coordinator import require_cloud_key
    from edge.app.settings import cloud_place, state_folder, switched_off
    from edge.cloud.switch import PAUSED, is_paused
    from edge.state.reader import reading

    place, upstream = cloud_place(config), config.coordinator.embedded.upstream
    off = switched_off(config)
    with suppress(EdgeError), reading(state_folder(config)) as state:
        off = off or (PAUSED if state is not None and is_paused(state) else "")
    if off:
        return Finding("cloud", "ok", f"not checked: {off}")
    if upstream == "bundled":
        return Finding("cloud", "ok", f"{place.name} runs on this machine; no connection is needed")
    locally = "the agent will answer locally until then"
    if upstream == "recorded":
        found = Path(place.name).is_file()
        hint = "" if found else f"set coordinator.embedded.path; {locally}"
        return Finding("cloud", "ok" if found else "warn", f"recording {place.name}{'' if found else ' is not there'}", hint)
    try:
        require_cloud_key(config)
    except EdgeError as error:
        return Finding("cloud", "fail", f"{place.name}: {error}", error.hint)
    if fault := connection_fault(place.name):
        hint = f"check coordinator.embedded.base_url, the network and the server; {locally}"
        return Finding("cloud", "warn", f"{place.name} cannot be reached: {fault}", hint)
    key = f"the key in {place.key} was not tried" if place.key else "no key is configured"
    return Finding("cloud", "ok", f"{place.name} can be reached; nothing was asked, {key}")


_CONNECT_S = 3.0


def connection_fault(url: str, limit_s: float = _CONNECT_S) -> str:
    """Why no connection to an address can be made, over TLS where it is https; "" where one was made, and closed again."""
    found: list[str] = []
    # a name that cannot be resolved holds its thread for longer than anybody wants to wait
    trial = Thread(target=lambda: found.append(_connection_fault(url, limit_s)), daemon=True)
    trial.start()
    trial.join(limit_s)
    return found[0] if found else f"no answer within {limit_s:g} s"


def _connection_fault(url: str, limit_s: float) -> str:
    try:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            return "that is no http or https address"
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname, port), limit_s) as connection:
            if address.scheme == "https":
                ssl.create_default_context().wrap_socket(connection, server_hostname=address.hostname).close()
    except ssl.SSLCertVerificationError as error:
        return f"its certificate does not verify ({error.verify_message})"
    except socket.gaierror:
        return "no such host is known here"
    except (OSError, ValueError) as error:  # a port that is none
        return getattr(error, "strerror", None) or str(error)
    return ""


_TRIAL_S = 120.0


def trial_command() -> list[str]:
    """The process that decodes some tokens of the smallest bundled model."""
    from edge.models.catalogue import bundled_folder

    program = "import sys; from edge.inference.llamacpp import decode_some; decode_some(sys.argv[1])"
    return [sys.executable, "-c", program, str(bundled_folder() / "nano-edge.gguf")]


def llama_fault(command: Callable[[], Sequence[str]] = trial_command, limit_s: float = _TRIAL_S) -> tuple[str, bool]:
    """What went wrong when llama.cpp computed ("": nothing), and whether it crashed, as it will in every process."""
    try:
        ended = subprocess.run(command(), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"did not decode 65 tokens in {limit_s:g} s", False
    if ended.returncode == 0:
        return "", False
    if has_crashed(ended.returncode):
        return f"crashes on this processor ({exit_name(ended.returncode)})", True
    words = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"does not decode: {words[-1][:300] if words else f'it ended with {exit_name(ended.returncode)}'}", False


def rebuild_hint(version: str) -> str:
    """How to build llama.cpp for this processor, the more careful way last."""
    ways = [WITHOUT_AMX, FOR_ANY] if "amx_int8" in cpu_flags() else [FOR_ANY]
    install = f"--force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={version}"
    build = f'build it again: CMAKE_ARGS="{ways[0]}" {pip_install(install)}'
    return build + "".join(f'; if it crashes still, the same with CMAKE_ARGS="{way}"' for way in ways[1:])
