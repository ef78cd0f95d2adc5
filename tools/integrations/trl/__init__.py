"""DA-GRPO on TRL's GRPOTrainer, without a subclass: two reward functions, and a callback that moves the second one's weight."""
