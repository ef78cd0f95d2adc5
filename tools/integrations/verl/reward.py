"""verl's reward manager for DA-GRPO: text of a response in, r and its outcome out.

Runs in verl's reward workers, several processes of which any may get any response of a group. Load it with `reward.reward_manager:
{source: importlib, name: DagrpoRewardManager, module: {path: pkg://tools.integrations.verl.reward}}`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from edge.app.coordinator import build_client
from edge.core.clock import SystemClock
from edge.rpc.client import CoordinatorClient
from tools.integrations.scoring import Scorer, scorer_of
from tools.integrations.verl.outcomes import OUTSIDE_TRAINING, as_info, score_one
from tools.integrations.verl.prepare import item_of
from tools.integrations.verl.settings import DagrpoSettings

STEP_FIELD = "dagrpo_step"
"""With each training prompt: the coordinator's number of the step it belongs to, or OFFLINE. Absent in validation."""

OFFLINE = -1


class DagrpoRewardManager(RewardManagerBase):  # type: ignore[misc]
    """Scores one response of verl; the coordinator is connected to at the first one."""

    def __init__(
        self, config: Any, tokenizer: Any, compute_score: Any = None, client: CoordinatorClient | None = None, **unused: Any
    ) -> None:
        """`client` replaces the connection to the coordinator. Raises ConfigError for a launch file that cannot be meant."""
        super().__init__(config, tokenizer, compute_score)
        self._settings = DagrpoSettings.of(config)
        self._agent = self._settings.agent_config()
        self._client = client
        self._scorer: Scorer | None = None

    async def run_single(self, data: Any) -> dict[str, Any]:
        """verl's answer for one response: `reward_score` is r, `reward_extra_info` the rest."""
        row, settings = data[-1:][0], self._settings
        fields = row.non_tensor_batch
        text, cut = await asyncio.to_thread(self._text, row)
        step = int(fields[STEP_FIELD]) if STEP_FIELD in fields else None
        scored = await score_one(
            self._open(),
            item_of(fields["extra_info"]),
            text,
            cut=cut,
            task=settings.task,
            task_step=OUTSIDE_TRAINING if step is None else step,
            ask_cloud=settings.validate_with_cloud if step is None else step != OFFLINE,
        )
        return {"reward_score": scored.reward, "reward_extra_info": as_info(scored)}

    def _open(self) -> Scorer:
        """Made at first use, because the client belongs to the event loop that is running then."""
        if self._scorer is None:
            agent, settings = self._agent, self._settings
            client = self._client or build_client(agent, str(agent.coordinator.address), settings.run_id)
            self._scorer = scorer_of(agent, client, SystemClock(), settings.rollout_settings(agent))
        return self._scorer

    def _text(self, row: Any) -> tuple[str, bool]:
        """The response without special tokens, and whether it was cut at the limit of tokens."""
        responses = row.batch["responses"]
        length = int(row.batch["attention_mask"][-responses.shape[-1] :].sum())
        ids = responses[:length].tolist()
        ended = bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        return self.tokenizer.decode(ids, skip_special_tokens=True), length >= self._settings.response_tokens and not ended
