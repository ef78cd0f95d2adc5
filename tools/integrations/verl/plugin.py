"""The module that verl imports to use DA-GRPO: `VERL_USE_EXTERNAL_MODULES=tools.integrations.verl.plugin`. Registers the estimator and the
trainer.
"""

from __future__ import annotations

from verl.trainer.ppo.core_algos import register_adv_est

from tools.integrations.verl import trainer
from tools.integrations.verl.estimator import dagrpo_advantage
from tools.integrations.verl.settings import ESTIMATOR

register_adv_est(ESTIMATOR)(dagrpo_advantage)

__all__ = ["trainer"]
