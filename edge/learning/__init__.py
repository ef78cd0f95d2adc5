"""The learning step and the loop around it: rollout, methods, checkpoints, promotion, curriculum, one's own use, run folder."""
