"""Composition C(y^θ, y^c) of a local response and a cloud completion."""

from __future__ import annotations

from edge.dagrpo.format import help_trigger_span


def compose(local: str, cloud: str) -> str:
    """C(y^θ, y^c): the local part up to the trigger, then the cloud completion in the trigger's place.

    A local response that does not ask stays as it is, whatever the cloud answered.
    """
    span = help_trigger_span(local)
    if span is None:
        return local
    start, end = span
    return local[:start] + cloud + local[end:]


def local_part(local: str) -> str:
    """The local text before the trigger (the whole text when it does not ask); what a forced-local continuation goes on from."""
    span = help_trigger_span(local)
    return local if span is None else local[: span[0]]
