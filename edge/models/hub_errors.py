"""The hub's refusals in one line each. Knows huggingface_hub's exceptions; knows nothing of files.

Login problems, names that do not exist, terms that were not accepted, no network: each has its own sentence and its own way on.
"""

from __future__ import annotations

from edge.core.errors import EdgeError, ModelFileError


class Unreachable(ModelFileError):
    """The hub cannot be reached, or may not be (HF_HUB_OFFLINE), and the cache does not have it."""


def translated(error: Exception, repo: str, name: str | None, revision: str | None, local_hint: str) -> EdgeError:
    """The error of ours that says what `error` means."""
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
