"""Public data sets, normalised to TaskItem."""
