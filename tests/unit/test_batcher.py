"""Continuous batching over a scripted engine: allocation of rows, ends of responses, and control of help requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge.core.types import FinishReason, LocalResponse, Sampling
from edge.core.worker import Priority
from edge.dagrpo.format import help_trigger_span
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.batcher import PIECE, Batcher, Request, in_common
from edge.inference.decisions import HelpTokens, ResponseFollower, first_decision, missing_tag_ends

TEXTS = [
    "", "a", "b", " ", "\n", "<", "think", "</", "</think", ">", ">\n", "<answer>", "answer", "I", " I", "\nI", ">I", " need", "In",
    "Step", " 3", "3", ":", "</think>\n", "I need external assistance.", " i",
]  # fmt: skip
EOS = 0


class Tokens:
    texts = TEXTS
    pieces = [text.encode() for text in TEXTS]  # noqa: RUF012
    ends = [token == EOS for token in range(len(TEXTS))]  # noqa: RUF012
    control_ids = {"<|end|>": EOS}  # noqa: RUF012


class PlannedEngine:
    """Rows remember their tokens; logits favour the next token of a plan selected by the prompt."""

    vocab_size = len(TEXTS)
    n_ctx = 64
    same_in_parts = True

    def __init__(self, rows: int, plans: dict[int, list[int]], favour: float = 50.0) -> None:
        self.rows = rows
        self.plans = plans
        self.favour = favour
        self.memory: list[list[int]] = [[] for _ in range(rows)]
        self.calls: list[str] = []
        self.widths: list[int] = []

    def prefill(self, row: int, ids: list[int], start: int = 0) -> np.ndarray:
        assert len(self.memory[row]) >= start
        self.memory[row] = [*self.memory[row][:start], *ids]
        self.calls.append(f"prefill {ids[0]}")
        return self._logits(row)

    def read(self, row: int, ids: list[int], start: int = 0) -> Iterator[np.ndarray]:
        for count in range(1, len(ids) + 1):
            self.memory[row] = ids[:count]
            yield self._logits(row)[None]

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        self.widths.append(len(tokens))
        self.calls.append(f"decode {len(tokens)}")
        for row, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            assert len(self.memory[row]) == position
            self.memory[row].append(int(token))
        return np.stack([self._logits(row) for row in range(len(tokens))])

    def fork(self, source: int, target: int, length: int) -> None:
        assert len(self.memory[source]) >= length
        self.memory[target] = self.memory[source][:length]

    def _logits(self, row: int) -> np.ndarray:
        prompt, *output = self.memory[row]
        logits = np.zeros(self.vocab_size, dtype=np.float32)
        plan = self.plans[prompt]
        logits[plan[len(output)] if len(output) < len(plan) else EOS] = self.favour
        return logits


class SharedRowsEngine(PlannedEngine):
    """Rows that share room for 2048 tokens; a beginning of what was kept is recalled."""

    shared_tokens = n_ctx = 2048

    def __init__(self, rows: int, plans: dict[int, list[int]]) -> None:
        super().__init__(rows, plans)
        self.memory.append([])
        self.kept: list[list[int]] = []

    def keep(self, row: int, ids: list[int]) -> None:
        held = [token for token, same in zip(self.memory[row], ids, strict=False) if token == same]
        self.kept += [held] if held else []
        self.memory[row] = []

    def recall(self, row: int, ids: list[int]) -> int:
        common = max((in_common(kept, ids[:-1]) for kept in self.kept), default=0)
        self.memory[row] = ids[:common]
        return common


def request(prompt: int, responses: int = 1, priority: Priority = Priority.ROLLOUT, **sampling: object) -> Request:
    return Request([prompt], Sampling(**{"max_tokens": 40, **sampling}), range(responses), priority)  # type: ignore[arg-type]


def run(batcher: Batcher, *requests: Request) -> list[tuple[LocalResponse, ...]]:
    for item in requests:
        batcher.add(item)
    while batcher.has_work(Priority.TRAINING):
        batcher.step()
    return [item.future.result().responses for item in requests]


def planned(
    rows: int, plans: dict[int, list[int]], rollout_rows: int | None = None, favour: float = 50.0
) -> tuple[Batcher, PlannedEngine]:
    engine = PlannedEngine(rows, plans, favour)
    return Batcher(engine, Tokens(), rollout_rows=rollout_rows or rows), engine


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


def test_each_response_follows_its_own_prompt_through_refills_and_moves() -> None:
    plans = {prompt: ids("a", "b") * prompt for prompt in range(1, 9)}
    batcher, engine = planned(4, plans)
    groups = run(batcher, *(request(prompt, 3) for prompt in plans))
    for prompt, group in zip(plans, groups, strict=True):
        assert [response.text for response in group] == ["ab" * prompt] * 3
        assert {response.finish for response in group} == {FinishReason.EOS}
        assert group[0].token_ids == (*plans[prompt], EOS)
    assert [call for call in engine.calls if call.startswith("prefill")] == [f"prefill {prompt}" for prompt in plans]


def test_the_batch_stays_full_while_there_is_work() -> None:
    batcher, engine = planned(4, {1: ids("a") * 10})
    run(batcher, request(1, 16))
    assert engine.widths == [4] * 40
    assert engine.calls.count("prefill 1") == 1


def test_responses_of_rollouts_and_their_tokens_are_counted_while_they_are_made() -> None:
    batcher, _ = planned(4, {1: ids("a") * 6, 2: ids("b") * 3})
    batcher.add(request(1, 3))
    for _ in range(4):
        batcher.step()
    assert (batcher.counts.responses, batcher.counts.tokens) == (0, 12)
    answered = run(batcher, request(2, 5), request(2, 1, Priority.SERVING), request(2, 1, Priority.TEXTS))[0]
    assert batcher.counts.responses == 3 + 5
    assert batcher.counts.tokens == 3 * 7 + sum(len(response.token_ids) for response in answered)


def test_a_request_larger_than_the_batch_survives_the_loss_of_its_prompt() -> None:
    plans = {1: ids("a") * 6, 2: ids("b") * 2}
    batcher, _ = planned(2, plans)
    first, second = request(1, 5), request(2, 5, Priority.SERVING)
    batcher.add(first)
    batcher.step()
    batcher.step()
    run(batcher, second)
    assert [response.text for response in first.future.result().responses] == ["aaaaaa"] * 5
    assert [response.text for response in second.future.result().responses] == ["bb"] * 5


def test_serving_joins_a_full_batch_at_the_next_slice() -> None:
    batcher, engine = planned(5, {1: ids("a") * 20, 2: ids("b") * 3}, rollout_rows=4)
    rollouts = request(1, 8)
    batcher.add(rollouts)
    for _ in range(4):
        batcher.step()
    served = request(2, 1, Priority.SERVING)
    batcher.add(served)
    batcher.step()
    assert engine.calls[-1] == "prefill 2"
    batcher.step()
    assert engine.calls[-1] == "decode 5"
    for _ in range(3):
        batcher.step()
    assert served.future.done()
    assert not rollouts.future.done()
    engine.widths.clear()
    run(batcher)
    assert max(engine.widths) == 4, "rollouts never take the row that is kept for serving"


def test_answer_precedes_queued_raw_texts_and_has_a_row_beside_running_ones() -> None:
    plans = {1: ids("a") * 9, 2: ids("b") * 9, 3: ids("a") * 30}
    batcher, engine = planned(8, plans, rollout_rows=4)
    texts = [request(1, 1, Priority.TEXTS) for _ in range(20)]
    for item in (request(3, 8), *texts):
        batcher.add(item)
    for _ in range(8):
        batcher.step()
    assert engine.widths[-1] == 6, "four rows of rollouts and half of those that are kept"
    served = request(2, 1, Priority.SERVING)
    batcher.add(served)
    while not served.future.done():
        batcher.step()
    assert not all(text.future.done() for text in texts[2:])
    run(batcher)
    assert [text.future.result().responses[0].text for text in texts] == ["a" * 9] * 20


def shared(rows: int, plans: dict[int, list[int]]) -> tuple[Batcher, SharedRowsEngine]:
    engine = SharedRowsEngine(rows, plans)
    return Batcher(engine, Tokens(), rollout_rows=0, shared=engine), engine


def long_request(prompt: int, tokens: int, max_tokens: int = 40) -> Request:
    return Request([prompt] * tokens, Sampling(max_tokens=max_tokens), [0], Priority.SERVING)


def test_a_long_prompt_is_read_in_turn_with_the_tokens_of_others() -> None:
    batcher, engine = shared(4, {1: ids("a") * 30, 2: ids("b")})
    first, second = request(1, priority=Priority.SERVING), long_request(2, 4 * PIECE)
    batcher.add(first)
    batcher.step()
    run(batcher, second)
    begins = engine.calls.index("prefill 2")
    assert engine.calls[begins : begins + 7] == [*["prefill 2", "decode 1"] * 3, "prefill 2"]
    assert first.future.result().responses[0].text == "a" * 30


def test_what_was_read_of_a_withdrawn_prompt_is_not_read_again() -> None:
    batcher, engine = shared(2, {2: ids("b")})
    first, second = long_request(2, 4 * PIECE), long_request(2, 4 * PIECE)
    batcher.add(first)
    batcher.step()
    batcher.step()
    first.future.cancel()
    run(batcher, second)
    assert second.cached_tokens == 2 * PIECE
    assert engine.calls.count("prefill 2") == 4


def test_who_may_need_more_than_there_is_room_for_waits_and_nobody_else_overtakes() -> None:
    batcher, engine = shared(4, {1: ids("a") * 30, 2: ids("b") * 30, 3: ids("a") * 30})
    requests = [long_request(number, 1, max_tokens) for number, max_tokens in ((1, 1200), (2, 1200), (3, 20))]
    order: list[int] = []
    for number, one in enumerate(requests):
        one.future.add_done_callback(lambda _, number=number: order.append(number))
    run(batcher, *requests)
    assert (order[0], max(engine.widths)) == (0, 2)


def test_a_withdrawn_request_frees_its_rows() -> None:
    batcher, engine = planned(4, {1: ids("a") * 30, 2: ids("b") * 2})
    withdrawn, kept = request(1, 4), request(2, 4)
    batcher.add(withdrawn)
    batcher.add(kept)
    batcher.step()
    withdrawn.future.cancel()
    run(batcher)
    assert [response.text for response in kept.future.result().responses] == ["bb"] * 4
    assert len(engine.widths) == 2


def test_on_hold_running_requests_finish_and_nothing_else_starts() -> None:
    batcher, _ = planned(2, {1: ids("a") * 4, 2: ids("b")})
    begun, waiting = request(1, 5), request(2, 1)
    batcher.add(begun)
    batcher.add(waiting)
    batcher.step()
    batcher.hold = True
    while batcher.has_work(Priority.TRAINING):
        batcher.step()
    assert begun.future.done()
    assert not waiting.future.done()
    batcher.hold = False
    run(batcher)
    assert waiting.future.done()


def test_failure_reaches_every_caller_and_the_batch_works_afterwards() -> None:
    batcher, _ = planned(2, {1: ids("a") * 4})
    requests = [request(1, 3), request(1, 1)]
    for item in requests:
        batcher.add(item)
    batcher.step()
    batcher.fail_all(RuntimeError("broken"))
    for item in requests:
        with pytest.raises(RuntimeError, match="broken"):
            item.future.result()
    assert not batcher.has_work(Priority.TRAINING)
    assert run(batcher, request(1))[0][0].text == "aaaa"


def test_generation_ends_at_the_token_limit() -> None:
    batcher, _ = planned(2, {1: ids("a") * 100})
    ((short,), (full,)) = run(batcher, request(1, max_tokens=7), request(1, max_tokens=500))
    assert (short.finish, len(short.token_ids)) == (FinishReason.LENGTH, 7)
    assert (full.finish, len(full.token_ids)) == (FinishReason.LENGTH, PlannedEngine.n_ctx - 1)
    ((single,),) = run(batcher, request(1, max_tokens=1))
    assert single.text == "a"


@pytest.mark.parametrize(("max_tokens", "text"), [(1, "I"), (2, "I"), (3, "I"), (4, "I🙂"), (5, "I🙂"), (9, "I🙂")])
def test_a_character_that_the_limit_cuts_is_no_text_rolled_out_or_served(max_tokens: int, text: str) -> None:
    tokens, plan = Tokens(), ids("I", "a", "b", "<", "a")
    spelled = {"a": b"\xf0\x9f", "b": b"\x99", "<": b"\x82"}
    tokens.pieces = [spelled.get(piece.decode(), piece) for piece in Tokens.pieces]
    heard: list[str] = []
    served = Request([1], Sampling(max_tokens=max_tokens), [0], Priority.SERVING, on_text=lambda text, _: heard.append(text))
    rolled_out = request(1, max_tokens=max_tokens)
    ((first,), (second,)) = run(Batcher(PlannedEngine(2, {1: plan}), tokens, rollout_rows=2), served, rolled_out)
    assert "".join(heard) == first.text == second.text == text
    assert first.token_ids == second.token_ids == (*plan, EOS)[:max_tokens]


@pytest.mark.parametrize(
    ("plan", "stops"),
    [
        (ids("a", "\n", "Step", " 3", ":", "b"), True),
        (ids("Step", " 3", ":", "b"), True),
        (ids("<", "think", ">", "Step", " 3", ":", "b"), True),
        (ids("a", "Step", " 3", ":", "b"), False),
        (ids("\n", "Step", " 3", "3", ":", "b"), False),
        (ids("</think", ">\n", "Step", " 3", ":", "b"), False),
        ([*(ids("a") * 30), *ids("Step", " 3", ":", "b")], False),
    ],
)
def test_a_response_ends_where_it_opens_a_step_too_many(plan: list[int], stops: bool) -> None:
    batcher, _ = planned(2, {1: plan})
    ((response,),) = run(batcher, request(1, max_steps=2))
    assert response.finish is (FinishReason.STEP_LIMIT if stops else FinishReason.EOS)
    assert response.text == "".join(TEXTS[token] for token in (plan[:-1] if stops else plan))


def first_letter_of_decision(text: str) -> str:
    point = first_decision(text)
    assert point is not None
    return text[point : point + 1].lower()


DECISIONS = {
    "after the thinking": ("", ids("a", "</think", ">")),
    "after the thinking and white space": ("", ids("</think>\n", "\n", " ")),
    "in the answer": ("a</think>", ids("\n", "<answer>")),
    "in an answer spelt in pieces": ("</think>\n", ids("<", "answer", ">", "\n")),
}


@pytest.mark.parametrize(("prefix", "plan"), DECISIONS.values(), ids=DECISIONS.keys())
def test_help_can_be_forced_and_forbidden_at_a_decision_point(prefix: str, plan: list[int]) -> None:
    def following(prompt: int, **sampling: Any) -> Request:
        return Request([prompt], Sampling(max_tokens=40, **sampling), range(4), Priority.ROLLOUT, prefix=prefix)

    batcher, _ = planned(2, {1: [*plan, *ids("b")], 2: [*plan, *ids("I", " need")]}, favour=30.0)
    batcher.add(forced := following(1, help_bias=60.0))
    ((*forbidden,),) = run(batcher, following(2, suppress_help=True))
    for response in forced.future.result().responses:
        whole = prefix + response.text
        span = help_trigger_span(whole)
        assert span is not None and whole[span[0] : span[1]] == HELP_PHRASE
    begun = "".join(TEXTS[token] for token in plan)
    assert not any(response.text.startswith((f"{begun}I", f"{begun} I", f"{begun}i")) for response in forbidden)


NO_REQUESTS = {
    "after a second end of the thinking": "</think>\na</think>",
    "in an answer without thinking": "b<answer>",
    "in an answer while thinking": "<think>a<answer>\n",
    "in an answer after other text": "</think>\na<answer>",
    "in a second answer": "</think>\n<answer>a</answer>\n<answer>",
    "where a token closes a second tag": "</think>\na</think",
}


@pytest.mark.parametrize("prefix", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
@pytest.mark.parametrize("bias", [60.0, -60.0])
@pytest.mark.parametrize("exact", [False, True], ids=["served", "rolled out"])
def test_the_bias_makes_no_request_of_what_would_be_shown_as_text(prefix: str, bias: float, exact: bool) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=9, help_bias=bias, exact=exact)
    plans = {1: ids("b"), 2: ids(">I" if prefix.endswith("</think") else "I", " need")}
    requests = [Request([prompt], sampling, [0], Priority.SERVING, prefix=prefix) for prompt in plans]
    for (response,), plan in zip(run(planned(2, plans, favour=30.0)[0], *requests), plans.values(), strict=True):
        assert (response.text, response.overridden, response.biased) == ("".join(TEXTS[token] for token in plan), "", ())


def test_the_bias_acts_exactly_where_the_phrase_would_be_a_request() -> None:
    tokens = HelpTokens(TEXTS)
    random = np.random.Generator(np.random.Philox(2))
    seen = {True: 0, False: 0}
    pieces = ids("<answer>", "</think>\n", "</think", ">", "\n", "a", "<", "answer", "</")
    for _ in range(4000):
        prefix = ("", "a</think>", "</think>\n<answer>")[random.integers(3)]
        follower, text = ResponseFollower(tokens, None, prefix), prefix
        for token in random.choice(pieces, size=5).tolist():
            follower.add(token, TEXTS[token])
            text += TEXTS[token]
            if follower.pending is not None:
                asked = text + follower.request_text
                assert follower.may_ask == (help_trigger_span(asked) is not None), asked
                seen[follower.may_ask] += 1
    assert min(seen.values()) > 100


def test_log_odds_are_unbiased_and_from_the_first_decision_point() -> None:
    plan = ids("</think>\n", "<answer>", "b")
    batcher, _ = planned(2, {1: plan}, favour=5.0)
    starts = len(HelpTokens(TEXTS).starts[""])
    expected = np.log(starts) - np.log(np.exp(5.0) + len(TEXTS) - starts - 1)
    greedy = {"temperature": 0.0}
    ((plain,), (biased,), (forbidden,)) = run(
        batcher, request(1, **greedy), request(1, help_bias=2.0, **greedy), request(1, suppress_help=True, **greedy)
    )
    for response in (plain, biased, forbidden):
        assert response.help_log_odds == pytest.approx(expected, abs=1e-5)


def test_white_space_postpones_the_decision_and_its_log_odds() -> None:
    tag, newline, letter = ids("</think", ">", "\n", "b"), TEXTS.index("\n"), TEXTS.index("I")
    engine = PlannedEngine(2, {1: tag}, favour=20.0)
    plain_logits = engine._logits

    def logits_with_a_leaning(row: int) -> np.ndarray:
        logits = plain_logits(row)
        if engine.memory[row][-1] == newline:
            logits[letter] = 19.0
        return logits

    engine._logits = logits_with_a_leaning  # type: ignore[method-assign]
    ((response,),) = run(Batcher(engine, Tokens(), rollout_rows=2), request(1, temperature=0.0))
    assert response.text == "</think>\nb"
    assert response.help_log_odds == pytest.approx(-1.0, abs=1e-3)


def test_recorded_log_probabilities_are_those_of_the_biased_distribution() -> None:
    plan = ids("</think", ">", "b")
    batcher, _ = planned(2, {1: plan}, favour=5.0)
    starts = len(HelpTokens(TEXTS).starts[""])
    ((biased,), (forbidden,)) = run(
        batcher, request(1, help_bias=3.0, temperature=0.0), request(1, suppress_help=True, temperature=0.0)
    )
    others = len(TEXTS) - starts - 1
    assert biased.logprobs[2] == pytest.approx(5.0 - np.log(np.exp(5.0) + others + starts * np.exp(3.0)), abs=1e-5)
    assert forbidden.logprobs[2] == pytest.approx(5.0 - np.log(np.exp(5.0) + others), abs=1e-5)


def test_bias_has_no_effect_without_a_decision_point() -> None:
    batcher, _ = planned(2, {1: ids("a", "b", "think", "In", "a")})
    (plain,), (biased,) = run(batcher, request(1), request(1, help_bias=40.0))
    assert plain == biased
    assert plain.help_log_odds is None


def test_token_that_closes_the_tag_and_starts_the_phrase_is_still_a_decision() -> None:
    batcher, _ = planned(2, {1: ids("</think", ">I", " need")})
    ((allowed,), (forbidden,)) = run(batcher, request(1), request(1, suppress_help=True))
    assert allowed.text == "</think>I need"
    assert not forbidden.text.startswith("</think>I")


def test_forced_tokens_are_scored_and_not_sampled() -> None:
    batcher, _ = planned(2, {1: ids("a") * 5}, favour=2.0)
    forced = Request([1], Sampling(), [0], Priority.ROLLOUT, forced_ids=ids("b", "", "a", "Step", " 3", ":"))
    ((response,),) = run(batcher, forced)
    assert response.token_ids == tuple(ids("b", "", "a", "Step", " 3", ":"))
    total = np.log(np.exp(2.0) + len(TEXTS) - 1)
    assert response.logprobs[:3] == pytest.approx([-total, -total, 2.0 - total], abs=1e-6)
    suppressed = Request([1], Sampling(suppress_help=True), [0], Priority.ROLLOUT, forced_ids=ids("</think>\n", "b"))
    ((response,),) = run(planned(1, {1: ids("</think>\n", "I")}, favour=5.0)[0], suppressed)
    assert np.isfinite(response.logprobs).all(), "also where help is suppressed"


def test_followed_text_has_the_same_decision_points_as_the_whole_text() -> None:
    tokens = HelpTokens(TEXTS)
    random = np.random.Generator(np.random.Philox(1))
    seen = 0
    for _ in range(2000):
        follower, text = ResponseFollower(tokens, None), ""
        for token in random.integers(1, len(TEXTS), size=8).tolist():
            follower.add(token, TEXTS[token])
            text += TEXTS[token]
            assert (follower.pending == "") == ("" in missing_tag_ends(text)), text
        seen += first_decision(text) is not None
    assert seen > 100


def test_response_may_continue_after_the_end_of_a_text() -> None:
    batcher, _ = planned(1, {1: [2, EOS, 3]})
    ((response,),) = run(batcher, request(1, ignore_eos=True, max_tokens=4, top_logprobs=0))
    assert response.token_ids == (2, EOS, 3, EOS)
    assert [token.piece for token in response.tokens] == [b"b", b"<|end|>", b" ", b"<|end|>"]
    assert response.finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (ids("a", "</think>\n", "b"), "a</think>\nI need external assistance."),
        (ids("a", "</think>\n", "<answer>", "b"), "a</think>\nI need external assistance."),
    ],
    ids=["after the thinking", "before the answer"],
)
def test_a_bias_that_decides_to_ask_ends_the_response_with_the_whole_request(plan: list[int], text: str) -> None:
    batcher, _ = planned(1, {1: plan}, favour=20.0)
    ((response,),) = run(batcher, request(1, help_bias=40.0, temperature=0.0))
    assert (response.text, response.finish, response.overridden) == (text, FinishReason.EOS, "to ask")


def test_decision_of_the_model_itself_is_not_attributed_to_the_bias() -> None:
    batcher, _ = planned(2, {1: ids("</think>\n", "I", " need"), 2: ids("</think>\n", "b")}, favour=20.0)
    ((asks,), (stays,), (kept,)) = run(
        batcher,
        request(1, help_bias=3.0, temperature=0.0),
        request(2, help_bias=-3.0, temperature=0.0),
        request(1, help_bias=-60.0, temperature=0.0),
    )
    assert (asks.text, asks.overridden) == ("</think>\nI need", "")
    assert (stays.text, stays.overridden) == ("</think>\nb", "")
    assert kept.overridden == "not to ask" and first_letter_of_decision(kept.text) != "i"


@pytest.mark.parametrize("kept", [{"suppress_help": True}, {"help_bias": -60.0}], ids=["suppressed", "overridden by the dial"])
def test_model_kept_from_its_request_continues_with_an_answer(kept: dict[str, object]) -> None:
    engine = PlannedEngine(1, {1: ids("</think>\n", "I", "a")}, favour=20.0)
    plain_logits = engine._logits

    def logits_that_would_go_on_in_the_request(row: int) -> np.ndarray:
        logits = plain_logits(row)
        logits[TEXTS.index(" need")] = 10.0
        return logits

    engine._logits = logits_that_would_go_on_in_the_request  # type: ignore[method-assign]
    ((response,),) = run(Batcher(engine, Tokens(), rollout_rows=1), request(1, temperature=0.0, **kept))
    assert response.text.startswith("</think>\n<")


@pytest.mark.parametrize("plan", [ids("</think>\n", "b"), ids("<answer>", "b")], ids=["after the thinking", "in the answer"])
def test_suppressed_help_changes_nothing_where_the_model_would_not_ask(plan: list[int]) -> None:
    batcher, _ = planned(1, {1: plan}, favour=20.0)
    ((response,),) = run(batcher, request(1, temperature=0.0, suppress_help=True))
    assert response.text == "".join(TEXTS[token] for token in plan)
