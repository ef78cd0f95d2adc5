"""The wire shapes of plain completions and of the tokenizer. Knows fields and limits; knows nothing of sockets or engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.types import FinishReason, Sampling, ScoredToken, TokenChance
from edge.inference.raw_text import RawPrompt, TokenizerInfo
from edge.serve import fields
from edge.serve import openai_wire as wire
from edge.serve.failures import RequestProblem

MOST_CHOICES = 8
_MOST_PROMPTS, _MOST_LOGPROBS, _DEFAULT_TOKENS = 128, 5, 16
_LOCAL = ("edge", "edge-local")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked body of POST /v1/completions. `logprobs`: how many alternatives are told, None for no log-probabilities at all."""

    model: str
    prompts: tuple[RawPrompt, ...]
    sampling: Sampling
    choices: int
    seed: int | None
    echo: bool
    logprobs: int | None
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]


def parse_completion_request(body: bytes, loaded_model: str = "") -> CompletionRequest:
    """The checked request. Raises RequestProblem naming the field at fault."""
    value = fields.parse_json(body)
    choices = fields.integer(value, "n", 1, MOST_CHOICES) or 1
    _refuse_unsupported(value, choices)
    prompts = _prompts(value.get("prompt"))
    if len(prompts) * choices > _MOST_PROMPTS:
        raise fields.bad("n", f"prompts times n may be {_MOST_PROMPTS} at most")
    echo, stream = fields.boolean(value, "echo"), fields.boolean(value, "stream")
    logprobs = _logprobs(value)
    return CompletionRequest(
        model=_model(value.get("model", "edge"), loaded_model),
        prompts=prompts,
        sampling=_sampling(value, echo, logprobs),
        choices=choices,
        seed=fields.integer(value, "seed", -(2**63), 2**63 - 1),
        echo=echo,
        logprobs=logprobs,
        stream=stream,
        include_usage=fields.include_usage(value, stream),
        ignored=("logit_bias",) if value.get("logit_bias") else (),
    )


def completion_body(
    request: CompletionRequest, answer_id: str, created: int, choices: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """A `text_completion` object: the whole of it, or one piece of a stream."""
    head = {"id": f"cmpl-{answer_id}", "object": "text_completion", "created": created, "model": request.model}
    return {**head, "choices": list(choices), **more}


def usage_body(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def choice_body(
    index: int, text: str, logprobs: Mapping[str, Any] | None, finish: FinishReason | None, *, over: bool = True
) -> dict[str, Any]:
    """One choice, whole or a piece; `over` without a finish: nothing was generated."""
    reason = None if not over else "stop" if finish in (FinishReason.EOS, FinishReason.STOP) else "length"
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def logprobs_body(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Tokens in the form of the completions API.

    The token itself is always among its alternatives. Of two alternatives that are written alike the likelier one is told.
    """
    return {
        "tokens": [written(token.piece) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [None if token.logprob is None else _alternatives(token, token.logprob) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def written(piece: bytes) -> str:
    """A token's text; the bytes of one that is no whole text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def tokens_body(ids: Sequence[int], context_tokens: int) -> dict[str, Any]:
    """The answer of POST /tokenize."""
    return {"tokens": list(ids), "count": len(ids), "max_model_len": context_tokens}


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


def parse_tokenize_request(body: bytes) -> tuple[str, bool]:
    """The text of POST /tokenize, and whether it is to begin like a prompt of this model."""
    value = fields.parse_json(body)
    prompt = value.get("prompt")
    if not isinstance(prompt, str):
        raise fields.bad("prompt", "must be a string")
    return fields.encodable("prompt", prompt), value.get("add_special_tokens") is not False


def parse_detokenize_request(body: bytes) -> tuple[int, ...]:
    """The ids of POST /detokenize."""
    return _ids("tokens", fields.parse_json(body).get("tokens"))


def _alternatives(token: ScoredToken, logprob: float) -> dict[str, float]:
    told: dict[str, float] = {}
    for chance in (*token.top, TokenChance(token.token_id, token.piece, logprob)):
        told.setdefault(written(chance.piece), chance.logprob)
    return told


def _model(name: Any, loaded_model: str) -> str:
    if name in ("edge-cloud", "edge-auto", "edge-prefer-local"):
        raise fields.bad(
            "model", f"{name} answers conversations; plain completions are local, with the model edge", "unsupported_value"
        )
    return wire.named_model(name, {known: None for known in (*_LOCAL, loaded_model) if known})


def _refuse_unsupported(value: Mapping[str, Any], choices: int) -> None:
    for name in ("suffix", "prompt_embeds"):
        if value.get(name) not in (None, ""):
            raise RequestProblem(400, f"{name}: not supported by this endpoint", code="unsupported_parameter", param=name)
    if value.get("best_of") not in (None, choices):
        raise fields.bad("best_of", "only the value of n is supported", "unsupported_value")


def _prompts(value: Any) -> tuple[RawPrompt, ...]:
    """A string, ids, or a list of either."""
    if isinstance(value, str):
        return (_text("prompt", value),)
    if not isinstance(value, list) or not value:
        raise fields.bad("prompt", "must be a string, a list of token ids, or a list of these that is not empty")
    if isinstance(value[0], int):
        return (_ids("prompt", value),)
    if len(value) > _MOST_PROMPTS:
        raise fields.bad("prompt", f"at most {_MOST_PROMPTS} prompts")
    return tuple(
        _text(f"prompt[{at}]", one) if isinstance(one, str) else _ids(f"prompt[{at}]", one) for at, one in enumerate(value)
    )


def _text(param: str, text: str) -> str:
    if not text:
        raise fields.bad(param, "must not be empty")
    return fields.encodable(param, text)


def _ids(param: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise fields.bad(param, "must be a list of token ids that is not empty")
    if any(isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 2**31 for one in value):
        raise fields.bad(param, "token ids are whole numbers of at least 0")
    return tuple(value)


def _logprobs(value: Mapping[str, Any]) -> int | None:
    asked = value.get("logprobs")
    if isinstance(asked, bool):
        return 1 if asked else None
    return fields.integer(value, "logprobs", 0, _MOST_LOGPROBS)


def _sampling(value: Mapping[str, Any], echo: bool, logprobs: int | None) -> Sampling:
    """How the text is continued; max_tokens 0 leaves it as it is."""
    wanted = fields.integer(value, "max_tokens", 0, 2**31 - 1)
    if wanted == 0 and not echo:
        raise fields.bad("max_tokens", "0 needs echo: there would be nothing to answer")
    temperature = fields.number(value, "temperature", 0.0, 2.0)
    wishes = fields.sampling_wishes(value)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        max_tokens=_DEFAULT_TOKENS if wanted is None else min(wanted, fields.MAX_TOKENS),
        top_p=wishes.top_p,
        presence_penalty=wishes.presence_penalty,
        frequency_penalty=wishes.frequency_penalty,
        stops=wishes.stops,
        ignore_eos=fields.boolean(value, "ignore_eos"),
        top_logprobs=logprobs,
    )
