"""How good a bundled model is, level by level, before any learning on the device.

Knows sampling through the torch decoder and the table of scores; knows nothing of training. Two passes over the same test items: one
in which the model may ask for help, one in which the help phrase is suppressed (forced-local).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import last_python_block
from edge.dagrpo.format import FormatVerdict, check_format
from edge.dagrpo.prompts import HELP_PHRASE, compact_question
from edge.models.decoder import Decoder, load_decoder
from edge.models.gguf_reader import open_gguf
from edge.tasks.practice import FAMILIES
from edge.tasks.practice.family import Family
from edge.verifiers.choice_answer import ChoiceAnswer
from edge.verifiers.math_answer import ExactMathAnswer
from tools.nano.data import prompt_text
from tools.nano.recipes import RECIPES
from tools.nano.tokenizer import tokenizer_from

MAX_NEW_TOKENS = 320
ROWS_AT_ONCE = 128
CLOUD_MAX_STEPS = max(max(family.levels) for family in FAMILIES.values())


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of one level's responses, or of a mix of levels.

    `formatted`, `asked`: of the responses that may ask. `kept_acc`: correct among those that did not ask. `forced_acc`: correct with the
    help phrase suppressed. `tokens`: mean length of a response.
    """

    formatted: float
    asked: float
    kept_acc: float
    forced_acc: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Report:
    """Scores of one family at one temperature, by level, and weighted by the family's default mix of levels."""

    family: str
    temperature: float
    levels: dict[int, Score]
    overall: Score


@dataclass(frozen=True, slots=True)
class Sample:
    """One response, judged."""

    verdict: FormatVerdict
    correct: bool
    tokens: int


def evaluate_file(path: Path, per_level: int, temperatures: Sequence[float], seed: int, threads: int) -> list[Report]:
    """Reports of a GGUF file, one for each family and temperature."""
    source = open_gguf(path)
    tokenizer = tokenizer_from(source.metadata("tokenizer.ggml.tokens"), source.metadata("tokenizer.ggml.merges"))
    careful = source.metadata("general.name") == "nano-cloud"
    return evaluate_decoder(load_decoder(path), tokenizer, per_level, temperatures, seed, threads, careful=careful)


def evaluate_weights(
    model: str, path: Path, per_level: int, temperatures: Sequence[float], seed: int, threads: int
) -> list[Report]:
    """The same for a weights file of a training run, unquantised."""
    tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))
    decoder = Decoder(RECIPES[model].spec(tokenizer.get_vocab_size()))
    decoder.load_state_dict(torch.load(path, weights_only=True)["weights"])
    return evaluate_decoder(decoder, tokenizer, per_level, temperatures, seed, threads, careful=model == "nano-cloud")


SAMPLES = 8


def pass_table(path: Path, per_level: int, seed: int, threads: int) -> str:
    """pass@1 and pass@8 of a GGUF file at T = 1 with help suppressed, by family and band, as a Markdown table."""
    torch.set_num_threads(threads)
    source = open_gguf(path)
    tokenizer = tokenizer_from(source.metadata("tokenizer.ggml.tokens"), source.metadata("tokenizer.ggml.merges"))
    responder = Responder(load_decoder(path), tokenizer, seed)
    lines = ["| family | band | items | pass@1 | pass@8 |", "|---|---|---|---|---|"]
    for family in FAMILIES.values():
        by_band: dict[str, list[float]] = {}
        for level in family.levels:
            items = [family.generate(seed * 1_000_000 + index, "test", level) for index in range(per_level)]
            repeated = [item for item in items for _ in range(SAMPLES)]
            right: dict[str, list[bool]] = {}
            for item, sample in responder.judged(repeated, 1.0, family.max_steps, suppress_help=True):
                right.setdefault(item.id, []).append(sample.correct)
            by_band.setdefault(family.bands[level], []).extend(sum(one) / len(one) for one in right.values())
        for band, shares in by_band.items():
            once, ever = sum(shares) / len(shares), sum(one > 0 for one in shares) / len(shares)
            lines.append(f"| {family.name} | {band} | {len(shares)} | {100 * once:.0f} | {100 * ever:.0f} |")
    return "\n".join(lines)


def evaluate_decoder(
    decoder: Decoder,
    tokenizer: Tokenizer,
    per_level: int,
    temperatures: Sequence[float],
    seed: int,
    threads: int,
    *,
    careful: bool,
) -> list[Report]:
    """Reports of a decoder; a careful one may take as many steps as there are operations."""
    torch.set_num_threads(threads)
    responder = Responder(decoder, tokenizer, seed)
    return [
        evaluate(responder, family, per_level, temperature, seed, CLOUD_MAX_STEPS if careful else family.max_steps)
        for temperature in temperatures
        for family in FAMILIES.values()
    ]


def evaluate(responder: Responder, family: Family, per_level: int, temperature: float, seed: int, max_steps: int) -> Report:
    """The report of one model at one temperature on `per_level` test items of each level of a family."""
    scores = {}
    for level in family.levels:
        items = [family.generate(seed * 1_000_000 + index, "test", level) for index in range(per_level)]
        free = responder.sample(items, temperature, max_steps, suppress_help=False)
        forced = responder.sample(items, temperature, max_steps, suppress_help=True)
        scores[level] = score(free, forced)
        print(f"T={temperature:g} {family.name} level {level}: {scores[level]}", file=sys.stderr, flush=True)
    return Report(family.name, temperature, scores, mix(scores, family.level_weights))


def score(free: Sequence[Sample], forced: Sequence[Sample]) -> Score:
    """Shares over one level."""
    kept = [sample for sample in free if not sample.verdict.asks_help]
    return Score(
        formatted=share(sample.verdict.ok for sample in free),
        asked=share(sample.verdict.asks_help for sample in free),
        kept_acc=share(sample.correct for sample in kept),
        forced_acc=share(sample.correct for sample in forced),
        tokens=sum(sample.tokens for sample in free) / len(free),
    )


def mix(scores: dict[int, Score], weights: Mapping[int, float]) -> Score:
    """Scores weighted by a mix of levels; kept accuracy by the kept share of each level."""

    def mean(name: str) -> float:
        return sum(weights[level] * float(getattr(scores[level], name)) for level in scores)

    kept = {level: weights[level] * (1 - scores[level].asked) for level in scores}
    kept_acc = sum(kept[level] * scores[level].kept_acc for level in scores) / max(sum(kept.values()), 1e-9)
    return Score(mean("formatted"), mean("asked"), kept_acc, mean("forced_acc"), mean("tokens"))


def share(flags: Iterator[bool]) -> float:
    """The share that is true; 0 of none."""
    values = list(flags)
    return sum(values) / len(values) if values else 0.0


class Responder:
    """Samples responses of one decoder in batches."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, seed: int) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._random = torch.Generator().manual_seed(seed)
        self._end = tokenizer.token_to_id("<|im_end|>")
        self._decision = tokenizer.encode("</think>\n").ids
        self._help = tokenizer.encode(HELP_PHRASE).ids[0]

    def sample(self, items: Sequence[TaskItem], temperature: float, max_steps: int, *, suppress_help: bool) -> list[Sample]:
        """One judged response for each item, in order of prompt length."""
        return [sample for _, sample in self.judged(items, temperature, max_steps, suppress_help=suppress_help)]

    def judged(
        self, items: Sequence[TaskItem], temperature: float, max_steps: int, *, suppress_help: bool
    ) -> list[tuple[TaskItem, Sample]]:
        """Each item with a judged response, in order of prompt length."""
        encoded = [(self._tokenizer.encode(prompt_text(compact_question(item))).ids, item) for item in items]
        prompts = sorted(encoded, key=lambda row: len(row[0]))
        samples = []
        for first in range(0, len(prompts), ROWS_AT_ONCE):
            rows = prompts[first : first + ROWS_AT_ONCE]
            responses = self.respond([ids for ids, _ in rows], temperature, suppress_help=suppress_help)
            samples += [(item, self._judge(item, ids, max_steps)) for (_, item), ids in zip(rows, responses, strict=True)]
        return samples

    @torch.inference_mode()
    def respond(self, prompts: Sequence[list[int]], temperature: float, *, suppress_help: bool) -> list[list[int]]:
        """Sampled ids of each prompt's response, without the end of turn."""
        responses: list[list[int]] = [[] for _ in prompts]
        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
        mask = torch.tensor([[True] * len(prompt) + [False] * (width - len(prompt)) for prompt in prompts])
        hidden = self._decoder.hidden_states(ids, mask, use_cache=True)
        last = mask.sum(1) - 1
        logits = self._decoder.lm_head(hidden.states_BTD[torch.arange(len(prompts)), last])
        live = list(range(len(prompts)))
        for _ in range(MAX_NEW_TOKENS):
            chosen = self._choose(logits, temperature, [responses[i] for i in live], suppress_help)
            going = [row for row, token in enumerate(chosen) if token != self._end]
            for row in going:
                responses[live[row]].append(chosen[row])
            if not going:
                break
            past = hidden.past
            assert past is not None
            if len(going) < len(live):
                keep = torch.tensor(going)
                past = tuple((k[keep], v[keep]) for k, v in past)
                mask, live = mask[keep], [live[row] for row in going]
            mask = torch.cat((mask, torch.ones(len(live), 1, dtype=torch.bool)), dim=1)
            following = torch.tensor([[chosen[row]] for row in going])
            hidden = self._decoder.hidden_states(following, mask, past, use_cache=True)
            logits = self._decoder.lm_head(hidden.states_BTD[:, -1])
        return responses

    def _choose(self, logits_BV: Tensor, temperature: float, so_far: Sequence[list[int]], suppress_help: bool) -> list[int]:
        if suppress_help:
            at_decision = [row for row, ids in enumerate(so_far) if ids[-len(self._decision) :] == self._decision]
            logits_BV[at_decision, self._help] = -torch.inf
        if temperature == 0:
            return logits_BV.argmax(-1).tolist()
        weights = torch.softmax(logits_BV.float() / temperature, dim=-1)
        return torch.multinomial(weights, 1, generator=self._random)[:, 0].tolist()

    def _judge(self, item: TaskItem, ids: list[int], max_steps: int) -> Sample:
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        verdict = check_format(text, max_steps)
        return Sample(verdict, verdict.ok and is_right(item, text), len(ids) + 1)


def is_right(item: TaskItem, text: str) -> bool:
    """As the verifiers judge; for a program, the reference program word for word, which is stricter than passing its tests."""
    if item.kind is AnswerKind.PROGRAM:
        return last_python_block(text) == last_python_block(item.solution)
    return ChoiceAnswer().is_correct(item, text) if item.kind is AnswerKind.CHOICE else ExactMathAnswer().is_correct(item, text)


def print_reports(reports: Sequence[Report], *, as_json: bool) -> None:
    """The reports as tables, or as one JSON document."""
    if as_json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
        return
    for report in reports:
        print(table(report))


def table(report: Report) -> str:
    """One report as a Markdown table."""
    columns = ("format", "asks help", "kept accuracy", "forced-local accuracy", "tokens")
    head = f"| {report.family}, T = {report.temperature:g} | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}"
    rows = [("mix", report.overall)] + [(f"level {level}", scores) for level, scores in report.levels.items()]
    body = [
        f"| {name} | {s.formatted:.3f} | {s.asked:.3f} | {s.kept_acc:.3f} | {s.forced_acc:.3f} | {s.tokens:.0f} |"
        for name, s in rows
    ]
    return "\n".join([head, *body, ""])
