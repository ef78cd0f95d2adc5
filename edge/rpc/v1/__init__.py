"""Generated from proto/edge/rpc/v1 by `python -m tools.codegen`; never edited by hand."""
