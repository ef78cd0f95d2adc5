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
from itertools import islice
from pathlib import Path

from edge.core.errors import ModelFileError, UsageError
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

    path: Path
    convertible: bool
    files: int
    checked: int


def cache_folder() -> Path:
    """The hub's cache on this machine."""
    with _available():
        from huggingface_hub import constants
    return Path(constants.HF_HUB_CACHE).expanduser()


def pull(
    repo: str, file: str | None = None, revision: str | None = None, report: Callable[[str], None] = lambda _: None
) -> Pulled:
    """Fetch one model. Without `file` its only GGUF file, else a preferred one, else its safetensors. Raises ModelFileError, UsageError."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo) is None:
        raise UsageError(f"{repo!r} is neither a file here nor a name on the hub", hint="a hub name looks like OWNER/NAME")
    names = [file] if file is not None else _listed(repo, revision)
    chosen = file if file is not None else choose_gguf(repo, names)
    if chosen is None:
        return _folder(repo, names, revision, report)
    report(f"{repo}: {chosen}")
    path = _download(repo, chosen, revision)
    checked = check_blob(path, repo)
    if chosen.lower().endswith(".gguf"):
        read_header(path)
    return Pulled(path, convertible=False, files=1, checked=int(checked))


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


def cached_models() -> Iterator[tuple[str, list[Path]]]:
    """The models in the hub's cache as (OWNER/NAME, paths): GGUF files, the newest of each name, or else one folder of safetensors."""
    for storage in sorted(cache_folder().glob("models--*")):
        snapshots = sorted((storage / "snapshots").glob("*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
        files: dict[str, Path] = {}
        for snapshot in snapshots:
            for path in sorted(snapshot.rglob("*.gguf")):
                if path.is_file():
                    files.setdefault(path.relative_to(snapshot).as_posix(), path)
        folders = (one for one in snapshots if (one / "config.json").is_file() and any(one.glob("*.safetensors")))
        if paths := list(files.values()) or list(islice(folders, 1)):
            yield storage.name.removeprefix("models--").replace("--", "/"), paths


def _folder(repo: str, names: Sequence[str], revision: str | None, report: Callable[[str], None]) -> Pulled:
    """The safetensors with configuration and tokenizer; pickled weights are never fetched."""
    wanted = [
        name for name in names if name in SAFETENSORS_PARTS or re.fullmatch(r"model[^/]*\.safetensors(\.index\.json)?", name)
    ]
    if not any(name.endswith(".safetensors") for name in wanted):
        raise ModelFileError(f"{repo}: has neither GGUF files nor safetensors", hint="take another version of the model")
    checked, folder = 0, Path()
    for name in sorted(wanted):
        report(f"{repo}: {name}")
        path = _download(repo, name, revision)
        folder = path.parent
        checked += check_blob(path, repo)
    return Pulled(folder, convertible=True, files=len(wanted), checked=checked)


def _listed(repo: str, revision: str | None) -> list[str]:
    """The names of a model's files; from the cache where the hub cannot be reached."""
    try:
        with _translated(repo, None, revision):
            from huggingface_hub import HfApi

            return [sibling.rfilename for sibling in HfApi().model_info(repo, revision=revision).siblings or ()]
    except Unreachable:
        storage = cache_folder() / f"models--{repo.replace('/', '--')}"
        reference = storage / "refs" / (revision or "main")
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision or ""
        snapshot = storage / "snapshots" / commit
        if not commit or not snapshot.is_dir():
            raise
        return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]


def _download(repo: str, name: str, revision: str | None) -> Path:
    with _translated(repo, name, revision):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, name, revision=revision))


def check_blob(path: Path, repo: str) -> bool:
    """Compare a cached file with the checksum the hub gave for it; False where it gave none (or the cache has no links).

    Raises ModelFileError, and removes the file, where they differ.
    """
    blob = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return False
    with blob.open("rb") as file:  # 40 digits are git's hash of a blob
        by_git = hashlib.sha1(f"blob {blob.stat().st_size}\0".encode(), usedforsecurity=False)
        digest = hashlib.file_digest(file, hashlib.sha256 if len(blob.name) == 64 else lambda: by_git)
    if digest.hexdigest() == blob.name:
        return True
    path.unlink(missing_ok=True)
    blob.unlink(missing_ok=True)
    raise ModelFileError(
        f"{repo}: {path.name} does not have the checksum the hub gives for it; it was removed", hint="pull it again"
    )


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
    with _available():
        try:
            yield
        except ModuleNotFoundError:
            raise
        except Exception as error:  # whatever the library's HTTP client raises in the middle of a download
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ModelFileError(f"{repo}: no space left in {cache_folder()}", hint="free some, or set HF_HOME") from error
            raise _error_of_ours(error, repo, name, revision) from error


class Unreachable(ModelFileError):
    """The hub cannot be reached, or may not be (HF_HUB_OFFLINE), and the cache does not have it."""


def _error_of_ours(error: Exception, repo: str, name: str | None, revision: str | None) -> ModelFileError:
    from huggingface_hub import constants, errors

    log_in = "log in with `hf auth login` or HF_TOKEN"
    known: tuple[tuple[type[Exception], str, str], ...] = (
        (
            errors.GatedRepoError,
            "the hub gives it only to those who accepted its terms",
            f"accept them on the model's page, then {log_in}",
        ),
        (errors.RepositoryNotFoundError, "the hub has no such model, or it is private", f"check the name, or {log_in}"),
        (errors.RevisionNotFoundError, f"no revision {revision!r}", "leave out --revision for the newest"),
        (errors.RemoteEntryNotFoundError, f"no file {name}", "leave out --file to have one chosen, or see the model's page"),
        (errors.HFValidationError, "not a name on the hub", "a hub name looks like OWNER/NAME"),
    )
    for kind, why, hint in known:
        if isinstance(error, kind):
            return ModelFileError(f"{repo}: {why}", hint=hint)
    what, missing = f"{repo}: {name}" if name else repo, "and the local cache does not have it"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return ModelFileError(f"{what}: the hub denies access ({status})", hint=log_in)
    if constants.HF_HUB_OFFLINE:
        return Unreachable(
            f"{what}: not in the local cache, and HF_HUB_OFFLINE forbids to fetch it", hint=f"unset it, or: {_LOCAL}"
        )
    if "Consistency check failed" in str(error):
        return ModelFileError(f"{what}: the download was cut short", hint="pull it again")
    if status is not None:
        return Unreachable(f"{what}: the hub failed ({status}), {missing}", hint="try again later")
    named = "" if "/" in repo else "a hub name looks like OWNER/NAME; "
    return Unreachable(f"{what}: the hub cannot be reached ({type(error).__name__}), {missing}", hint=f"{named}{_LOCAL}")
