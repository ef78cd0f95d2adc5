"""Measuring a model on held-out items: what was judged, the scores, the report, recorded cloud answers, and the cost-quality curve."""
