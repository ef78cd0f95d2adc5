"""Public data sets, normalised to TaskItem. Knows their schemas and where they live; knows nothing of learning."""
