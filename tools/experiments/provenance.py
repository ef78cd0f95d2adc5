"""What a result was measured with, and whether the same cell would be measured with the same now. Knows settings and model files; knows
nothing of what was measured.

A cell's key holds what an experiment sets. What it leaves as usual, and the bytes of the models, can change under it: results of before
would then stand beside results of after as if they were alike.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edge.app.settings import model_file
from edge.config.schema import AgentConfig
from edge.core.errors import ModelFileError
from tools.experiments.cells import Cell

_DIGEST_BYTES = 8


def settings_of(config: AgentConfig) -> dict[str, Any]:
    """The settings that a result keeps: of learning and of the adapter."""
    return {
        "learning": config.learning.model_dump(mode="json", exclude={"when", "enabled"}),
        "adapter": config.adapter.model_dump(mode="json"),
    }


def models_of(config: AgentConfig) -> dict[str, str]:
    """A digest of the SLM's file and of the cloud LLM's, by name; what is not on this machine is left out."""
    embedded = config.coordinator.embedded
    names = [config.model.path, *([embedded.path or embedded.model] if embedded.upstream == "bundled" else [])]
    return {name: found for name in names if (found := _digest_of(name)) is not None}


def cloud_of(config: AgentConfig) -> str:
    """A digest of which cloud LLM answers, and where: of its file where it is one of ours."""
    coordinator, embedded = config.coordinator, config.coordinator.embedded
    where = [coordinator.address, coordinator.model_alias, embedded.upstream, embedded.model, embedded.path, embedded.base_url]
    file = _digest_of(embedded.path or embedded.model) if embedded.upstream == "bundled" else None
    return hashlib.blake2b(json.dumps([*where, file]).encode(), digest_size=_DIGEST_BYTES // 2).hexdigest()


def changed(cell: Cell, body: Mapping[str, Any]) -> str | None:
    """One thing that would be different now, in words; None where nothing is. Keys that came later are not compared."""
    config = cell.resolved("state").config
    for key, then, now in _both(_as_named_today(body.get("settings", {})), settings_of(config)):
        if then != now:
            return f"it was measured with {key} {then}, which is {now} now"
    models = models_of(config)
    for name, digest in body.get("models", {}).items():
        if models.get(name, digest) != digest:
            return f"it was measured with another file of {name}"
    return None


def _as_named_today(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of an older result with what has another name now (`LearningConfig` reads older files the same way)."""
    learning = settings.get("learning", {})
    if "price" not in learning or isinstance(learning["price"], str):
        return settings
    return {**settings, "learning": {**learning, "price": "calls", "stated_price": learning["price"]}}


def _both(then: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in then.keys() & now.keys():
        where = f"{within}{key}"
        if isinstance(then[key], Mapping) and isinstance(now[key], Mapping):
            yield from _both(then[key], now[key], f"{where}.")
        else:
            yield where, then[key], now[key]


def _digest_of(name: str) -> str | None:
    try:
        path = model_file(name)
    except ModelFileError:
        return None
    stat = path.stat()
    return _digest(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=16)
def _digest(path: Path, changed_ns: int, size: int) -> str:
    """Of a file's bytes; of a folder's files in the order of their names."""
    del changed_ns, size  # another file of the same name is read anew
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
