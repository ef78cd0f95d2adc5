"""DA-GRPO on the training engines that people with many GPUs already use. Not part of the wheel."""
