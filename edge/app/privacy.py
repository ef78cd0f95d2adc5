"""What this person holds to be private, from the configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge.config.schema import AgentConfig
from edge.core.errors import ConfigError

if TYPE_CHECKING:
    from edge.learning.components import AgentSettings
    from edge.privacy.registry import Registry


def build_registry(config: AgentConfig) -> Registry:
    """What this person holds to be private. Raises ConfigError for a file of terms that cannot be used, or a country without telephones."""
    from edge.privacy.registry import Registry

    privacy = config.privacy
    return Registry(
        enabled=privacy.enabled,
        kinds=privacy.kinds,
        terms=(*privacy.terms, *_terms_of(privacy.terms_file)),
        never_send=privacy.never_send,
        region=_phone_region(privacy.region),
    )


def with_hint_cut(settings: AgentSettings, registry: Registry) -> AgentSettings:
    """The settings with hints that this registry cuts."""
    rollout, answers = replace(settings.rollout, hint_cut=registry.cut), replace(settings.answers, hint_cut=registry.cut)
    return replace(settings, rollout=rollout, answers=answers)


def _terms_of(file: str | None) -> list[str]:
    """The terms of a file, one a line, without comments."""
    from edge.core.limits import checked_term

    if file is None:
        return []
    path = Path(file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"privacy.terms_file: {path} cannot be read: {error}") from error
    terms = []
    for number, line in enumerate(lines, 1):
        if term := line.partition("#")[0].strip():
            try:
                terms.append(checked_term(term))
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
    return terms


def _phone_region(region: str | None) -> str | None:
    """The country whose telephone numbers are known without a prefix: the configured one, else the system's where it tells one."""
    import locale

    from phonenumbers import SUPPORTED_REGIONS

    if region is not None and region not in SUPPORTED_REGIONS:
        raise ConfigError(f"privacy.region: {region} is no country with telephone numbers", hint="write two letters, as DE")
    name = locale.setlocale(locale.LC_CTYPE) if region is None else ""
    told = region or name.partition(".")[0].partition("_")[2]
    return told if told in SUPPORTED_REGIONS else None
