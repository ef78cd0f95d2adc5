"""What a step imitates: given answers where few of its responses are right, and also answers that the model is to keep.

Updates on a few given answers would change what the model answers to other questions: of forty sums that nano-edge had right, it had
thirteen after five corrections (tools/experiments/LOG.md). So, before a given answer is shown for the first time, the model answers
questions that differ from its question in a number or a word. Where its responses agree, it knows the answer, and this answer is trained
along. In each such step the model also answers a few questions of other skills; its right answers there are trained along, too.

A label that has enough questions to hold some out teaches a rule. Answers learned by heart get in the way of a rule, and so do the model's
answers to similar questions. So of such a label an answer is shown only where no response is right, and never for multiple choice, where
the right option is sampled soon; and no similar answers are kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, cycle, islice
from typing import TypeVar

from edge.core.concurrency import all_of
from edge.core.errors import ContextOverflow, EdgeError
from edge.core.rng import derive_seed, stream
from edge.core.types import Demonstration, FinishReason, KeptAnswer, LocalResponse, PromptGroup, TaskItem
from edge.dagrpo.answers import final_answer
from edge.dagrpo.demonstrations import demonstration, similar_question, with_words_left_out
from edge.evaluation.judging import Candidate, RolloutSettings, judge
from edge.inference.backend import InferenceBackend
from edge.learning.curriculum import StepPlan
from edge.learning.rollout import ScoredGroup, as_a_turn, plain_limit
from edge.state.folder import StateFolder
from edge.state.rows import SimilarAnswer
from edge.tasks.source import TaskSource
from edge.training.learner import MOST_IMITATIONS
from edge.verifiers.verifier import Verifier

T = TypeVar("T")
_KNOWN = 0.5
"""Share of right responses from which on an answer is known."""
_SIMILAR, _SAMPLES = 16, 2
"""Questions like one whose answer is given, and the model's responses to each of them, which have to agree."""
_OF_A_SKILL, _TRIES_OF_EACH = 4, 2
"""Questions of each skill in a step, and responses to each of them."""
_CHECKED_OF_A_SKILL = 64
"""Questions of each skill that are tried before learning begins, and from which those of a step are chosen."""
_MOST_WORDS, _TRIES = 256, 2000


@dataclass(frozen=True, slots=True)
class ImitationBatch:
    """For `Learner.imitate`. `shown`: keys of the items whose answer has to be shown; `found`: what is to be kept from now on."""

    demonstrations: tuple[Demonstration, ...]
    kept: tuple[KeptAnswer, ...] = ()
    most: int = MOST_IMITATIONS
    shown: tuple[str, ...] = ()
    found: tuple[SimilarAnswer, ...] = ()


NOTHING_GIVEN = ImitationBatch(())


@dataclass(frozen=True, slots=True)
class _Given:
    """An item of the step with its given answer. `is_known`: half of the responses are right, so the answer is only kept up."""

    item: TaskItem
    key: str
    demonstration: Demonstration
    is_known: bool


@dataclass
class GivenAnswers:
    """Makes the batches, from the engine that samples for the learner."""

    backend: InferenceBackend
    settings: RolloutSettings
    state: StateFolder
    verifier: Verifier
    skills: Mapping[str, TaskSource] = field(default_factory=dict)

    def check_skills(self) -> list[str]:
        """What a person should know before learning begins: a line for each skill with questions that do not fit the context."""
        notes = []
        for name, source in self.skills.items():
            items = list(islice(source.train(self.settings.seed), _CHECKED_OF_A_SKILL))
            if too_long := sum(not self._prompt_ids(item) for item in items):
                hint = "; it is not kept up: raise model.context_tokens" if too_long == len(items) else ", and are left out"
                notes.append(
                    f"learning.imitation.skills: {too_long} of {len(items)} questions of {name} do not fit the context{hint}"
                )
        return notes

    async def batch(self, plan: StepPlan, groups: Sequence[ScoredGroup]) -> ImitationBatch:
        """The step's given answers: as many updates as it takes where few responses to a question are right by themselves, since what is
        hardly ever sampled cannot be learned from samples; else one update that keeps them up, as in steps on other tasks."""
        given = self._given(plan, groups)
        if not given:
            return NOTHING_GIVEN
        items = {one.key: one.item for one in given}
        stored = {key: self.stored(key) for key in items}
        found: list[SimilarAnswer] = []
        if plan.demonstrates and not plan.generalises:
            new = [(key, item) for key, item in items.items() if not stored[key]]
            found = list(chain.from_iterable(await all_of(self._found(key, item, plan.step) for key, item in new)))
        similar = self._kept(items, [*chain.from_iterable(stored.values()), *found])
        stream(self.settings.seed, "kept", plan.step).shuffle(similar)
        others = await self._of_skills(plan.step)
        shown = tuple(one.key for one in given if not one.is_known)
        return ImitationBatch(
            demonstrations=tuple(one.demonstration for one in given),
            kept=tuple([one for pair in zip(similar, cycle(others), strict=False) for one in pair] or similar or others),
            most=MOST_IMITATIONS if shown else 1,
            shown=shown,
            found=tuple(found),
        )

    def _given(self, plan: StepPlan, groups: Sequence[ScoredGroup]) -> list[_Given]:
        """The step's items whose answer is given, or else those that are rehearsed; without answers that do not fit."""
        if plan.demonstrates:
            to_show = [one for one in groups if not plan.generalises or (one.right_alone == 0 and not one.item.options)]
            asked = [(group.item, group.right_alone >= _KNOWN) for group in to_show]
        else:
            asked = [(item, True) for item in plan.rehearsed]
        given = []
        for index, (item, is_known) in enumerate(asked):
            if (made := self._demonstration(item, plan.step, index)) is not None:
                given.append(_Given(item, Candidate(item).key, made, is_known))
        return given

    def _demonstration(self, item: TaskItem, step: int, index: int) -> Demonstration | None:
        """The given answer as a turn of the SLM, and other wordings of its question; None where there is none that fits."""
        prompt_ids = self._prompt_ids(item)
        turn = as_a_turn(self.backend, self.settings, item, demonstration(item), len(prompt_ids))
        if not prompt_ids or turn is None:
            return None
        rng = stream(self.settings.seed, "variants", step, index)
        questions = dict.fromkeys(with_words_left_out(item.question, rng) for _ in range(MOST_IMITATIONS))
        variants = [self._prompt_ids(replace(item, question=question)) for question in questions]
        return Demonstration(prompt_ids, turn, tuple(filter(None, variants)))

    async def _found(self, key: str, item: TaskItem, step: int) -> list[SimilarAnswer]:
        """What the model is sure of around a question whose answer it was not shown yet; and the question itself without an
        answer: so this is done once, and nobody keeps another answer to it."""
        rng = stream(self.settings.seed, "similar", key)
        drawn = (similar_question(item.question, rng, self._words, self._rarity) for _ in range(_SIMILAR))
        questions = [question for question in dict.fromkeys(drawn) if question != item.question]

        async def answered(number: int, question: str) -> SimilarAnswer | None:
            seeds = [derive_seed(self.settings.seed, "similar", step, key, number, sample) for sample in range(_SAMPLES)]
            responses = (await self._own_answers(replace(item, question=question), seeds)).responses
            return SimilarAnswer(key, question, responses[0].text) if _agree(responses) else None

        answers = await _all_that_succeed(answered(number, question) for number, question in enumerate(questions))
        return [SimilarAnswer(key, item.question, ""), *answers]

    async def _of_skills(self, step: int) -> list[KeptAnswer]:
        """What the model has right by itself of a few questions of each skill, others in each step."""
        seed = derive_seed(self.settings.seed, "skills", step)
        items: list[TaskItem] = []
        for source in self.skills.values():
            drawn = islice(source.train(seed), _CHECKED_OF_A_SKILL)
            items += islice(filter(self._prompt_ids, drawn), _OF_A_SKILL)

        async def answered(number: int, item: TaskItem) -> KeptAnswer | None:
            seeds = [derive_seed(seed, number, sample) for sample in range(_TRIES_OF_EACH)]
            group = await self._own_answers(item, seeds)
            for response in group.responses:
                turn = as_a_turn(self.backend, self.settings, item, response.text, len(group.prompt_ids))
                if turn is not None and await judge(self.verifier, item, response.text):
                    return KeptAnswer(group.prompt_ids, turn)
            return None

        return await _all_that_succeed(answered(number, item) for number, item in enumerate(items))

    def _prompt_ids(self, item: TaskItem) -> tuple[int, ...]:
        """The ids of the question's prompt; () where they leave no room for a response."""
        try:
            return self.backend.prompt_ids(self.settings.messages(item))
        except ContextOverflow:
            return ()

    async def _own_answers(self, item: TaskItem, seeds: Sequence[int]) -> PromptGroup:
        """What the model answers to a question by itself."""
        settings = self.settings
        sampling = settings.sampling(item, suppress_help=True, most=plain_limit(self.backend, settings, [item]))
        return await self.backend.sample_group(settings.messages(item), sampling, seeds)

    def stored(self, key: str) -> list[SimilarAnswer]:
        """[] where nothing was generated yet. Without answers to questions whose answer is given meanwhile."""
        query = """
            SELECT item, question, answer FROM kept_answers WHERE item = ?
            AND (answer = '' OR question NOT IN (SELECT question FROM kept_answers WHERE answer = '')) ORDER BY question
        """
        return [SimilarAnswer(*row) for row in self.state.rows(query, (key,))]

    def _kept(self, items: Mapping[str, TaskItem], answers: Iterable[SimilarAnswer]) -> list[KeptAnswer]:
        """As turns of the SLM; none to a question of this step."""
        given, kept = {item.question for item in items.values()}, []
        for one in answers:
            item = replace(items[one.item], question=one.question)
            prompt_ids = self._prompt_ids(item)
            turn = as_a_turn(self.backend, self.settings, item, one.answer, len(prompt_ids))
            if prompt_ids and turn is not None and one.question not in given:
                kept.append(KeptAnswer(prompt_ids, turn))
        return kept

    @cached_property
    def _words(self) -> list[str]:
        """Some words of the model's vocabulary."""
        rng, size = stream(self.settings.seed, "words"), self.backend.tokenizer.vocab_size
        found: dict[str, None] = {}
        for _ in range(_TRIES):
            try:
                text = self.backend.text_of([rng.randrange(size)])
            except EdgeError:  # an id without a text
                continue
            if text.startswith(" ") and len(text) > 3 and text[1:].isalpha():
                found[text[1:]] = None
            if len(found) == _MOST_WORDS:
                break
        return list(found)

    def _rarity(self, word: str) -> tuple[int, ...]:
        """Words of more tokens are rarer, and of tokens that were merged later."""
        tokens = self.backend.text_tokens(" " + word)
        return (len(tokens), max(tokens, default=0))


async def _all_that_succeed(answers: Iterable[Awaitable[T | None]]) -> list[T]:
    """What there is of them. One that fails is left out, as in a rollout: a question that does not fit, a sandbox that does not start."""

    async def one(answer: Awaitable[T | None]) -> T | None:
        try:
            return await answer
        except EdgeError:
            return None

    return [answer for answer in await all_of(map(one, answers)) if answer is not None]


def _agree(responses: Sequence[LocalResponse]) -> bool:
    finals = {final_answer(response.text) if response.finish is FinishReason.EOS else "" for response in responses}
    return len(finals) == 1 and "" not in finals
