"""Two ways to the same hidden states on MLX: whole rows, or every prompt of a micro-batch computed once and shared by its responses.

Gradients flow through both passes. A micro-batch holds responses to few prompts, so that a prompt is computed about once a step (torch's
way, once in any case, would keep the graphs of all prompts of a bundle alive over many micro-batches).

Axes: R rows (responses), Q prompts, T tokens, N response tokens of all rows in a flat list, D model width, K key/value heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from edge.training.batching import Row


class HiddenStates(Protocol):
    """What a pass needs of a decoder."""

    def hidden_states(self, ids_BT: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        """Hidden states [B, T, D] with plain causal attention; `cache` gives each layer its offset, its mask and its keys and values."""
        ...

    @property
    def shape(self) -> Any:
        """Its shape, with `layers`."""
        ...


def chunks_by_prompt(rows: Iterable[Row], tokens: int) -> Iterator[tuple[Row, ...]]:
    """Micro-batches of responses, those to one prompt together, within a budget of padded tokens of distinct prompts and responses.

    The longest prompts come first, and of a prompt the longest responses. A single row may exceed the budget.
    """
    ordered = sorted(rows, key=lambda row: (len(row.prompt_ids), row.prompt_ids, len(row.token_ids)), reverse=True)
    chunk: list[Row] = []
    for row in ordered:
        if chunk and _padded_tokens([*chunk, row]) > tokens:
            yield tuple(chunk)
            chunk = []
        chunk.append(row)
    if chunk:
        yield tuple(chunk)


def plain_hidden(decoder: HiddenStates, rows: Sequence[Row]) -> mx.array:
    """Hidden states [N, D] that predict the response tokens, computed over whole rows."""
    states_RTD = decoder.hidden_states(_pad([(*row.prompt_ids, *row.token_ids[:-1]) for row in rows]))
    return _picked(states_RTD, [(len(row.prompt_ids) - 1, len(row.token_ids)) for row in rows])


def shared_hidden(decoder: HiddenStates, rows: Sequence[Row]) -> mx.array:
    """Hidden states [N, D] that predict the response tokens, each distinct prompt computed once."""
    prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
    recorded = [_Recorder() for _ in range(decoder.shape.layers)]
    states_QTD = decoder.hidden_states(_pad(prompts), recorded)
    number = {prompt: index for index, prompt in enumerate(prompts)}
    which_R = mx.array([number[row.prompt_ids] for row in rows])
    lengths_R = mx.array([len(row.prompt_ids) for row in rows])
    first_RD = states_QTD[which_R, lengths_R - 1]
    if max(len(row.token_ids) for row in rows) == 1:
        return first_RD
    continued = [_Continued(layer.keys[which_R], layer.values[which_R], lengths_R) for layer in recorded]
    states_RTD = decoder.hidden_states(_pad([row.token_ids[:-1] for row in rows]), continued)
    return _picked(mx.concatenate([first_RD[:, None], states_RTD], axis=1), [(0, len(row.token_ids)) for row in rows])


class _Recorder:
    """The cache role of mlx_lm's layers for prompts from position 0 on; keeps what later tokens look at."""

    offset = 0
    keys: Any = None
    values: Any = None

    def make_mask(self, length: int, **_: Any) -> str | None:
        """Plain causal: rows are padded on the right, so no real token can look at padding."""
        return "causal" if length > 1 else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keep [Q, K, T, d]."""
        self.keys, self.values = keys, values
        return keys, values


class _Continued:
    """The cache role of mlx_lm's layers for responses behind right-padded prompts of several lengths."""

    def __init__(self, keys: mx.array, values: mx.array, lengths_R: mx.array) -> None:
        self._keys, self._values, self.offset = keys, values, lengths_R

    def make_mask(self, length: int, **_: Any) -> mx.array:
        """True for the real tokens of a row's prompt and the response up to here, [R, 1, T, prompt + T]."""
        rows, places = self._keys.shape[0], self._keys.shape[2]
        prompt = mx.arange(places) < self.offset[:, None]
        causal = mx.arange(length)[:, None] >= mx.arange(length)
        parts = (
            mx.broadcast_to(prompt[:, None, None], (rows, 1, length, places)),
            mx.broadcast_to(causal[None, None], (rows, 1, length, length)),
        )
        return mx.concatenate(list(parts), axis=-1)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The prompt's keys and values with [R, K, T, d] behind them."""
        return mx.concatenate([self._keys, keys], axis=2), mx.concatenate([self._values, values], axis=2)


def _padded_tokens(rows: Sequence[Row]) -> int:
    prompts = {row.prompt_ids for row in rows}
    return len(prompts) * max(map(len, prompts)) + len(rows) * max(len(row.token_ids) for row in rows)


def _pad(sequences: Sequence[Sequence[int]]) -> mx.array:
    """Right-padded with id 0 to the longest, [rows, T]."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int32)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
    return mx.array(ids)


def _picked(states_RTD: mx.array, spans: Sequence[tuple[int, int]]) -> mx.array:
    """The states of each row's span (start, count), laid end to end."""
    longest = states_RTD.shape[1]
    places = np.concatenate([np.arange(count) + row * longest + start for row, (start, count) in enumerate(spans)])
    return states_RTD.reshape(-1, states_RTD.shape[-1])[mx.array(places.astype(np.int32))]
