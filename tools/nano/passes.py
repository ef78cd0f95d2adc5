"""How often one response of one, and of eight, is right: what a bundled model could learn from its own rollouts, by family and band."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from edge.core.types import AnswerKind, Sampling, TaskItem
from edge.core.worker import EngineWorker
from edge.dagrpo.answers import last_python_block
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import prompt_messages
from edge.inference.llamacpp import LlamaCppBackend
from edge.tasks.practice import FAMILIES
from edge.tasks.practice.family import Family
from edge.verifiers.choice_answer import ChoiceAnswer
from edge.verifiers.math_answer import ExactMathAnswer
from tools.markdown import table_lines

SAMPLES = 8
MAX_TOKENS = 320


async def pass_table(path: Path, per_level: int, seed: int, threads: int) -> str:
    """pass@1 and pass@8 of a GGUF file at T = 1 with help suppressed, by family and band, as a Markdown table."""
    worker = EngineWorker()
    backend = LlamaCppBackend(path, worker, n_threads=threads)
    rows: list[tuple[str, ...]] = []
    try:
        for family in FAMILIES.values():
            by_band: dict[str, list[float]] = {}
            for level in family.levels:
                items = [family.generate(seed * 1_000_000 + index, "test", level) for index in range(per_level)]
                shares = await asyncio.gather(*(share_right(backend, family, item, seed) for item in items))
                by_band.setdefault(family.bands[level], []).extend(shares)
            rows += [_row(family.name, band, shares) for band, shares in by_band.items()]
    finally:
        await backend.aclose()
        worker.close()
    return "\n".join(table_lines(("family", "band", "items", "pass@1", "pass@8"), rows))


async def share_right(backend: LlamaCppBackend, family: Family, item: TaskItem, seed: int) -> float:
    """Of SAMPLES responses to an item."""
    sampling = Sampling(max_tokens=MAX_TOKENS, max_steps=family.max_steps, suppress_help=True)
    seeds = range(seed * SAMPLES, (seed + 1) * SAMPLES)
    group = await backend.sample_group(prompt_messages(item, "compact"), sampling, seeds)
    right = [check_format(one.text, family.max_steps).ok and is_right(item, one.text) for one in group.responses]
    return sum(right) / SAMPLES


def is_right(item: TaskItem, text: str) -> bool:
    """Judged like the verifiers; for a program, equality with the reference program, which is stricter than passing its tests."""
    if item.kind is AnswerKind.PROGRAM:
        return last_python_block(text) == last_python_block(item.solution)
    return ChoiceAnswer().is_correct(item, text) if item.kind is AnswerKind.CHOICE else ExactMathAnswer().is_correct(item, text)


def _row(family: str, band: str, shares: Iterable[float]) -> tuple[str, ...]:
    known = list(shares)
    once, ever = sum(known) / len(known), sum(one > 0 for one in known) / len(known)
    return family, band, str(len(known)), f"{100 * once:.0f}", f"{100 * ever:.0f}"
