"""What a simulated device and its link are able to do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

ANSWER_OVERHEAD_S = 0.002
"""Of an answer until its first letter, where nobody has measured it."""


@dataclass(frozen=True, slots=True)
class SimulatedSpeed:
    """A device with one model in one quantisation on it.

    `decode_tokens_per_s`: (rows, tokens/s of all rows together), rows ascending from 1. `training_tokens_per_s`: forward and backward
    passes of LoRA. Powers in watts; `throttle_share` is what is left of all speeds after `throttle_after_s` seconds of unbroken work
    (None: never). `battery_wh` None: on mains. `overhead_s`: what an answer takes on the device beside the model until its first letter;
    `token_overhead_s`: what each token of an answer takes beyond its decoding, until it is shown.
    """

    name: str
    model: str
    prefill_tokens_per_s: float
    decode_tokens_per_s: tuple[tuple[int, float], ...]
    training_tokens_per_s: float
    idle_w: float
    busy_w: float
    throttle_after_s: float | None = None
    throttle_share: float = 1.0
    battery_wh: float | None = None
    overhead_s: float = ANSWER_OVERHEAD_S
    token_overhead_s: float = 0.0

    @property
    def token_s(self) -> float:
        """Seconds of one token of an answer that is streamed."""
        return 1.0 / self.decode_rate(1) + self.token_overhead_s

    def read_s(self, prompt_tokens: int) -> float:
        """Seconds until a prompt is read and its answer can begin."""
        return self.overhead_s + prompt_tokens / self.prefill_tokens_per_s

    def shown_s(self, tokens: int) -> float:
        """Seconds of the tokens of a streamed answer after the first one."""
        return max(0, tokens - 1) * self.token_s

    def decode_rate(self, rows: int) -> float:
        """Tokens/s of all rows together; between two measured numbers of rows on a straight line, beyond the last one as that."""
        known = self.decode_tokens_per_s
        for (below, slow), (above, fast) in pairwise(known):
            if rows <= above:
                share = max(0.0, (rows - below) / (above - below))
                return slow + share * (fast - slow)
        return known[-1][1]


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A way to the coordinator. `rtt_s` median round trip; a message takes half of it plus jitter, exponential with mean `jitter_s` / 2,
    plus its bytes at the bandwidth of its direction.

    `loss`: share of messages that are lost and sent again by the transport after `retransmit_s`. Outages: on average every `mean_up_s`
    seconds one of `mean_down_s` (None: none), both exponential; `offline_hours`: (from, until) of every day, hours of the local clock.
    """

    name: str
    rtt_s: float
    jitter_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    loss: float = 0.0
    retransmit_s: float = 0.3
    mean_up_s: float | None = None
    mean_down_s: float = 0.0
    offline_hours: tuple[float, float] | None = None
