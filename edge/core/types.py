"""The values that cross module boundaries.

Every value is frozen. Names follow docs/glossary.md: a *task* is a label (`math`, `code`, `qa`), an *item* is one question of a
task, a *prompt* is what the model reads, a *local_response* is what it samples (y^θ), a *cloud_completion* is what the cloud
LLM returns (y^c).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal, Self

from edge.core.forms import ResponseForm
from edge.core.tool_calls import HERMES, CallFormat

Role = Literal["system", "user", "assistant"]
Split = Literal["train", "test"]
FormName = Literal["reasoned", "plain"]
"""The forms of responses (edge.core.forms)."""
Mode = Literal["auto", "prefer-local", "local-only", "cloud-only"]
"""Who may answer. `prefer-local` asks the cloud only where the local answer is unusable."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


def joined_parts(texts: Iterable[str]) -> str:
    """The text of a message that came in parts, in learning and in serving.

    They are joined without a separator, as in chat templates that read parts; who wants a line end writes it.
    """
    return "".join(texts)


class AnswerKind(StrEnum):
    """How an answer is judged: its name in files, what a prompt asks for, and the verifier's class ("module:class").

    Without an `instruction` a question is asked as it is. Without a `verifier` one must be given (edge.verifiers.by_kind).
    """

    instruction: str
    verifier: str

    def __new__(cls, name: str, instruction: str = "", verifier: str = "") -> Self:
        """A member from its row."""
        kind = str.__new__(cls, name)
        kind._value_, kind.instruction, kind.verifier = name, instruction, verifier
        return kind

    @property
    def form(self) -> FormName:
        """The form of guided responses to such questions: reasoned where working an answer out pays."""
        return "plain" if self in (AnswerKind.TEXT, AnswerKind.FEEDBACK) else "reasoned"

    MATH = "math", "Think step by step, then box the final result.", "edge.verifiers.math_answer:MathAnswer"
    CHOICE = "choice", "Think step by step, then box the letter of the right option.", "edge.verifiers.choice_answer:ChoiceAnswer"
    TEXT = "text", "Think step by step, then box the answer in a few words.", "edge.verifiers.text_answer:TextAnswer"
    PROGRAM = "program", "Think step by step, then give the whole program in one ```python code block."
    FEEDBACK = "feedback"


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One question with its reference answer."""

    id: str
    task: str
    """The label whose dual λ and target rate τ apply."""
    family: str
    """The generator or data set."""
    level: int
    """Difficulty from 1; 0 where unknown."""
    split: Split
    question: str
    answer: str
    """For a program, the tests that judge it (see edge.verifiers.program)."""
    kind: AnswerKind
    max_steps: int
    """The limit of reasoning steps."""
    options: tuple[str, ...] = ()
    solution: str = ""
    """A worked solution in the response format, or ""."""
    preamble: str = ""
    """For a program, code that is put before what the model writes: imports and functions that the question gives."""
    context: tuple[Message, ...] = ()
    """What a conversation holds before the question: system messages and earlier turns."""
    form: FormName | None = None
    """The form of its guided responses; None: that of its kind."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """From what `dataclasses.asdict` made, also after it was JSON; also of a version without the later fields."""
        context = tuple(Message(**message) for message in fields.get("context", ()))
        return cls(**{**fields, "kind": AnswerKind(fields["kind"]), "options": tuple(fields["options"]), "context": context})


class FinishReason(StrEnum):
    """Why generation of one response ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    STEP_LIMIT = "step_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one response is sampled."""

    temperature: float = 1.0
    """1, without truncation, for rollouts; 0 is greedy."""
    max_tokens: int = 288
    max_steps: int | None = None
    """A response stops as soon as it opens step max_steps + 1; None: no limit."""
    help_bias: float = 0.0
    """Added to the logit of the help phrase's first token where that phrase would be a request."""
    certainty: float = 0.0
    """a: the log-odds of asking are z + a·u + help_bias, u how unsure the model is of its answer. Of plain responses."""
    suppress_help: bool = False
    """Makes that token impossible there, and wherever else the phrase would look like a request."""
    exact: bool = False
    """Nothing but the bias changes what is drawn, so that log-probabilities are those of one policy, which can be learned from."""
    top_p: float = 1.0
    """Only the likeliest tokens that together reach this share are drawn from."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that the response already has."""
    frequency_penalty: float = 0.0
    """Likewise, once for each time the token occurred."""
    stops: tuple[str, ...] = ()
    """Generation, and the text, end where one of these begins."""
    stops_in_answer: bool = False
    """Stop strings count only in the answer after the reasoning, and never in a request for help."""
    ignore_eos: bool = False
    """Go on after the token that ends a text."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens are reported with each token (`LocalResponse.tokens`); None reports and costs nothing."""
    form: ResponseForm | None = None
    """The form that the response is held to; None: free. Of a guided response only tokens that the form allows are drawn, and its
    log-probabilities are those of the policy over allowed tokens."""
    grammar: str = ""
    """Grammar that a streamed response must follow, in llguidance's dialect of Lark; "": none. No decision to ask is taken in it then, and
    log-probabilities are those of the model itself, without the grammar."""


@dataclass(frozen=True, slots=True)
class SamplingWishes:
    """What a client may ask of the sampling of its local text, in addition to temperature, length and seed; see `Sampling`."""

    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None

    def granted(self, sampling: Sampling) -> Sampling:
        """The sampling with the wishes in it; the stop strings end the answer, not the reasoning before it."""
        return replace(sampling, stops_in_answer=True, **asdict(self))


NO_WISHES = SamplingWishes()


@dataclass(frozen=True, slots=True)
class TokenChance:
    """A token that was possible at one place: its bytes, control tokens written out, and its log-probability (nats, temperature 1)."""

    token_id: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a text with its log-probability."""

    token_id: int
    piece: bytes
    logprob: float | None
    """Nats, temperature 1, penalties and biases included; None for the first token of a text, which nothing predicts."""
    greedy: bool = False
    """No token was likelier."""
    top: tuple[TokenChance, ...] = ()
    """The likeliest tokens in its place, the likeliest first."""
    start: int = 0
    """Offset in characters in the text."""
    end: int = 0
    """Equal to `start` for a token that adds no character, such as the end of the text or the first byte of a longer character."""


DialOverride = Literal["", "to ask", "not to ask"]


@dataclass(frozen=True, slots=True)
class BiasedDecision:
    """A token of a response that was drawn with `bias` (nats) on the logits of `help_ids`; `place` counts from the first token."""

    place: int
    bias: float
    help_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TurnStart:
    """The decision at the start of a plain response (edge/dagrpo/turn_start.py)."""

    phrase_ids: tuple[int, ...]
    """The help phrase, without its full stop: a turn that begins with it is a request."""
    phrase_logprobs: tuple[float, ...]
    """Of each of these tokens after the prompt and those before it, without the bias (nats)."""
    bias: float
    """Added to z (nats), a·u included; -inf where asking was impossible."""
    asked: bool
    among_few: bool = False
    """An answer is one of few, whatever the model would have said; else it is drawn from what is left of the model's distribution."""


FORCED = -1


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """What a response form left of the vocabulary at each token of a response."""

    places: tuple[int, ...]
    """For each token the set it was drawn from, an index into `sets`; FORCED where it was the only one: its probability is 1."""
    sets: tuple[bytes, ...]
    """Bits of the vocabulary, the first token's the lowest of the first byte."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A text as a whole turn of the model that somebody else wrote."""

    token_ids: tuple[int, ...]
    """The token that ends the turn included."""
    allowed: AllowedTokens | None = None
    """What the form allows, of a text in a form. Whether to ask counts as forced: an author who never asks shows nothing about it."""


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """One sampled response y^θ."""

    text: str
    token_ids: tuple[int, ...]
    """The sampled ids, EOS included, never re-tokenised."""
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities (nats, temperature 1), one per id, of the row that the token was sampled from."""
    finish: FinishReason
    adapter_version: int = 0
    help_log_odds: float | None = None
    """log p/(1-p) of asking where that was decided, without the help bias; None: no decision was reached. Of a free response that of the
    help phrase's first token at the first decision point."""
    tokens: tuple[ScoredToken, ...] = ()
    """The tokens of the text, where `Sampling.top_logprobs` asked for them; without those that a stop string cut off."""
    overridden: DialOverride = ""
    """The decision that the budget dial's `help_bias` forced; "" where it would have been the same without. Where it made the response
    ask, the text ends there, with the help phrase in place of the last token: what a model writes after a beginning that it would not
    have chosen is no request."""
    biased: tuple[BiasedDecision, ...] = ()
    """The tokens that were drawn with a help bias, whose log-probabilities contain it."""
    allowed: AllowedTokens | None = None
    """What a form allowed; None: any token."""
    form: ResponseForm | None = None
    """The form that it was held to; None: it was free."""
    start: TurnStart | None = None
    """The decision before its first token, of a plain response. One that asks has the help phrase as its text, and its tokens; another
    has the log-probabilities that its tokens have whatever was decided."""
    doubt: float | None = None
    """a·u: what of `help_log_odds` is how unsure the model is of its answer (nats); None: that had no part in the decision."""
    stop: str = ""
    """The stop string that ended the text, "" where none did."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """The G responses sampled for one prompt, with the prompt's token ids as the engine saw them."""

    prompt_ids: tuple[int, ...]
    responses: tuple[LocalResponse, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of streamed text; the last one of a stream carries the finished response and the length of its prompt in tokens, of which
    `cached_tokens` had been read for an earlier conversation.

    `tokens` are those that end in this piece, where `Sampling.top_logprobs` asked for them.
    """

    text: str
    response: LocalResponse | None = None
    prompt_tokens: int = 0
    tokens: tuple[ScoredToken, ...] = ()
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One response as the learner sees it."""

    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    """Nats."""
    advantage: float
    """Â."""
    off_policy: bool = False
    """Another author wrote it, with unknown probabilities; `behaviour_logprobs` are zeros then."""
    imitated: bool = False
    """A given answer, learned by its likelihood; `behaviour_logprobs` are zeros."""
    biased: tuple[BiasedDecision, ...] = ()
    """Tokens that the policy drew with a help bias; it is part of the policy that learns, too."""
    allowed: AllowedTokens | None = None
    """What a form allowed: log-probabilities are over allowed tokens, and forced ones have no gradient; None: the response was free."""


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """Responses of one prompt with their advantages; masked responses (cloud failures) are already left out.

    `group_weight` multiplies Σ_i Â_i ∇ log π(y_i); the default estimator uses 1/(G-1).
    """

    prompt_ids: tuple[int, ...]
    samples: tuple[TrainingSample, ...]
    group_weight: float


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A right response that the model did not sample, as the learner sees it: to be imitated where it is not likely yet.

    `variants`: prompts that mean the same, which it answers, too; each update takes the prompt and the next of them.
    """

    prompt_ids: tuple[int, ...]
    turn: Turn
    variants: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A response to another question: while the model learns from demonstrations, it is held to the probabilities that it had at each of
    these tokens before."""

    prompt_ids: tuple[int, ...]
    turn: Turn


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
    """What of a request plain messages cannot hold, as it goes to the cloud LLM.

    `openai_json`: as CloudCall carries it ("": nothing). `wants`: the parameters whose effect must be in the answer, as the client calls
    them; an answer without it is none.
    """

    openai_json: str = ""
    wants: tuple[str, ...] = ()


ONLY_TEXT = BeyondText()
"""A request of plain messages alone."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer's content: JSON that fits `schema` (its text; "" is any object).

    `grammar` (llguidance's) holds a local model to it. It is "" where none can, for the reason `unheld` at the place `parameter`, as the
    client calls it.
    """

    parameter: str
    schema: str = ""
    grammar: str = ""
    unheld: str = ""


@dataclass(frozen=True, slots=True)
class ToolConversation:
    """A conversation with tools as a chat template reads it; `messages` has it in words."""

    messages: tuple[Message, ...]
    turns: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that a local model calls, where its chat template writes calls in the form `written`.

    `calls` (a grammar) is what follows the form's mark; `required`: the answer must be calls. With `calls_or_form` an answer without calls
    has a form too; it begins with the mark where there are calls and the mark is text.
    """

    conversation: ToolConversation
    calls: str
    required: bool = False
    calls_or_form: str = ""
    written: CallFormat = HERMES
