"""Which signal orders a model's wrong answers before its right ones, so that it decides what is sent to the cloud LLM?

`python -m tools.experiments.decision_signals --data ../shared/data [SET...]` answers questions with SmolLM2-135M-Instruct, and some with
the bundled model, records the probabilities of what was written and of the help phrase, and prints tables. Records lie in `--out`, a line a
question; the same command goes on where it was cut, and `--tables` makes the tables alone. Every signal is larger where the cloud should
rather be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.app.judging import build_verifier
from edge.cli.exits import ending
from edge.config.schema import AgentConfig
from edge.core.errors import UsageError
from edge.core.forms import THINKING_ENDS
from edge.core.rng import derive_seed, stream
from edge.core.types import FORCED, LocalResponse, Message, TaskItem
from edge.core.worker import EngineWorker
from edge.dagrpo.prompts import HELP_PHRASE, prompt_messages
from edge.evaluation.judging import RolloutSettings, judge
from edge.inference.gguf_model import GgufModel
from edge.inference.llama_engine import LlamaEngine
from edge.inference.llamacpp import LlamaCppBackend
from edge.inference.model_tokenizer import gguf_tokenizer
from edge.inference.sampling import Doubles, Floats, log_probabilities, log_sum_exp
from edge.models.catalogue import find_model
from edge.tasks.practice import FAMILIES
from edge.tasks.registry import open_source
from edge.tasks.source import TaskSource
from tools.experiments.questions import mood_of
from tools.places import check_folder, put, put_json

NOTE = f"If you cannot answer this yourself, reply exactly: {HELP_PHRASE}"
"""A sentence in the system message that allows the help phrase."""
DOUBT = "Is that answer right? Reply with yes or no."
MOODS = ("positive", "neutral", "negative")
MOOD_QUESTION = "What is the mood of this text? Answer with one word: positive, neutral or negative."
_TEXTS, _DRAFT, _SEED = 600, 32, 1
_N_CTX, _ROWS = 768, 8
_MAX_TOKENS = 288
_RATES = (0.1, 0.3, 0.5)
_WEIGHTS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
_KNOWN = 100
"""Questions before, with which a running value is standardised."""
_RESAMPLES = 2000
_RIDGE = 1.0
_SOLVED = 1e-7
_PRIOR, _PRIOR_STRENGTH = (0.25, 0.75), 10.0
_LEAST, _WINDOW = 10, 300
"""Questions from which on a regression is fitted on the way, and of how many of the last ones."""

REASONED = {
    "science": ("smollm2", "practice:science", 100, 0.0),
    "arith": ("smollm2", "practice:arith", 100, 0.0),
    "gsm8k": ("smollm2", "gsm8k:{data}/gsm8k", 200, 0.0),
    "mmlu": ("smollm2", "mmlu:{data}/mmlu_stem", 100, 0.0),
    **{f"nano-{family}": ("nano-edge", f"practice:{family}", 300, 0.0) for family in FAMILIES},
    **{f"nano-{family}-sampled": ("nano-edge", f"practice:{family}", 300, 1.0) for family in FAMILIES},
}
"""Sets that are answered after reasoning: the model, the source, how many of its held-out questions, and the temperature. The bundled model
writes the format by itself and was shown requests for help."""

QUESTIONS: tuple[tuple[str, str], ...] = (
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Italy?", "Rome"),
    ("What is the capital of Canada?", "Ottawa"),
    ("What is the capital of Australia?", "Canberra"),
    ("What is the capital of Egypt?", "Cairo"),
    ("What is the capital of Norway?", "Oslo"),
    ("What is the capital of Kazakhstan?", "Astana|Nur-Sultan"),
    ("What is the capital of Burkina Faso?", "Ouagadougou"),
    ("What is the capital of Bhutan?", "Thimphu"),
    ("What is the capital of Slovenia?", "Ljubljana"),
    ("What is the capital of Paraguay?", "Asuncion"),
    ("How many days are there in a week?", "seven|7"),
    ("How many legs does a spider have?", "eight|8"),
    ("How many continents are there?", "seven|7"),
    ("How many strings does a violin have?", "four|4"),
    ("How many bones does an adult human have?", "206"),
    ("How many keys does a standard piano have?", "88"),
    ("How many moons does Mars have?", "two|2"),
    ("How many players of one team are on the field in a football (soccer) match?", "eleven|11"),
    ("Which planet is closest to the sun?", "Mercury"),
    ("Which planet is the largest in the solar system?", "Jupiter"),
    ("Which planet is known as the red planet?", "Mars"),
    ("What is the chemical symbol for gold?", "Au"),
    ("What is the chemical symbol for sodium?", "Na"),
    ("What is the chemical symbol for tungsten?", "W"),
    ("What is the chemical formula of water?", "H2O"),
    ("Which gas do plants take from the air for photosynthesis?", "carbon dioxide|CO2"),
    ("What is the hardest natural substance on Earth?", "diamond"),
    ("At how many degrees Celsius does water boil at sea level?", "100"),
    ("Which element has the atomic number 1?", "hydrogen"),
    ("Which element has the atomic number 79?", "gold"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Who wrote Pride and Prejudice?", "Austen"),
    ("Who wrote War and Peace?", "Tolstoy"),
    ("Who wrote Don Quixote?", "Cervantes"),
    ("Who wrote The Master and Margarita?", "Bulgakov"),
    ("Who wrote the novel Middlemarch?", "George Eliot|Mary Ann Evans"),
    ("Who painted the Mona Lisa?", "Leonardo|da Vinci"),
    ("Who painted The Starry Night?", "Van Gogh"),
    ("Who painted Girl with a Pearl Earring?", "Vermeer"),
    ("Who composed The Four Seasons?", "Vivaldi"),
    ("Who composed the opera Carmen?", "Bizet"),
    ("Who was the first president of the United States?", "Washington"),
    ("Who was the first person to walk on the moon?", "Armstrong"),
    ("Who discovered penicillin?", "Fleming"),
    ("Who developed the theory of general relativity?", "Einstein"),
    ("Who invented the telephone?", "Bell"),
    ("In which year did the Second World War end?", "1945"),
    ("In which year did the Berlin Wall fall?", "1989"),
    ("In which year was the Battle of Hastings?", "1066"),
    ("In which year did the Titanic sink?", "1912"),
    ("What is the longest river in South America?", "Amazon"),
    ("What is the highest mountain in the world?", "Everest"),
    ("What is the largest ocean on Earth?", "Pacific"),
    ("What is the highest mountain in Africa?", "Kilimanjaro"),
    ("What is the currency of Japan?", "yen"),
    ("What is the currency of Poland?", "zloty"),
    ("Which language is mainly spoken in Brazil?", "Portuguese"),
    ("What is the largest lake in Central America?", "Nicaragua|Cocibolca"),
    ("What is the capital of Germany?", "Berlin"),
    ("What is the capital of Spain?", "Madrid"),
    ("What is the capital of Greece?", "Athens"),
    ("What is the capital of Russia?", "Moscow"),
    ("What is the capital of Portugal?", "Lisbon"),
    ("What is the capital of Kenya?", "Nairobi"),
    ("What is the capital of Peru?", "Lima"),
    ("What is the capital of Cuba?", "Havana"),
    ("What is the capital of Thailand?", "Bangkok"),
    ("What is the capital of New Zealand?", "Wellington"),
    ("What is the capital of Turkey?", "Ankara"),
    ("What is the capital of Mongolia?", "Ulaanbaatar|Ulan Bator"),
    ("What is the capital of Madagascar?", "Antananarivo"),
    ("What is the capital of Latvia?", "Riga"),
    ("What is the capital of Honduras?", "Tegucigalpa"),
    ("What is the capital of Fiji?", "Suva"),
    ("What is the opposite of hot?", "cold"),
    ("What colour is a ripe banana?", "yellow"),
    ("What colour do you get when you mix blue and yellow?", "green"),
    ("Which animal is known as man's best friend?", "dog|dogs"),
    ("What do bees make?", "honey"),
    ("Which season comes after winter?", "spring"),
    ("Which month comes after March?", "April"),
    ("How many months are there in a year?", "twelve|12"),
    ("How many hours are there in a day?", "twenty-four|24"),
    ("How many minutes are there in an hour?", "sixty|60"),
    ("How many sides does a hexagon have?", "six|6"),
    ("How many cards are there in a standard deck without jokers?", "52|fifty-two"),
    ("How many chambers does the human heart have?", "four|4"),
    ("How many rings are on the Olympic flag?", "five|5"),
    ("What is the freezing point of water in degrees Fahrenheit?", "32"),
    ("What is the chemical symbol for iron?", "Fe"),
    ("What is the chemical symbol for silver?", "Ag"),
    ("What is the chemical symbol for potassium?", "K"),
    ("What is the chemical formula of table salt?", "NaCl"),
    ("Which organ pumps blood through the body?", "heart"),
    ("What is the largest organ of the human body?", "skin"),
    ("What is the largest mammal?", "blue whale"),
    ("What is the fastest land animal?", "cheetah"),
    ("Which bird is the largest in the world?", "ostrich"),
    ("Who wrote Hamlet?", "Shakespeare"),
    ("Who wrote 1984?", "Orwell"),
    ("Who wrote Moby-Dick?", "Melville"),
    ("Who wrote One Hundred Years of Solitude?", "Garcia Marquez|Marquez"),
    ("Who wrote the Divine Comedy?", "Dante"),
    ("Who wrote the play A Doll's House?", "Ibsen"),
    ("Who painted Guernica?", "Picasso"),
    ("Who painted The Scream?", "Munch"),
    ("Who composed the Ninth Symphony with the Ode to Joy?", "Beethoven"),
    ("Who composed the opera The Magic Flute?", "Mozart"),
    ("Who discovered radium together with her husband?", "Curie"),
    ("Who formulated the three laws of motion?", "Newton"),
    ("Who proposed the theory of evolution by natural selection?", "Darwin"),
    ("In which year did the First World War begin?", "1914"),
    ("In which year did the French Revolution begin?", "1789"),
    ("In which year did Columbus first reach America?", "1492"),
    ("What is the largest desert in Africa?", "Sahara"),
    ("What is the longest river in Africa?", "Nile"),
    ("Which country has the largest population in South America?", "Brazil"),
    ("What is the currency of Sweden?", "krona|kronor"),
)
"""Questions with their answers; `|` between spellings."""


@dataclass(frozen=True, slots=True)
class Record:
    """One answered question. `signals` by name; `costs`: -log p (nats) of each token that was chosen."""

    id: str
    right: bool
    answer: str
    signals: dict[str, float]
    costs: Sequence[float] = ()


class Reader(LlamaEngine):
    """Rows that are continued: of a text only what the row does not hold yet is decoded."""

    def __init__(self, model: GgufModel) -> None:
        super().__init__(model, rows=_ROWS, n_ctx=_N_CTX, n_threads=1)
        self._held: dict[int, list[int]] = {}

    def after(self, row: int, ids: list[int], last: int = 1) -> Floats:
        """Logits [last, V] after the last tokens of a text (a copy)."""
        held = self._held.get(row, [])
        most = min(len(held), len(ids) - last)
        kept = next((place for place in range(most) if held[place] != ids[place]), most)
        self.fork(row, row, kept)
        self._batch.fill_one_row(row + 1, ids[kept:], kept)
        self._batch.want_logits(len(ids) - kept - last)
        self._decode()
        self._held[row] = list(ids)
        return self._logits(last).copy()


class Chat:
    """The model in a chat as its template has it: bare, or with the note."""

    def __init__(self, path: Path) -> None:
        self._model = GgufModel(path)
        tokenizer = gguf_tokenizer(self._model)
        self.vocabulary, self._template = self._model.vocabulary, tokenizer.template
        self._reader = Reader(self._model)
        self.phrase = self.vocabulary.tokenise(HELP_PHRASE)
        self.options = np.array([self.vocabulary.tokenise(mood)[0] for mood in MOODS], dtype=np.intp)
        self._no, self._yes = (self.vocabulary.tokenise(word)[0] for word in ("No", "Yes"))

    def _prompt(self, *turns: Message, noted: bool) -> list[int]:
        return self._template.prompt_ids([*([Message("system", NOTE)] if noted else []), *turns])

    def opened(self, question: str, *, noted: bool) -> tuple[list[int], Floats, float]:
        """The prompt, the logits [V] after it, and log p of the help phrase there."""
        prompt = self._prompt(Message("user", question), noted=noted)
        logits = self._reader.after(int(noted), prompt + self.phrase[:-1], len(self.phrase))
        return prompt, logits[0], float(log_probabilities(logits, np.array(self.phrase, dtype=np.intp)).sum())

    def draft(self, prompt: list[int], *, noted: bool) -> tuple[str, list[float]]:
        """What it answers at temperature 0, and the log-probability of each token."""
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < _DRAFT and not (tokens and self.vocabulary.ends[tokens[-1]]):
            logits = self._reader.after(int(noted), [*prompt, *tokens])
            tokens.append(int(logits[0].argmax()))
            logprobs += log_probabilities(logits, np.array(tokens[-1:], dtype=np.intp)).tolist()
        return b"".join(self.vocabulary.pieces[token] for token in tokens).decode("utf-8", "replace"), logprobs

    def doubt(self, question: str, answer: str, *, noted: bool) -> float:
        """Log-odds of No against Yes when it is asked whether its answer is right."""
        turns = Message("user", question), Message("assistant", answer), Message("user", DOUBT)
        logits_V = self._reader.after(int(noted), self._prompt(*turns, noted=noted))[0]
        return float(logits_V[self._no] - logits_V[self._yes])

    def close(self) -> None:
        """Free the model."""
        self._reader.close()
        self._model.close()


def log_odds(logprob: float) -> float:
    """log p/(1-p) of a log p."""
    return logprob - math.log(-math.expm1(min(logprob, -1e-12)))


def mood_records(chat: Chat, texts: Sequence[Mapping[str, str]]) -> Iterator[tuple[Record, Record]]:
    """The mood of each text in the bare and in the noted prompt: the option that is likeliest at the beginning of the answer."""
    for text in texts:
        truth = mood_of(float(text["rating"]))
        opened = [chat.opened(f"{text['text']}\n\n{MOOD_QUESTION}", noted=noted) for noted in (False, True)]
        z_bare, z_noted = (log_odds(phrase) for _, _, phrase in opened)
        made = []
        for _, logits_V, _ in opened:
            options = logits_V[chat.options].astype(np.float64)
            whole, among = log_sum_exp(logits_V), log_sum_exp(logits_V[chat.options])
            chances = np.exp(options - among)
            best = int(options.argmax())
            signals = {
                "z phrase, bare prompt": z_bare,
                "z phrase, with note": z_noted,
                "z first token among options": float(logits_V[chat.phrase[0]]) - among,
                "-log p best, whole vocabulary": whole - float(options[best]),
                "-log p best, among options": among - float(options[best]),
                "-margin of the best two": float(np.sort(options)[-2] - options[best]),
                "entropy of the options": float(-(chances * np.log(chances)).sum()),
                "-log p of all options": whole - among,
            }
            made.append(Record(text["id"], MOODS[best] == truth, MOODS[best], signals))
        yield made[0], made[1]


def chat_records(chat: Chat, first: int) -> Iterator[tuple[Record, Record]]:
    """Free answers in the bare and in the noted prompt, from this question on."""
    for number, (question, answers) in enumerate(QUESTIONS[first:], first):
        opened = [chat.opened(question, noted=noted) for noted in (False, True)]
        z_bare, z_noted = (log_odds(phrase) for _, _, phrase in opened)
        made = []
        for noted, (prompt, _, _) in enumerate(opened):
            text, logprobs = chat.draft(prompt, noted=bool(noted))
            costs = -np.array(logprobs)
            signals = {
                "z phrase, bare prompt": z_bare,
                "z phrase, with note": z_noted,
                "-log p, first token": float(costs[0]),
                **{f"mean -log p, first {count}": float(costs[:count].mean()) for count in (8, 16)},
                "mean -log p, draft": float(costs.mean()),
                **{f"max -log p, first {count}": float(costs[:count].max()) for count in (8, 16)},
                "max -log p, draft": float(costs.max()),
                "sum -log p, draft": float(costs.sum()),
                "no against yes, asked about the draft": chat.doubt(question, text, noted=bool(noted)),
            }
            made.append(Record(f"chat-{number}", holds(text, answers), text, signals, costs.tolist()))
        yield made[0], made[1]


def holds(text: str, answers: str) -> bool:
    """Whether one of the answers, `|` between them, stands in the text as words; accents and case aside, but for short symbols."""
    word = r"(?<!\w)(?<!\d[.,]){}(?!\w|[.,]\d)"
    return any(re.search(word.format(re.escape(_plain(one, one))), _plain(text, one)) for one in answers.split("|"))


def _plain(text: str, answer: str) -> str:
    bare = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return bare if len(answer) <= 2 else bare.casefold()


def reasoned_signals(response: LocalResponse, text_of: Callable[[int], bytes]) -> dict[str, float]:
    """Signals of a response that was not allowed to ask: of what it chose before the decision, and of its answer.

    Tokens that a form or the suppressed phrase left no choice about do not count.
    """
    assert response.help_log_odds is not None
    places = [0] * len(response.token_ids) if response.allowed is None else response.allowed.places
    written, lines, thinking = b"", list[list[float]](), True
    answer: list[float] = []
    for token, logprob, place in zip(response.token_ids, response.logprobs, places, strict=True):
        if thinking and (not lines or written.endswith(b"\n")):
            lines.append([])
        if place != FORCED:
            (lines[-1] if thinking else answer).append(-logprob)
        written += text_of(token)
        thinking = THINKING_ENDS.strip().encode() not in written
    chosen = np.array([cost for line in lines for cost in line])
    last = next((line for line in reversed(lines) if len(line) > 1), lines[0])
    return {
        "z at the decision": response.help_log_odds,
        "mean -log p, first 16": float(chosen[:16].mean()),
        "mean -log p, thinking": float(chosen.mean()),
        "max -log p, thinking": float(chosen.max()),
        "sum -log p, thinking": float(chosen.sum()),
        "mean -log p, last line": float(np.mean(last)),
        "mean -log p, answer": float(np.mean(answer)),
        "sum -log p, answer": float(np.sum(answer)),
        "max -log p, answer": float(np.max(answer)),
        "mean -log p, all": float(np.mean([*chosen, *answer])),
        "length of the thinking": float(len(chosen)),
    }


async def reasoned_records(path: Path, items: Sequence[TaskItem], temperature: float, take: Callable[[Record], None]) -> None:
    """Answers in the reasoned form, in lots that are decoded together."""
    verifier, worker = build_verifier(AgentConfig()), EngineWorker()
    backend = LlamaCppBackend(path, worker, n_threads=1, n_ctx=_N_CTX, max_rows=_ROWS)
    prompt_form = backend.model.prompt_form
    settings = RolloutSettings(
        "signals", _SEED, 1, temperature, _MAX_TOKENS, prompt_form, "full", _MAX_TOKENS, guided=prompt_form == "full"
    )
    try:
        for start in range(0, len(items), _ROWS):
            lot = items[start : start + _ROWS]
            groups = await asyncio.gather(
                *(
                    backend.sample_group(
                        prompt_messages(item, prompt_form),
                        settings.sampling(item, suppress_help=True),
                        [derive_seed(_SEED, item.id)],
                    )
                    for item in lot
                )
            )
            for item, group in zip(lot, groups, strict=True):
                response = group.responses[0]
                right = await judge(verifier, item, response.text)
                signals = reasoned_signals(response, lambda token: backend.text_of([token]).encode())
                take(Record(item.id, right, response.text, signals, [-logprob for logprob in response.logprobs]))
    finally:
        await backend.aclose()
        worker.close()


class Records:
    """Files of records, one for each set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, name: str) -> list[Record]:
        """What is there of a set."""
        path = self._folder / f"{name}.jsonl"
        return [Record(**json.loads(line)) for line in path.read_text().splitlines()] if path.is_file() else []

    def add(self, name: str, record: Record) -> None:
        """Append one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def _sampled(source: TaskSource, count: int) -> list[TaskItem]:
    """Held-out questions: of a data set drawn from all, as files are often sorted."""
    items = source.test(count if source.name.startswith("practice:") else sys.maxsize)
    return list(items) if len(items) <= count else stream(_SEED, source.name.partition(":")[0]).sample(list(items), count)


def measure(name: str, data: Path, records: Records) -> None:
    """Answer what is not answered yet of a set."""
    done = {record.id for record in records.of(name)}
    if name in REASONED:
        model, source, count, temperature = REASONED[name]
        items = [item for item in _sampled(open_source(source.format(data=data)), count) if item.id not in done]
        asyncio.run(reasoned_records(find_model(model), items, temperature, partial(records.add, name)))
        return
    chat = Chat(find_model("smollm2"))
    done &= {record.id for record in records.of(f"{name}-noted")}
    if name == "mood":
        with (data / "mood" / "texts.csv").open(newline="") as file:
            texts = stream(_SEED, "mood").sample(list(csv.DictReader(file)), _TEXTS)
        pairs = mood_records(chat, [text for text in texts if text["id"] not in done])
    else:
        pairs = chat_records(chat, len(done))
    for bare, noted in pairs:
        records.add(name, bare)
        records.add(f"{name}-noted", noted)
    chat.close()


# What the tables say


def auc(signal_N: Doubles, wrong_N: NDArray[np.bool_]) -> float:
    """Probability that a wrong answer's signal is larger than a right one's, equal ones counted half; nan where all are alike."""
    _, inverse_N, counts = np.unique(signal_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[inverse_N]
    wrong = int(wrong_N.sum())
    if wrong in (0, len(wrong_N)):
        return math.nan
    return float((rank_N[wrong_N].sum() - wrong * (wrong + 1) / 2) / (wrong * (len(wrong_N) - wrong)))


def right_in_the_end(signal_N: Doubles, wrong_N: NDArray[np.bool_], rate: float) -> float:
    """Share that is right when a cloud that is always right gets the share `rate` with the largest signals; of equal ones any."""
    asked = round(rate * len(wrong_N))
    limit = np.sort(signal_N)[::-1][asked - 1]
    above_N, at_N = signal_N > limit, signal_N == limit
    mended = wrong_N[above_N].sum() + (asked - above_N.sum()) * wrong_N[at_N].mean()
    return float(1.0 - wrong_N.mean() + mended / len(wrong_N))


def standardised(values_N: Doubles) -> Doubles:
    """With mean 0 and standard deviation 1."""
    result: Doubles = (values_N - values_N.mean()) / (values_N.std() or 1.0)
    return result


def running(values_N: Doubles) -> Doubles:
    """Each value standardised by itself and those of the last questions before it."""
    return np.array([standardised(values_N[max(0, place - _KNOWN) : place + 1])[-1] for place in range(len(values_N))])


def fitted(
    x_NK: Doubles,
    wrong_N: NDArray[np.bool_],
    centre: Sequence[float] = (),
    strength: float = _RIDGE,
    start_K: Doubles | None = None,
) -> Doubles:
    """Weights [K] of a logistic regression for wrong, the last one that of a column of ones and nearly free; Newton's method.

    The ridge of this strength pulls the others towards `centre` (nothing: 0).
    """
    width = x_NK.shape[1]
    centre_K = np.array([*(centre or [0.0] * (width - 1)), 0.0])
    ridge_KK = np.diag([strength] * (width - 1) + [0.01])
    weights_K = centre_K.copy() if start_K is None else start_K
    for _ in range(25):
        chance_N = 1.0 / (1.0 + np.exp(-x_NK @ weights_K))
        gradient_K = x_NK.T @ (chance_N - wrong_N) + ridge_KK @ (weights_K - centre_K)
        step_K = np.linalg.solve((x_NK * (chance_N * (1.0 - chance_N))[:, None]).T @ x_NK + ridge_KK, gradient_K)
        weights_K = weights_K - step_K * min(1.0, 2.0 / float(np.abs(step_K).max()))
        if np.abs(step_K).max() < _SOLVED:
            break
    return weights_K


def learned_on_the_way(z_N: Doubles, u_N: Doubles, wrong_N: NDArray[np.bool_]) -> Doubles:
    """Scores of a regression on the last questions before each one, whose ridge pulls towards the weights `_PRIOR`."""
    weights_K, used_NK = np.array([*_PRIOR, 0.0]), []
    for place in range(len(wrong_N)):
        if place >= _LEAST:
            before = slice(max(0, place - _WINDOW), place)
            x_NK = np.column_stack([standardised(z_N[before]), standardised(u_N[before]), np.ones(len(wrong_N[before]))])
            weights_K = fitted(x_NK, wrong_N[before], _PRIOR, _PRIOR_STRENGTH, weights_K)
        used_NK.append(weights_K[:2])
    scores_N: Doubles = (np.array(used_NK) * np.column_stack([running(z_N), running(u_N)])).sum(axis=1)
    return scores_N


def left_out(x_NK: Doubles, wrong_N: NDArray[np.bool_]) -> tuple[Doubles, float]:
    """For each question the regression's score without its intercept, from all other questions, and the mean log loss in nats.

    The intercept is left out of the scores because it is lower whenever a wrong answer is left out, which alone orders them.
    """
    x_NK = np.column_stack([x_NK, np.ones(len(x_NK))])
    scores, losses = [], []
    for place in range(len(x_NK)):
        others = np.arange(len(x_NK)) != place
        weights_K = fitted(x_NK[others], wrong_N[others])
        scores.append(float(x_NK[place, :-1] @ weights_K[:-1]))
        log_odds_wrong = float(x_NK[place] @ weights_K)
        losses.append(float(np.logaddexp(0.0, -log_odds_wrong if wrong_N[place] else log_odds_wrong)))
    return np.array(scores), float(np.mean(losses))


PAIRS = {
    "mood": ("z phrase, bare prompt", "-log p best, among options"),
    "mood-noted": ("z phrase, with note", "-log p best, among options"),
    "chat": ("z phrase, bare prompt", "mean -log p, first 16"),
    "chat-noted": ("z phrase, with note", "mean -log p, first 16"),
    **dict.fromkeys(REASONED, ("z at the decision", "mean -log p, thinking")),
}
"""Log-odds of asking and certainty of each set, which are combined."""


def analysed(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """All figures of a set."""
    wrong_N = np.array([not record.right for record in records])
    signals = {key: np.array([record.signals[key] for record in records]) for key in records[0].signals}
    z_N, u_N = (signals[key] for key in PAIRS[name])
    for weight in _WEIGHTS:
        signals[f"z + {weight:g} u, raw"] = z_N + weight * u_N
    for weight in _WEIGHTS:
        signals[f"z + {weight:g} u, standardised"] = standardised(z_N) + weight * standardised(u_N)
    for weight in _WEIGHTS[-3:]:
        signals[f"z + {weight:g} u, running"] = running(z_N) + weight * running(u_N)
    signals["z and u, weights learned on the way"] = learned_on_the_way(z_N, u_N, wrong_N)
    sides = {"u": standardised(u_N)[:, None], "z and u": np.column_stack([standardised(z_N), standardised(u_N)])}
    regressions: dict[str, Any] = {}
    for key, x_NK in sides.items():
        scores_N, loss = left_out(x_NK, wrong_N)
        signals[f"regression of {key}, left out"] = scores_N
        weights_K = fitted(np.column_stack([x_NK, np.ones(len(x_NK))]), wrong_N)
        regressions[key] = {"log_loss": loss, "weights": weights_K[:-1].tolist()}
    rng = np.random.default_rng(_SEED)
    draws = [rng.integers(len(wrong_N), size=len(wrong_N)) for _ in range(_RESAMPLES)]
    drawn_u = np.array([auc(u_N[draw], wrong_N[draw]) for draw in draws])
    rows = {}
    for key, signal_N in signals.items():
        drawn = np.array([auc(signal_N[draw], wrong_N[draw]) for draw in draws])
        rows[key] = {
            "auc": auc(signal_N, wrong_N),
            "interval": np.nanquantile(drawn, [0.025, 0.975]).tolist(),
            "above_u": auc(signal_N, wrong_N) - auc(u_N, wrong_N),
            "above_u_interval": np.nanquantile(drawn - drawn_u, [0.025, 0.975]).tolist(),
            "end": [right_in_the_end(signal_N, wrong_N, rate) for rate in _RATES],
            "spread": float(signal_N.std()),
        }
    right = 1.0 - float(wrong_N.mean())
    return {
        "questions": len(records),
        "right": right,
        "pair": PAIRS[name],
        "correlation": float(np.corrcoef(z_N, u_N)[0, 1]),
        "random": [right + rate * (1.0 - right) for rate in _RATES],
        "oracle": [min(1.0, right + rate) for rate in _RATES],
        "signals": rows,
        "regressions": regressions,
    }


def table(name: str, found: Mapping[str, Any]) -> str:
    """A set's figures as a table of Markdown."""
    z, u = found["pair"]
    lines = [
        f"## {name}: {found['questions']} questions, {found['right']:.1%} right alone",
        f"z: {z}; u: {u}; their correlation {found['correlation']:.2f}\n",
        "| signal | AUC | 95 % | minus that of u | spread | right in the end at 10, 30, 50 % |",
        "|---|---|---|---|---|---|",
    ]
    for key, row in found["signals"].items():
        (low, high), (below, above) = row["interval"], row["above_u_interval"]
        lines.append(
            f"| {key} | {row['auc']:.3f} | {low:.2f} to {high:.2f} | {row['above_u']:+.3f} ({below:+.3f} to {above:+.3f})"
            f" | {row['spread']:.2f} | {_percents(row['end'])} |"
        )
    lines += [f"| {key} | | | | | {_percents(found[key])} |" for key in ("random", "oracle")]
    lines.append("")
    for key, one in found["regressions"].items():
        weights = ", ".join(f"{weight:+.2f}" for weight in one["weights"])
        lines.append(f"Regression of {key}: weights {weights} for standardised values; log loss left out {one['log_loss']:.4f}.")
    return "\n".join(lines)


def _percents(shares: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.1f}" for share in shares)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.experiments.decision_signals", description=__doc__)
    sets = ("mood", "chat", *REASONED)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"which questions, of {', '.join(sets)} (none: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs") / "decision-signals", help="folder of records and tables")
    parser.add_argument("--tables", action="store_true", help="answer nothing more")
    chosen = parser.parse_args(arguments)
    return ending(lambda: _play(chosen.sets or sets, sets, chosen.data, chosen.out, tables_only=chosen.tables))


def _play(wanted: Sequence[str], sets: Sequence[str], data: Path, out: Path, *, tables_only: bool) -> int:
    if unknown := sorted(set(wanted) - set(sets)):
        raise UsageError(f"no set {unknown[0]!r}", hint=f"known: {', '.join(sets)}")
    check_folder(out, "--out")
    records = Records(out)
    for name in () if tables_only else wanted:
        measure(name, data, records)
    found = {name: analysed(name, there) for name in PAIRS if (there := records.of(name))}
    put_json({"format": 1, "sets": found}, out / "results.json")
    text = "\n\n".join(table(name, one) for name, one in found.items())
    put(text + "\n", out / "summary.md")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
