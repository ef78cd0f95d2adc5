"""A small language model that lives on a person's own machine, and learns when to ask for help."""

__version__ = "0.1.0"
