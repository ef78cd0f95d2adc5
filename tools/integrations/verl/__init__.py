"""DA-GRPO on verl and Ray: a reward manager, an advantage estimator and the trainer that carries λ. See README.md in this folder."""
