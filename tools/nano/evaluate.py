"""How often a bundled model is right, sampled through the torch decoder; `edge-agent eval` measures a model file as it is served.

Responses are sampled in batches, with or without the help phrase, and judged as the verifiers judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from edge.verifiers.choice_answer import ChoiceAnswer
from edge.verifiers.math_answer import ExactMathAnswer
from tools.nano.data import prompt_text
from tools.nano.tokenizer import tokenizer_from

MAX_NEW_TOKENS = 320
ROWS_AT_ONCE = 128
CLOUD_MAX_STEPS = max(max(family.levels) for family in FAMILIES.values())


@dataclass(frozen=True, slots=True)
class Sample:
    """One response, judged."""

    verdict: FormatVerdict
    correct: bool
    tokens: int


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
