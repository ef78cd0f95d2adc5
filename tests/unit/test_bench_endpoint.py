"""The comparison of endpoints: what is told of timed replies."""

from __future__ import annotations

from tools.bench.endpoint import Timed, _line, _text_of, summary

OURS = [Timed(0.010, 0.050, "Step 1"), Timed(0.030, 0.070, "5"), Timed(0.020, 0.060, "x")]
THEIRS = [Timed(0.010, 0.040, "<think>\nStep 1"), Timed(0.012, 0.050, "5"), Timed(0.008, 0.060, "y")]


def test_medians_ratios_and_equal_texts_are_told() -> None:
    found = summary("completions", {"ours": OURS, "theirs": THEIRS})
    assert (found["ours_first_ms"], found["theirs_total_ms"]) == (20.0, 50.0)
    assert (found["first_ratio"], found["total_ratio"]) == (2.0, 1.2)
    assert (found["same_texts"], found["requests"]) == (2, 3)
    assert "ratio 1.20; same text 2 of 3" in _line(found)


def test_text_is_found_in_chunks_of_either_route() -> None:
    assert _text_of(b'data: {"choices":[{"text":"a"}]}\n') == "a"
    assert _text_of(b'data: {"choices":[{"delta":{"reasoning_content":"b"}}]}\n') == "b"
    assert _text_of(b'data: {"choices":[{"delta":{"content":"c"}}]}\n') == "c"
    assert _text_of(b'data: {"choices":[]}\n') == _text_of(b"data: [DONE]\n") == _text_of(b"\n") == ""
