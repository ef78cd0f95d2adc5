"""DA-GRPO on training engines for many GPUs. Not part of the wheel."""
