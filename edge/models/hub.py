"""Models from the Hugging Face hub.

Downloads go through huggingface_hub into its own cache (a connection that is cut is resumed; what is there is not fetched again), and
HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean there. The cache names each file by the checksum that the
hub gives for it (SHA-256 of large files, git's hash of small ones); every file is checked against it and removed when it differs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError, ModelFileError, UsageError
from edge.core.gguf_header import read_header
from edge.core.install import install_extra

PREFERRED = ("q4_k_m", "q8_0")
"""Which GGUF file is taken where a model has several and nobody chose."""
SAFETENSORS_PARTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_LOCAL = "pull it once with a network, or give a local file: edge-agent models pull PATH"
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Pulled:
    """What is on this machine now: a GGUF file, or a folder of safetensors that waits to be converted.

    `checked` counts the files whose checksum was compared, of `files`.
    """

    repo: str
    path: Path
    convertible: bool
    files: int
    checked: int


def cache_folder() -> Path:
    """The hub's cache on this machine."""
    with _available():
        from huggingface_hub import constants
    return Path(constants.HF_HUB_CACHE).expanduser()


def pull(repo: str, file: str | None = None, revision: str | None = None, say: Callable[[str], None] = lambda _: None) -> Pulled:
    """Fetch one model. Without `file` its only GGUF file, else a preferred one, else its safetensors. Raises ModelFileError, UsageError."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo) is None:
        raise UsageError(f"{repo!r} is neither a file here nor a name on the hub", hint="a hub name looks like OWNER/NAME")
    if file is not None:
        say(f"{repo}: {file}")
        return _gguf(repo, file, revision)
    names = _listed(repo, revision)
    if (chosen := choose_gguf(repo, names)) is not None:
        say(f"{repo}: {chosen}")
        return _gguf(repo, chosen, revision)
    return _folder(repo, names, revision, say)


def choose_gguf(repo: str, names: Sequence[str]) -> str | None:
    """The GGUF file to take, None where there is none. Raises UsageError where somebody has to choose."""
    files = sorted(name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower())
    whole = [name for name in files if not _SPLIT.search(name)]
    if files and not whole:
        raise UsageError(f"{repo}: its GGUF files are split into parts, which is not supported", hint="take a model in one file")
    if len(whole) <= 1:
        return whole[0] if whole else None
    for kind in PREFERRED:
        if len(matching := [name for name in whole if kind in name.lower()]) == 1:
            return matching[0]
    more = f" and {len(whole) - _SHOWN} more" if len(whole) > _SHOWN else ""
    raise UsageError(f"{repo}: has {len(whole)} GGUF files", hint=f"choose one with --file: {', '.join(whole[:_SHOWN])}{more}")


def cached_models() -> Iterator[tuple[str, Path]]:
    """Every GGUF file in the hub's cache as (OWNER/NAME, path), the newest snapshot of each."""
    for storage in sorted(cache_folder().glob("models--*")):
        repo = storage.name.removeprefix("models--").replace("--", "/")
        seen: set[str] = set()
        for snapshot in sorted((storage / "snapshots").glob("*"), key=lambda folder: folder.stat().st_mtime, reverse=True):
            for path in sorted(snapshot.rglob("*.gguf")):
                name = path.relative_to(snapshot).as_posix()
                if name not in seen and path.is_file():
                    seen.add(name)
                    yield repo, path


def cached_folders() -> Iterator[tuple[str, Path]]:
    """Every model in the hub's cache that is a folder of safetensors as (OWNER/NAME, newest snapshot)."""
    for storage in sorted(cache_folder().glob("models--*")):
        for snapshot in sorted((storage / "snapshots").glob("*"), key=lambda folder: folder.stat().st_mtime, reverse=True):
            if (snapshot / "config.json").is_file() and any(snapshot.glob("*.safetensors")):
                yield storage.name.removeprefix("models--").replace("--", "/"), snapshot
                break


def _gguf(repo: str, name: str, revision: str | None) -> Pulled:
    path = _download(repo, name, revision)
    checked = check_blob(path, repo)
    if name.lower().endswith(".gguf"):
        read_header(path)
    return Pulled(repo, path, convertible=False, files=1, checked=int(checked))


def _folder(repo: str, names: Sequence[str], revision: str | None, say: Callable[[str], None]) -> Pulled:
    """The safetensors with configuration and tokenizer; pickled weights are never fetched."""
    wanted = [
        name for name in names if name in SAFETENSORS_PARTS or re.fullmatch(r"model[^/]*\.safetensors(\.index\.json)?", name)
    ]
    if not any(name.endswith(".safetensors") for name in wanted):
        raise ModelFileError(f"{repo}: has neither GGUF files nor safetensors", hint="take another version of the model")
    checked, folder = 0, Path()
    for name in sorted(wanted):
        say(f"{repo}: {name}")
        path = _download(repo, name, revision)
        folder = path.parent
        checked += check_blob(path, repo)
    return Pulled(repo, folder, convertible=True, files=len(wanted), checked=checked)


def _listed(repo: str, revision: str | None) -> tuple[str, ...]:
    """The names of a model's files; from the cache where the hub cannot be reached."""
    try:
        with _available(), _translated(repo, None, revision):
            from huggingface_hub import HfApi

            info: Any = HfApi().model_info(repo, revision=revision)
        return tuple(sibling.rfilename for sibling in info.siblings or ())
    except Unreachable:
        snapshot = _cached_snapshot(repo, revision)
        if snapshot is None:
            raise
        return tuple(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())


def _cached_snapshot(repo: str, revision: str | None) -> Path | None:
    storage = cache_folder() / f"models--{repo.replace('/', '--')}"
    reference = storage / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision or ""
    snapshot = storage / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _download(repo: str, name: str, revision: str | None) -> Path:
    with _available(), _translated(repo, name, revision):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, name, revision=revision))


def check_blob(path: Path, repo: str) -> bool:
    """Compare a cached file with the checksum the hub gave for it; False where it gave none (or the cache has no links).

    Raises ModelFileError, and removes the file, where they differ.
    """
    blob = path.resolve()
    actual = _checksum(blob, len(blob.name)) if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name) else None
    if actual is None:
        return False
    if actual == blob.name:
        return True
    path.unlink(missing_ok=True)
    blob.unlink(missing_ok=True)
    raise ModelFileError(
        f"{repo}: {path.name} does not have the checksum the hub gives for it; it was removed", hint="pull it again"
    )


def _checksum(blob: Path, length: int) -> str:
    """SHA-256, or for 40 digits git's hash of a blob."""
    with blob.open("rb") as file:
        if length == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha1(f"blob {blob.stat().st_size}\0".encode(), usedforsecurity=False)
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "huggingface_hub":
            raise
        raise ModelFileError(
            "the hub needs the package huggingface-hub, which is not installed", hint=f"run {install_extra('agent')}"
        ) from error


@contextmanager
def _translated(repo: str, name: str | None, revision: str | None) -> Iterator[None]:
    """Whatever the hub or the network raises, in one line with what to do."""
    try:
        yield
    except (ModuleNotFoundError, KeyboardInterrupt):
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelFileError(f"{repo}: no space left in {cache_folder()}", hint="free some, or set HF_HOME") from error
        raise translated(error, repo, name, revision, _LOCAL) from error
    except Exception as error:  # whatever the library's HTTP client raises in the middle of a download
        raise translated(error, repo, name, revision, _LOCAL) from error


class Unreachable(ModelFileError):
    """The hub cannot be reached, or may not be (HF_HUB_OFFLINE), and the cache does not have it."""


def translated(error: Exception, repo: str, name: str | None, revision: str | None, local_hint: str) -> EdgeError:
    """The error of ours that stands for `error`."""
    from huggingface_hub import errors

    what = f"{repo}: {name}" if name else repo
    if isinstance(error, errors.GatedRepoError):
        return ModelFileError(
            f"{repo}: the hub gives it only to those who accepted its terms",
            hint="accept them on the model's page, then log in with `hf auth login` or HF_TOKEN",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelFileError(
            f"{repo}: the hub has no such model, or it is private",
            hint="check the name, or log in with `hf auth login` or HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelFileError(f"{repo}: no revision {revision!r}", hint="leave out --revision for the newest")
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return ModelFileError(f"{repo}: no file {name}", hint="leave out --file to have one chosen, or see the model's page")
    if isinstance(error, errors.HFValidationError):
        return ModelFileError(f"{repo}: not a name on the hub", hint="a hub name looks like OWNER/NAME")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return ModelFileError(f"{what}: the hub refuses access ({status})", hint="log in with `hf auth login` or HF_TOKEN")
    if _offline():
        return Unreachable(
            f"{what}: not in the local cache, and HF_HUB_OFFLINE forbids to fetch it", hint=f"unset it, or: {local_hint}"
        )
    if "Consistency check failed" in str(error):
        return ModelFileError(f"{what}: the download was cut short", hint="pull it again")
    if status is not None:
        return Unreachable(f"{what}: the hub failed ({status}), and the local cache does not have it", hint="try again later")
    return Unreachable(
        f"{what}: the hub cannot be reached ({type(error).__name__}), and the local cache does not have it", hint=local_hint
    )


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
