"""The values that cross module boundaries. Knows shapes and units; knows nothing of files, engines or networks.

Every value is frozen. Names follow the glossary: a *task* is a label (`math`, `code`, `qa`), an *item* is one question of a
task, a *prompt* is what the model reads, a *local_response* is what it samples (y^θ), a *cloud_completion* is what the cloud
LLM returns (y^c).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Role = Literal["system", "user", "assistant"]
Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


class AnswerKind(StrEnum):
    """How an answer is judged."""

    MATH = "math"
    CHOICE = "choice"
    PROGRAM = "program"
    FEEDBACK = "feedback"


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One question with its reference answer.

    `task` is the label whose dual λ and target rate τ apply; `family` the generator or data set; `level` the difficulty from 1
    (0 where unknown); `max_steps` the limit of reasoning steps; `solution` a worked solution in the response format, or "".
    For a program, `answer` holds the tests that judge it (see edge.verifiers.program) and `preamble` the code that is put before
    what the model writes: imports and functions that the question gives.
    """

    id: str
    task: str
    family: str
    level: int
    split: Split
    question: str
    answer: str
    kind: AnswerKind
    max_steps: int
    options: tuple[str, ...] = ()
    solution: str = ""
    preamble: str = ""


class FinishReason(StrEnum):
    """Why generation of one response ended."""

    EOS = "eos"
    LENGTH = "length"
    STEP_LIMIT = "step_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one response is sampled. Temperature 1 and no truncation for rollouts; temperature 0 is greedy.

    `max_steps` stops a response as soon as it opens step max_steps + 1 (None: no limit). `help_bias` is added to the logit of the
    help phrase's first token wherever a decision to ask can be taken; `suppress_help` makes that token impossible there.
    """

    temperature: float = 1.0
    max_tokens: int = 288
    max_steps: int | None = None
    help_bias: float = 0.0
    suppress_help: bool = False


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """One sampled response y^θ.

    `token_ids` are the sampled ids, EOS included, never re-tokenised. `logprobs` (nats, same length) are the behaviour
    log-probabilities at temperature 1 of the row each token was sampled from. `help_log_odds` is log p/(1-p) of the help
    phrase's first token at the first decision point reached, or None when none was reached.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    adapter_version: int = 0
    help_log_odds: float | None = None


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """The G responses sampled for one prompt, with the prompt's token ids as the engine saw them."""

    prompt_ids: tuple[int, ...]
    responses: tuple[LocalResponse, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of streamed text; the last one of a stream carries the finished response and the length of its prompt in tokens."""

    text: str
    response: LocalResponse | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One response as the learner sees it: ids, behaviour log-probabilities (nats) and its advantage Â."""

    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    advantage: float


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """Responses of one prompt with their advantages; masked responses (cloud failures) are already left out.

    `group_weight` multiplies Σ_i Â_i ∇ log π(y_i); the default estimator uses 1/(G-1).
    """

    prompt_ids: tuple[int, ...]
    samples: tuple[TrainingSample, ...]
    group_weight: float


GGUF_ADAPTER = "adapter.gguf"
"""The file in an adapter's folder that llama.cpp reads."""


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """A LoRA adapter on disk: `folder` holds peft safetensors and `adapter.gguf`; version 0 means the bare base model."""

    version: int
    folder: str


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens billed by a cloud LLM for one completion."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class BeyondText:
    """What of a request plain messages cannot say, for the cloud LLM alone.

    `openai_json`: as CloudCall carries it ("": nothing). `wants`: the parameters that the SLM cannot follow, such as tools; where there are
    any, the cloud is asked at once. `required`: the one of them that must be followed, so that no local answer will do ("": none must).
    """

    openai_json: str = ""
    wants: tuple[str, ...] = ()
    required: str = ""


ONLY_TEXT = BeyondText()
"""A request that messages say whole."""
