"""One question: decide, ask, compose, record, explain."""
