"""Plain completions and the tokenizer on the wire. The tokenizer's routes have the form that vLLM gave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator, model_validator

from edge.core.types import FinishReason, Sampling, ScoredToken, TokenChance
from edge.inference.backend import RawPrompt, TokenizerInfo
from edge.serve.chat_schemas import known_model
from edge.serve.errors import invalid_value
from edge.serve.schemas import (
    MAX_TOKENS,
    Count,
    RequestBody,
    ResponseBody,
    SamplingFields,
    Text,
    TokenId,
    Unsupported,
    Usage,
    explain,
    field_error,
)

_MAX_PROMPTS, _DEFAULT_TOKENS = 128, 16
_LOCAL = ("edge", "edge-local")
_SomeText = Annotated[Text, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_ONE_PROMPT: TypeAdapter[Any] = TypeAdapter(_SomeText | _Ids, config=ConfigDict(strict=True))


def _check_prompt(value: Any, inner: Callable[[Any], Any]) -> Any:
    try:
        return inner(value)
    except ValidationError as error:
        wrong = ""
        if isinstance(value, list) and value and not isinstance(value[0], int):
            wrong = next((f"[{index}]" for index, one in enumerate(value) if not _is_prompt(one)), "")
        message = f"must be a text, a list of token ids, or a list of at most {_MAX_PROMPTS} of these; none may be empty"
        raise field_error(wrong, message) from error


def _is_prompt(value: Any) -> bool:
    try:
        _ONE_PROMPT.validate_python(value)
    except ValidationError:
        return False
    return True


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        _SomeText | _Ids | Annotated[list[_SomeText | _Ids], Field(min_length=1, max_length=_MAX_PROMPTS)],
        WrapValidator(_check_prompt),
    ]
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    echo: bool | None = None
    logprobs: Annotated[
        bool | Annotated[int, Field(ge=0, le=5)] | None, explain("must be a whole number from 0 to 5, or true or false")
    ] = None
    ignore_eos: bool | None = None
    best_of: Any = Field(None, description="Only the value of n.")
    suffix: Unsupported = None
    prompt_embeds: Unsupported = None

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionRequest:
        if self.best_of not in (None, self.choices):
            raise field_error("best_of", "only the value of n is supported", "unsupported_value")
        if len(self.prompts) * self.choices > _MAX_PROMPTS:
            raise field_error("n", f"prompts times n may be {_MAX_PROMPTS} at most")
        if self.max_tokens == 0 and not self.echo:
            raise field_error("max_tokens", "0 needs echo: there would be nothing to answer")
        self.check_stream_options()
        return self

    @property
    def prompts(self) -> tuple[RawPrompt, ...]:
        """Each a text or ids."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (tuple(one for one in self.prompt if isinstance(one, int)),)
        return tuple(one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int))

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to each token are reported, None for no log-probabilities at all."""
        if isinstance(self.logprobs, bool):
            return 1 if self.logprobs else None
        return self.logprobs

    @property
    def ignored(self) -> tuple[str, ...]:
        """The parameters that were given and have no effect here."""
        return ("logit_bias",) if self.logit_bias else ()

    def check_model(self, loaded_model: str) -> None:
        """Raises RequestProblem where the name is not one of this machine's."""
        if self.model in ("edge-cloud", "edge-auto", "edge-prefer-local"):
            message = f"{self.model} answers conversations; plain completions are local, with the model edge"
            raise invalid_value("model", message, "unsupported_value")
        known_model(self.model, {known: None for known in (*_LOCAL, loaded_model) if known})

    def sampling(self) -> Sampling:
        """How the text is continued; max_tokens 0 leaves it as it is."""
        wishes = self.sampling_wishes()
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            max_tokens=_DEFAULT_TOKENS if self.max_tokens is None else min(self.max_tokens, MAX_TOKENS),
            top_p=wishes.top_p,
            presence_penalty=wishes.presence_penalty,
            frequency_penalty=wishes.frequency_penalty,
            stops=wishes.stops,
            ignore_eos=bool(self.ignore_eos),
            top_logprobs=self.alternatives,
        )


class TextChoice(ResponseBody):
    """One continued text."""

    index: Count
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class Completion(ResponseBody):
    """All of them."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: Annotated[list[TextChoice], Field(min_length=1)]
    usage: Usage


class TokenizeRequest(RequestBody):
    """A text whose ids are wanted, as a prompt of this model begins or without its first token."""

    prompt: Text
    add_special_tokens: Any = True


class Tokens(ResponseBody):
    """The ids of a text."""

    tokens: list[Count]
    count: Count
    max_model_len: Count


class DetokenizeRequest(RequestBody):
    """Ids whose text is wanted."""

    tokens: _Ids


class Detokenized(ResponseBody):
    """The text of ids."""

    prompt: str


class Tokenizer(ResponseBody):
    """The special tokens and the chat template."""

    vocab_size: Count
    chat_template: str | None


def completion_body(
    request: CompletionRequest, answer_id: str, created: int, choices: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """A `text_completion` object: the whole of it, or one piece of a stream."""
    head = {"id": f"cmpl-{answer_id}", "object": "text_completion", "created": created, "model": request.model}
    return {**head, "choices": list(choices), **more}


def choice_body(
    index: int, text: str, logprobs: Mapping[str, Any] | None, finish: FinishReason | None, *, over: bool = True
) -> dict[str, Any]:
    """One choice, whole or a piece; `over` without a finish: nothing was generated."""
    reason = None if not over else "stop" if finish in (FinishReason.EOS, FinishReason.STOP) else "length"
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def logprobs_body(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Tokens in the form of the completions API.

    The token itself is always among its alternatives. Of two alternatives that are written alike the likelier one is reported.
    """
    return {
        "tokens": [_written(token.piece) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [None if token.logprob is None else _alternatives(token, token.logprob) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _alternatives(token: ScoredToken, logprob: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for chance in (*token.top, TokenChance(token.token_id, token.piece, logprob)):
        found.setdefault(_written(chance.piece), chance.logprob)
    return found


def _written(piece: bytes) -> str:
    """A token's text; the bytes of one that is no whole text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def tokenizer_body(info: TokenizerInfo) -> dict[str, Any]:
    """The answer of GET /tokenizer_info."""
    return {
        "tokenizer_class": "edge",
        "bos_token": info.bos or None,
        "eos_token": info.eos or None,
        "pad_token": None,
        "add_bos_token": info.adds_bos,
        "vocab_size": info.vocab_size,
        "chat_template": info.chat_template or None,
    }
