"""What a step imitates: given answers that the model would not give, and also answers that the model is to keep.

Whether it would give an answer is read from the probability that it has after its question; no response has to be sampled for that.

Updates on a few given answers would change what the model answers to other questions: of forty sums that nano-edge had right, it had
thirteen after five corrections (tools/experiments/LOG.md). So in each such step the model also answers questions of other skills, right or
not, and is held to the probabilities that it has along these responses. A bundled model knows nothing but such skills; before one is shown
an answer for the first time, it also answers questions that differ from its question in a number or a word. Where its responses agree, it
knows the answer, and is held to it, too.

Few answers leak into many others: after a step that showed five, SmolLM2 answered other questions with them (30 of 144 general answers were
names of what it had been taught, 9 before). So known answers are imitated with them, up to SHOWN_AT_ONCE in all: which answer belongs to
which question is learned again each time (13 of 144 then; of fifteen facts learned before 13 instead of 6 in another wording).

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
from edge.core.forms import PlainForm
from edge.core.rng import derive_seed, stream
from edge.core.types import Demonstration, FinishReason, KeptAnswer, LocalResponse, PromptGroup, TaskItem, Turn
from edge.dagrpo.answers import final_answer
from edge.dagrpo.demonstrations import demonstration, similar_question, with_words_left_out
from edge.evaluation.judging import Candidate, RolloutSettings
from edge.inference.backend import InferenceBackend
from edge.learning.curriculum import StepPlan
from edge.learning.rollout import ScoredGroup, as_a_turn
from edge.state.folder import StateFolder
from edge.state.rows import SimilarAnswer
from edge.tasks.source import TaskSource
from edge.training.learner import KNOWN_NATS, SHOWN_AT_ONCE, Learner

T = TypeVar("T")
_KNOWN = 0.5
"""Share of right responses from which on an answer is known."""
_SIMILAR, _SAMPLES = 16, 2
"""Questions like one whose answer is given, and the model's responses to each of them, which have to agree."""
_OF_SKILLS = 128
"""Questions of all skills together that are answered in a step."""
_KEPT_TOKENS = 12
"""Most tokens of a plain answer that the model is held to: what it begins with decides what it says."""
_CHECKED_OF_A_SKILL = 128
"""Questions of each skill that are tried before learning begins, and from which those of a step are chosen."""
_VARIANTS = 16
"""Other wordings that are made of a question."""
_MOST_WORDS, _TRIES = 256, 2000


@dataclass(frozen=True, slots=True)
class ImitationBatch:
    """For `Learner.imitate`."""

    demonstrations: tuple[Demonstration, ...]
    """Given answers that the model would not give."""
    repeated: tuple[Demonstration, ...] = ()
    """Known ones that are imitated with them."""
    kept: tuple[KeptAnswer, ...] = ()
    shown: tuple[str, ...] = ()
    """Keys of the step's own items among the demonstrations; others are rehearsed."""
    found: tuple[SimilarAnswer, ...] = ()
    """What is to be kept from now on."""
    known: int = 0
    """Given answers that were read and that the model would give."""
    known_by_heart: int = 0
    """Of these, answers to the plan's `by_heart`."""


NOTHING_GIVEN = ImitationBatch(())


@dataclass(frozen=True, slots=True)
class _Given:
    """An item with its given answer. `is_own`: of the step; `is_right`: half of its responses are right by themselves."""

    item: TaskItem
    key: str
    demonstration: Demonstration
    is_own: bool
    is_right: bool


@dataclass
class GivenAnswers:
    """Makes the batches, from the engine that samples for the learner."""

    backend: InferenceBackend
    settings: RolloutSettings
    state: StateFolder
    skills: Mapping[str, TaskSource] = field(default_factory=dict)

    def check_skills(self) -> list[str]:
        """What a person should know before learning begins: a line for each skill with questions that do not fit the context."""
        notes = []
        for name, source in self.skills.items():
            items = list(islice(source.train(self.settings.seed), _CHECKED_OF_A_SKILL))
            if too_long := sum(not self._prompt_ids(item) for item in items):
                hint = "; it is not kept up: raise learning.context_tokens" if too_long == len(items) else ", and are left out"
                notes.append(
                    f"learning.imitation.skills: {too_long} of {len(items)} questions of {name} do not fit the context{hint}"
                )
        return notes

    async def batch(self, plan: StepPlan, groups: Sequence[ScoredGroup], learner: Learner) -> ImitationBatch:
        """Given answers that are not known: those of the step's items, and others that are learned by heart. As many as one step shows,
        with what is to be kept meanwhile."""
        given = self._given(plan, groups)
        nats = await learner.nats([one.demonstration for one in given])
        to_show = [one for one, nat in zip(given, nats, strict=True) if nat > KNOWN_NATS and not one.is_right]
        unknown, known = to_show[:SHOWN_AT_ONCE], [one for one in given if one not in to_show]
        by_heart = {item.id for item in plan.by_heart}
        known_by_heart = sum(one.item.id in by_heart for one in known)
        if not unknown:
            return ImitationBatch((), known=len(known), known_by_heart=known_by_heart)
        items = {one.key: one.item for one in unknown}
        stored = {key: self.stored(key) for key in items}
        found: list[SimilarAnswer] = []
        if plan.demonstrates and not plan.generalises and self.settings.prompt_form == "compact":
            new = [(key, item) for key, item in items.items() if not stored[key]]
            found = list(chain.from_iterable(await all_of(self._found(key, item, plan.step) for key, item in new)))
        similar = self._kept(items, [*chain.from_iterable(stored.values()), *found])
        repeated = [one for one, nat in zip(given, nats, strict=True) if nat <= KNOWN_NATS]
        stream(self.settings.seed, "repeated", plan.step).shuffle(repeated)
        repeated = repeated[: SHOWN_AT_ONCE - len(unknown)]
        similar += [KeptAnswer(one.demonstration.prompt_ids, one.demonstration.turn) for one in known if one not in repeated]
        stream(self.settings.seed, "kept", plan.step).shuffle(similar)
        others = await self._of_skills(plan.step)
        shown = tuple(self._with_variants(one, plan.step, index) for index, one in enumerate((*unknown, *repeated)))
        return ImitationBatch(
            demonstrations=shown[: len(unknown)],
            repeated=shown[len(unknown) :],
            kept=tuple(_taking_turns(similar, others)),
            shown=tuple(one.key for one in unknown if one.is_own),
            found=tuple(found),
            known=len(known),
            known_by_heart=known_by_heart,
        )

    def _given(self, plan: StepPlan, groups: Sequence[ScoredGroup]) -> list[_Given]:
        """Of the step's items, those to be known by heart and the rehearsed: what may have to be shown, without answers that do not fit."""
        if not plan.demonstrates:
            own = []
        elif plan.generalises:
            own = [group for group in groups if group.right_alone == 0 and not group.item.options]
        else:
            own = list(groups)
        right = {group.item.id: group.right_alone >= _KNOWN for group in own}
        items = {item.id: item for item in (*(group.item for group in own), *plan.by_heart, *plan.rehearsed)}
        given = []
        for item in items.values():
            if (made := self._demonstration(item)) is not None:
                given.append(_Given(item, Candidate(item).key, made, item.id in right, right.get(item.id, False)))
        return given

    def _demonstration(self, item: TaskItem) -> Demonstration | None:
        """The given answer as a turn of the SLM; None where there is none that fits."""
        prompt_ids = self._prompt_ids(item)
        turn = as_a_turn(self.backend, self.settings, item, demonstration(item), len(prompt_ids))
        return None if not prompt_ids or turn is None else Demonstration(prompt_ids, turn)

    def _with_variants(self, one: _Given, step: int, index: int) -> Demonstration:
        """With other wordings of its question."""
        rng = stream(self.settings.seed, "variants", step, index)
        questions = dict.fromkeys(with_words_left_out(one.item.question, rng) for _ in range(_VARIANTS))
        variants = [self._prompt_ids(replace(one.item, question=question)) for question in questions]
        return replace(one.demonstration, variants=tuple(filter(None, variants)))

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
        """What the model answers by itself to questions of its skills, others in each step."""
        seed = derive_seed(self.settings.seed, "skills", step)
        items: list[TaskItem] = []
        for source in self.skills.values():
            drawn = islice(source.train(seed), _CHECKED_OF_A_SKILL)
            items += islice(filter(self._prompt_ids, drawn), _OF_SKILLS // len(self.skills))

        async def answered(number: int, item: TaskItem) -> KeptAnswer | None:
            most = _KEPT_TOKENS if isinstance(self.settings.form_of(item), PlainForm) else None
            group = await self._own_answers(item, [derive_seed(seed, number)], most)
            (response,) = group.responses
            return KeptAnswer(group.prompt_ids, Turn(response.token_ids, response.allowed)) if response.token_ids else None

        return await _all_that_succeed(answered(number, item) for number, item in enumerate(items))

    def _prompt_ids(self, item: TaskItem) -> tuple[int, ...]:
        """The ids of the question's prompt; () where they leave no room for a response."""
        try:
            return self.backend.prompt_ids(self.settings.messages(item))
        except ContextOverflow:
            return ()

    async def _own_answers(self, item: TaskItem, seeds: Sequence[int], most: int | None = None) -> PromptGroup:
        """What the model answers to a question by itself, in at most so many tokens."""
        settings = self.settings
        sampling = settings.sampling(item, suppress_help=True)
        sampling = replace(sampling, max_tokens=min(most or sampling.max_tokens, sampling.max_tokens))
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


def _taking_turns(some: Sequence[T], others: Sequence[T]) -> list[T]:
    """One of each in turn until all of the longer list have come; the shorter one begins again."""
    if not some or not others:
        return [*some, *others]
    turns = zip(*(islice(cycle(each), max(len(some), len(others))) for each in (some, others)), strict=True)
    return [*chain.from_iterable(turns)]


def _agree(responses: Sequence[LocalResponse]) -> bool:
    finals = {final_answer(response.text) if response.finish is FinishReason.EOS else "" for response in responses}
    return len(finals) == 1 and "" not in finals
