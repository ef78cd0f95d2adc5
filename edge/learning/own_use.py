"""Learning from one's own use: corrections and verdicts on answers, and watched task files, between the steps of the phases."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge.core.answer_key import Form, OwnKey, is_number, is_short, plain_words
from edge.core.choices import chosen_option, listed_options
from edge.core.errors import CoordinatorError, EdgeError, PermissionDenied, TaskFileError
from edge.core.formatting import shown
from edge.core.rng import derive_seed
from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import final_answer
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.evaluation.judging import Candidate
from edge.learning.curriculum import StepPlan
from edge.state.feedback import Feedback, FeedbackBook, RatedAnswer
from edge.state.folder import StateFolder
from edge.tasks.jsonl import FEWEST_TO_HOLD_OUT, SUFFIXES, notes_of, read_items

SOURCE, WATCHED = "mine", "watched"
LEARNED_LATER = "learned from by the next `edge-agent run`"
"""Of a verdict that no agent is learning from now."""
MOST_ANSWERS = 2000
"""Of these newest answers with verdicts, and as many of the cloud's without, items are made."""
_STEPS = 4
_LEFT = ("completed", "in_doubt")
"""What becomes of calls that are known to have reached the cloud LLM."""
_LETTER = re.compile(r"\(?([A-Ja-j])[.):]?\)?")


@dataclass(frozen=True, slots=True)
class OwnItem:
    """An item under its key (`own_item` makes both); `sent`: its question has reached the cloud before, when it was answered. What was
    withheld or met nobody has not."""

    item: TaskItem
    sent: bool
    key: str


def own_item(item: TaskItem, *, sent: bool) -> OwnItem:
    """An item with its key, by which its uses are counted: all that is asked and how it is judged; a corrected answer makes another."""
    return OwnItem(item, sent, Candidate(item).key)


@dataclass(slots=True)
class _Known:
    """What the answers to one question show of it, in the order of the verdicts."""

    task: str
    prompt: str
    sent: bool = False
    corrections: list[str] = field(default_factory=list)
    liked: list[str] = field(default_factory=list)
    disliked: list[str] = field(default_factory=list)
    agreed: list[str] = field(default_factory=list)


def is_own(source: str) -> bool:
    """Whether a step's source is one's own use and not a phase's."""
    return source.startswith((f"{SOURCE}:", f"{WATCHED}:"))


def own_items(book: FeedbackBook, *, feedback: bool, agreement: bool) -> list[OwnItem]:
    """The items that can be learned from, in a fixed order: a pure function of what the state folder holds."""
    answers = list(book.rated(MOST_ANSWERS)) if feedback or agreement else []
    helped = list(book.helped(MOST_ANSWERS)) if agreement else []
    known = _gathered(answers, use_verdicts=feedback, agreement=agreement)
    for question, more in _gathered(helped, use_verdicts=False, agreement=agreement).items():
        mine = known.setdefault(question, more)
        if mine is not more:
            mine.agreed += more.agreed
            mine.sent = mine.sent or more.sent
    items = (_item(one) for one in known.values())
    return sorted((item for item in items if item is not None), key=lambda one: one.item.id)


def outlook(record: Mapping[str, Any], feedback: Feedback, *, learns: bool, when: str) -> str:
    """What a person who gave a verdict may expect of it; "" for one that was taken back.

    `learns`: whether verdicts are learned from at all; `when`: when the next one is.
    """
    if feedback.verdict == "none":
        return ""
    if not learns:
        return "not learned from: use.feedback is false, or use.share 0"
    if _not_alone(record):
        return "not learned from: a question is learned that stands alone; ask it in a new chat and correct it there"
    if feedback.verdict == "bad" and feedback.correction is None:
        return "say what is right, and it is learned"
    return when


def _not_alone(record: Mapping[str, Any]) -> bool:
    """Whether a question is one among others of a conversation, or was held to a form or tools, which no training question is."""
    return int(record.get("turns") or 1) > 1 or bool(record.get("held"))


def _gathered(answers: Iterable[RatedAnswer], *, use_verdicts: bool, agreement: bool) -> dict[tuple[str, str], _Known]:
    """By task and words of the question. An answer that was cut is none to learn."""
    known: dict[tuple[str, str], _Known] = {}
    for answer in answers:
        record, feedback = answer.record, answer.feedback
        prompt, task = str(record.get("prompt") or "").strip(), str(record.get("task") or "")
        if not prompt or not task or _not_alone(record):
            continue
        final, whole = final_answer(str(record.get("final") or "")), record.get("finish", "stop") == "stop"
        one = known.setdefault((task, plain_words(prompt)), _Known(task, prompt))
        one.sent = one.sent or bool(record.get("call_state") in _LEFT or record.get("cloud_text"))
        if use_verdicts and feedback.correction:
            one.corrections.append(final_answer(feedback.correction))
        if use_verdicts and feedback.verdict == "bad" and final:
            one.disliked.append(final)
        if use_verdicts and feedback.verdict == "good" and final and whole and not feedback.correction:
            one.liked.append(final)
        if agreement and record.get("source") == "cloud" and feedback.verdict != "bad" and whole:
            one.agreed.append(final)
    return known


def _item(known: _Known) -> OwnItem | None:
    """None where no right answer is known, and for open questions whose answer only agreement would show.

    Right is the newest correction, else every liked answer that was not disliked later, else what the cloud answered last.
    """
    if known.corrections:
        right: tuple[str, ...] = (known.corrections[-1],)
    else:
        disliked = {plain_words(answer) for answer in known.disliked}
        liked = [answer for answer in known.liked if plain_words(answer) not in disliked]
        agreed = [answer for answer in known.agreed if answer and plain_words(answer) not in disliked]
        right = tuple(dict.fromkeys(liked)) or tuple(agreed[-1:])
    closed = all(map(is_short, right))
    if not right or (not closed and not (known.corrections or known.liked)):
        return None
    listed = listed_options(known.prompt)
    options, first = (listed.options, listed.first_number) if listed else ((), None)
    form: Form = "text"
    if options and all(_LETTER.fullmatch(answer) or chosen_option(answer, options, first) is not None for answer in right):
        form = "choice"
    elif all(map(is_number, right)):
        form = "math"
    wrong = tuple(dict.fromkeys(answer for answer in known.disliked if answer not in right))
    digest = hashlib.sha256(f"{known.task}\x1f{plain_words(known.prompt)}".encode("utf-8", "surrogatepass")).hexdigest()
    item = TaskItem(
        id=f"{SOURCE}/{digest[:16]}",
        task=known.task,
        family=SOURCE,
        level=0,
        split="train",
        question=known.prompt,
        answer=OwnKey(form, right, wrong, closed, options if form == "choice" else ()).to_json(),
        kind=AnswerKind.FEEDBACK,
        max_steps=STEP_LIMITS.get(known.task, _STEPS),
    )
    return own_item(item, sent=known.sent)


MOST_FILES = 200
MOST_BYTES = 64 << 20
MOST_ITEMS = 100_000
"""Of one file; every item is checked before each step of one's own use."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was read: size and time of change show whether it must be read again, the digest whether it is another one.

    `problem`: why none of it is used; `notes`: what a person should know of its items.
    """

    size: int
    changed_ns: int
    digest: str
    items: tuple[OwnItem, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class WatchedFolder:
    """The task files of one folder (edge.tasks.jsonl.SUFFIXES).

    `notice` is called once for each bad file (and again when its content changes), and when the folder cannot be read.
    """

    folder: Path
    notice: Callable[[str], None]
    items: tuple[OwnItem, ...] = field(default=(), init=False)
    """Of every good file at the last check, files in the order of their names; a question that stands in several counts once."""
    _checking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _notices: list[str] = field(default_factory=list, init=False)
    _files: dict[Path, _File] = field(default_factory=dict, init=False)
    _half: dict[Path, tuple[int, int]] = field(default_factory=dict, init=False)
    _folder_problem: str = field(default="", init=False)

    async def check(self) -> None:
        """Read what has changed. `items` is another object only when something has."""
        async with self._checking:
            items = await asyncio.to_thread(self._read_changed)
            if items is not None:
                self.items = items
            notices, self._notices = self._notices, []
        for text in notices:
            self.notice(text)

    def _read_changed(self) -> tuple[OwnItem, ...] | None:
        """None where every file holds what it held."""
        before = {path: file.digest for path, file in self._files.items()}
        problem, paths = "", []
        try:
            paths = sorted(
                path for path in self.folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
            )
        except OSError as error:
            problem = (
                f"{self.folder}: the folder of task files cannot be read ({error.strerror}); make it, or change use.tasks_folder"
            )
        if len(paths) > MOST_FILES:
            problem = f"{self.folder}: {len(paths)} task files; the first {MOST_FILES} by name are used"
        if problem and problem != self._folder_problem:
            self._notices.append(problem)
        self._folder_problem = problem
        for gone in set(self._files) - set(paths[:MOST_FILES]):
            del self._files[gone]
        for path in paths[:MOST_FILES]:
            self._check_file(path)
        if before == {path: file.digest for path, file in self._files.items()}:
            return None
        found: dict[tuple[str, str, str], OwnItem] = {}
        for path in sorted(self._files):
            for one in self._files[path].items:
                found.setdefault((one.item.task, one.item.question, one.item.answer), one)
        return tuple(found.values())

    def _check_file(self, path: Path) -> None:
        known = self._files.get(path)
        try:
            before = path.stat()
            if not path.is_file() or (known and (known.size, known.changed_ns) == (before.st_size, before.st_mtime_ns)):
                return
            content = path.read_bytes() if before.st_size <= MOST_BYTES else b""
            after = path.stat()
        except OSError as error:
            self._take(path, _File(-1, -1, "", problem=f"cannot be read ({error.strerror})"))
            return
        seen = (after.st_size, after.st_mtime_ns)
        if (before.st_size, before.st_mtime_ns) != seen:
            return
        if not content.endswith((b"\n", b"}")) and self._half.get(path) != seen:
            self._half[path] = seen  # a last line without an end may still grow: it is given until the next check
            return
        self._half.pop(path, None)
        digest = hashlib.sha256(content).hexdigest()
        if known and known.digest == digest:
            self._files[path] = replace(known, size=seen[0], changed_ns=seen[1])
        else:
            self._take(path, _read(path, seen, digest))

    def _take(self, path: Path, file: _File) -> None:
        known, self._files[path] = self._files.get(path), file
        if file.problem and (known is None or known.problem != file.problem or known.digest != file.digest):
            problem = file.problem.removeprefix(f"{path}: ").removeprefix(f"{path}:")
            where = ":" if file.problem.startswith(f"{path}:") and not file.problem.startswith(f"{path}: ") else ": "
            self._notices.append(f"{shown(path.name)}{where}{problem}; the file is left out until it changes")
        self._notices += [f"{shown(path.name)}: {note}" for note in file.notes]


def _read(path: Path, seen: tuple[int, int], digest: str) -> _File:
    if seen[0] > MOST_BYTES:
        return _File(*seen, digest, problem=f"larger than {MOST_BYTES >> 20} MiB")
    try:
        items = read_items(path)
    except TaskFileError as error:
        return _File(*seen, digest, problem=str(error))
    answered = [item for item in items if item.answer]
    if not answered:
        return _File(*seen, digest, problem="has only items without an answer, which nobody can judge")
    most = (f"has {len(answered)} items; the first {MOST_ITEMS} are used",) if len(answered) > MOST_ITEMS else ()
    return _File(
        *seen, digest, tuple(own_item(item, sent=True) for item in answered[:MOST_ITEMS]), notes=(*notes_of(items), *most)
    )


_HELD_OUT_OF = 10
"""One in so many of one's own questions is held out to be examined on, where a label has FEWEST_TO_HOLD_OUT. Task files state theirs."""


MOST_SHOWN, MOST_REHEARSED = 8, 8


@dataclass(frozen=True, slots=True)
class OwnUseRules:
    """`share`: of all steps; `passes`: how often an item is learned from; `target_rate`: τ of labels that have none from elsewhere;
    `demonstrates`: known answers are learned from where few responses are right. Such a step is no pass: the item comes again until it was
    right in `passes` steps, or its answer was shown MOST_SHOWN times as often."""

    feedback: bool = True
    agreement: bool = False
    share: float = 0.25
    passes: int = 4
    target_rate: float = 0.3
    demonstrates: bool = True

    @property
    def learns_verdicts(self) -> bool:
        """Whether verdicts have any share of the steps."""
        return self.feedback and self.share > 0


@dataclass(frozen=True, slots=True)
class OwnSource:
    """The items of one label: `train` to learn from, `held_out` to be examined on."""

    name: str
    task: str
    train: tuple[OwnItem, ...]
    held_out: tuple[OwnItem, ...]


@dataclass(frozen=True, slots=True)
class Through:
    """A source that has had all its steps: how many questions it has, and those that never became right."""

    source: str
    questions: int
    not_learned: tuple[str, ...]


class OwnUse:
    """The sources of one's own use, and the steps that are theirs."""

    def __init__(
        self,
        state: StateFolder,
        rules: OwnUseRules,
        folder: WatchedFolder | None,
        seed: int,
        prompts_per_step: int,
        rate_of: Callable[[str], float | None] = lambda task: None,
    ) -> None:
        """`rate_of`: the τ that the phases hold a label to, None where they do not know it."""
        self._state = state
        self.rules = rules
        self._folder = folder
        self._seed = seed
        self._prompts = prompts_per_step
        self._rate_of = rate_of
        self._book = FeedbackBook(state)
        self._sorted_out: tuple[tuple[OwnItem, ...], set[str], list[OwnSource]] = ((), set(), [])
        self.left_out: set[str] = set()
        """Labels that the coordinator does not let this device work on."""

    async def sources(self) -> list[OwnSource]:
        """What there is now, by name."""
        if self._folder is not None:
            await self._folder.check()
        return self._sources()

    async def fresh(self) -> int:
        """How many items are there to be learned from; none where own use has no share of the steps."""
        sources, (uses, _) = await self.sources(), self._uses()
        if self.rules.share <= 0.0:
            return 0
        return sum(uses.get(one.key, 0) < self.rules.passes for source in sources for one in source.train)

    async def through(self) -> list[Through]:
        """The sources of which every question was learned from as often as it may be; where these are all, their sum under the name ""."""
        sources, (uses, given_up) = await self.sources(), self._uses()
        if self.rules.share <= 0.0:
            return []
        with_questions = [source for source in sources if source.train]
        through = [
            Through(source.name, len(source.train), tuple(one.item.question for one in source.train if one.key in given_up))
            for source in with_questions
            if all(uses.get(one.key, 0) >= self.rules.passes for one in source.train)
        ]
        if through and len(through) == len(with_questions):
            not_learned = tuple(question for one in through for question in one.not_learned)
            through.append(Through("", sum(one.questions for one in through), not_learned))
        return through

    async def next_step(self, plan: StepPlan | None) -> StepPlan | None:
        """The step that comes instead of the phases' `plan` (None: they are done), or that plan.

        The number of planned steps is that of the phases and one's own; None where the phases are without end or done.
        """
        position, planned = self._state.position(), None
        if plan is not None:
            planned = None if plan.steps_planned is None else plan.steps_planned + self._own_steps()
            plan = replace(plan, steps_planned=planned)
        step, share = position.steps_done + 1, self.rules.share if plan is not None else 1.0
        turn = math.floor(step * share + 1e-9)
        if self.rules.share <= 0.0:
            return plan
        sources, (uses, _) = await self.sources(), self._uses()
        if turn == math.floor((step - 1) * share + 1e-9):
            return plan and replace(plan, rehearsed=self._rehearsed(sources, uses, step))
        ready = await asyncio.to_thread(self._ready, sources, uses)
        if not ready:
            return plan and replace(plan, rehearsed=self._rehearsed(sources, uses, step))
        source, left = ready[turn % len(ready)]
        chosen = left[: self._prompts]
        passes_left = sum(self.rules.passes - uses.get(one.key, 0) for _, items in ready for one in items)
        phase_rate, known = self._rate_of(source.task), self._state.terms(source.task)
        return StepPlan(
            step=step,
            steps_planned=None if planned is None else planned + 1,
            phase=position.phase,
            phase_step=position.phase_step,
            source=source.name,
            task=source.task,
            target_rate=phase_rate if phase_rate is not None else known.target_rate if known else self.rules.target_rate,
            items=tuple(one.item for one in chosen),
            cursor_seed=self._seed,
            cursor_after=self._state.cursor(source.name, self._seed) + len(chosen),
            ends_phase=plan is None and passes_left == len(chosen),  # the step that uses the last of it up is judged
            own=True,
            phases_done=plan is None,
            stay_here=frozenset(one.item.id for one in chosen if not one.sent),
            used=tuple(one.key for one in chosen),
            demonstrates=self.rules.demonstrates,
            generalises=bool(source.held_out),
        )

    def anchors(self, source: str, limit: int) -> tuple[TaskItem, ...] | None:
        """A uniform sample of at most `limit` items that stand for a source as they were when it was last checked, by the seed; None
        where there was no such source any more.

        Each item has a number drawn by its content, and the smallest are the sample: when items come and go, the others stay in it.
        """
        found = next((one for one in self._sources() if one.name == source), None)
        if found is None:
            return None
        drawn = heapq.nsmallest(limit, found.held_out or found.train, key=lambda one: derive_seed(self._seed, "anchor", one.key))
        return tuple(one.item for one in drawn)

    def leave_out(self, plan: StepPlan, error: EdgeError) -> None:
        """Learn no more from the items of a step that cannot be made; a label that may not be worked on goes as a whole until a restart."""
        if isinstance(error, CoordinatorError):
            self.left_out.add(plan.task)
            return
        with self._state.database as database:
            for item in plan.used:
                database.execute("REPLACE INTO item_uses VALUES (?, ?, ?)", (item, self.rules.passes, plan.step))
                database.execute("DELETE FROM demonstrated WHERE item = ?", (item,))

    def _sources(self) -> list[OwnSource]:
        """Those of the watched files are made anew only when files or labels have changed."""
        mine = own_items(self._book, feedback=self.rules.feedback, agreement=self.rules.agreement)
        items = self._folder.items if self._folder else ()
        if self._sorted_out[0] is not items or self._sorted_out[1] != self.left_out:
            self._sorted_out = (items, set(self.left_out), self._by_label(WATCHED, items))
        return [*self._by_label(SOURCE, mine), *self._sorted_out[2]]

    def _rehearsed(self, sources: Sequence[OwnSource], uses: Mapping[str, int], step: int) -> tuple[TaskItem, ...]:
        """Some of what has been learned by heart, others at each step; nothing of a label that teaches a rule."""
        if not self.rules.demonstrates:
            return ()
        learned = [one for source in sources if not source.held_out for one in source.train if one.key in uses]
        drawn = heapq.nsmallest(MOST_REHEARSED, learned, key=lambda one: derive_seed(self._seed, "rehearsed", one.key, step))
        return tuple(one.item for one in drawn)

    def _ready(self, sources: Sequence[OwnSource], uses: Mapping[str, int]) -> list[tuple[OwnSource, list[OwnItem]]]:
        """The sources that have items with passes left, with these: the least used first, drawn anew for each pass."""
        ready = []
        for source in sources:
            left = [(used, one) for one in source.train if (used := uses.get(one.key, 0)) < self.rules.passes]
            drawn = sorted(left, key=lambda entry: (entry[0], derive_seed(self._seed, "own", entry[1].key, entry[0])))
            if drawn:
                ready.append((source, [one for _, one in drawn]))
        return ready

    def _by_label(self, kind: str, items: Iterable[OwnItem]) -> list[OwnSource]:
        labels: dict[str, list[OwnItem]] = {}
        for one in items:
            if one.item.task not in self.left_out:
                labels.setdefault(one.item.task, []).append(one)
        sources = []
        for task in sorted(labels):
            some_held_out, train, held_out = kind == SOURCE and len(labels[task]) >= FEWEST_TO_HOLD_OUT, [], []
            for one in labels[task]:
                drawn = some_held_out and derive_seed(0, "held out", one.item.id) % _HELD_OUT_OF == 0
                if one.item.split == "test" or drawn:
                    held_out.append(replace(one, item=replace(one.item, split="test")))
                else:
                    train.append(one)
            sources.append(OwnSource(f"{kind}:{task}", task, tuple(train), tuple(held_out)))
        return sources

    def _uses(self) -> tuple[dict[str, int], set[str]]:
        """Passes by item: the steps in which its answer had not to be shown. One whose answer was shown as often as it may be, and that was
        hardly ever right, is given up and has them all; these are the second part."""
        query = "SELECT item, uses, coalesce(times, 0) FROM item_uses LEFT JOIN demonstrated USING (item)"
        passes, uses, given_up = self.rules.passes, dict[str, int](), set[str]()
        for item, steps, times in self._state.database.execute(query):
            uses[item] = steps - times
            if times >= MOST_SHOWN * passes and steps - times < passes:
                uses[item] = steps
                given_up.add(item)
        return uses, given_up

    def _own_steps(self) -> int:
        query = (
            "SELECT count(*) FROM steps WHERE json_extract(event, '$.source') GLOB ? OR json_extract(event, '$.source') GLOB ?"
        )
        return int(self._state.database.execute(query, (f"{SOURCE}:*", f"{WATCHED}:*")).fetchone()[0])


def is_about_the_device(error: EdgeError) -> bool:
    """Whether an error is of this device, and not of a question or its label."""
    return isinstance(error, PermissionDenied) and error.reason != PermissionDenied.reason
