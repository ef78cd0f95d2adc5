"""Taking back a version that turns out worse than one before it.

The gate lets a fall pass that is no larger than allowed, an adapter's file can be damaged later, and anchors show little of what a person
asks. So at a fixed interval of steps the version that serves is examined again, from its file, and compared item by item
with what each kept version, the best one so far and the bare model made of the same anchors; and its ratings with those of the version
before. Where one of them is better beyond chance (edge.training.promotion_rules) the best of them is active again, immediately.

It cannot flap: a version that was left is never gone back to by itself, and each going back leaves one. A version that a person went back
to by hand is left alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from edge.core.errors import AdapterError
from edge.evaluation.evaluate import Candidate
from edge.learning.checkpoints import Checkpoints
from edge.learning.promotion import Exam, Memory, candidates_by_source, results
from edge.state.folder import GATE_MEMORY, StateFolder
from edge.state.reader import BEST_VERSION
from edge.state.rows import exam_answers
from edge.training.promotion_rules import liked_less, lost_more

_CHECKED = "guard_checked"


@dataclass(frozen=True, slots=True)
class Rollback:
    """That `version` should make room for `better`, and why."""

    version: int
    better: int
    cause: Literal["anchors", "feedback", "damage"]
    reason: str


@dataclass(slots=True)
class RollbackMonitor:
    """Finds out whether the active version is worse than an earlier one. It decides only; who owns the engines goes back.

    `every`: steps between two exams (None: ratings only). `sound`: whether a version's files can be used.
    """

    state: StateFolder
    checkpoints: Checkpoints
    exam: Exam
    now: Callable[[], float]
    _: KW_ONLY
    every: int | None
    sound: Callable[[int], Awaitable[bool]]

    def exam_is_due(self) -> bool:
        """Whether enough steps were made since the last exam, and what serves may be left at all."""
        checked = int(self.state.meta(_CHECKED) or 0)
        steps_since = self.state.position().steps_done - checked
        return self.every is not None and steps_since >= self.every and self._may_be_left(self.state.lineage().serving)

    async def worse_than_before(self) -> Rollback | None:
        """What should be gone back to, and why; None when what serves may stay. Leaves any adapter in the engine when an exam was due."""
        return await self.disliked() or (await self._by_anchors(self.state.lineage().serving) if self.exam_is_due() else None)

    async def disliked(self) -> Rollback | None:
        """The same by people's ratings alone, which needs no engine and no step."""
        serving = self.state.lineage().serving
        return await self._by_verdicts(serving) if self._may_be_left(serving) else None

    def left(self) -> set[int]:
        """Versions that were taken back by themselves."""
        rows = self.state.database.execute("SELECT from_version FROM went_back WHERE by != 'person'")
        return {int(row[0]) for row in rows}

    def _may_be_left(self, serving: int) -> bool:
        row = self.state.database.execute("SELECT to_version, by FROM went_back ORDER BY id DESC LIMIT 1").fetchone()
        chosen_by_hand = row is not None and row[1] == "person" and int(row[0]) == serving
        return serving != 0 and serving not in self.left() and not chosen_by_hand

    async def _by_verdicts(self, serving: int) -> Rollback | None:
        before = self._served_before(serving)
        if before is None or before in self.left():
            return None
        (bad, total), (bad_before, total_before) = self._verdicts(serving), self._verdicts(before)
        if not liked_less(bad, total, bad_before, total_before) or not await self.sound(before):
            return None
        evidence = f"{bad} of {total} verdicts are bad, {bad_before} of {total_before} with the one before"
        return Rollback(serving, before, "feedback", evidence)

    async def _by_anchors(self, serving: int) -> Rollback | None:
        self.state.set_meta(_CHECKED, str(self.state.position().steps_done))
        candidates = candidates_by_source(Memory.from_json(self.state.meta(GATE_MEMORY)).anchors)
        every = [one for own in candidates.values() for one in own]
        lineage, left = self.state.lineage(), self.left()
        rivals = []
        for version in dict.fromkeys((0, self.state.best_version(), *lineage.kept)):
            on_disk = version == 0 or self.checkpoints.at(version) is not None
            if version != serving and version not in left and on_disk and await self.sound(version):
                rivals.append(version)
        if not every or not rivals:
            return None
        now = await self._examined(serving, candidates, every)
        if now is None:
            return Rollback(serving, max(rivals), "damage", "its files can no longer be read")
        right = {version: await self._known(version, candidates, every) for version in rivals}
        in_order = sorted(rivals, key=lambda version: (sum(right[version].values()), version), reverse=True)
        worse = [found for version in in_order if (found := _worse(serving, version, candidates, now, right[version]))]
        best = in_order[0] if worse or sum(right[in_order[0]].values()) > sum(now.values()) else serving
        self.state.set_meta(BEST_VERSION, str(best))
        return worse[0] if worse else None

    async def _known(
        self, version: int, candidates: Mapping[str, list[Candidate]], every: Sequence[Candidate]
    ) -> dict[str, bool]:
        """What a version made of the items, from earlier exams as far as they go."""
        known: dict[str, bool] = {}
        query = "SELECT verdicts FROM exams WHERE adapter_version = ? ORDER BY id"
        for (text,) in self.state.database.execute(query, (version,)):
            known |= {key: answer.right for key, answer in exam_answers(text).items()}
        missing = [one for one in every if one.key not in known]
        if missing:
            known |= await self._examined(version, candidates, missing) or {}
        return {one.key: known[one.key] for one in every if one.key in known}

    async def _examined(
        self, version: int, candidates: Mapping[str, list[Candidate]], items: Sequence[Candidate]
    ) -> dict[str, bool] | None:
        """A new exam, kept; None where the adapter cannot be loaded."""
        checkpoint = self.checkpoints.at(version) if version else None
        try:
            answers = await self.exam(checkpoint.adapter if checkpoint else None, items)
        except AdapterError:
            return None
        self.state.put_exams(results(version, candidates, answers), self.now())
        return {key: answer.right for key, answer in answers.items()}

    def _served_before(self, serving: int) -> int | None:
        """The version that served before the one that serves was promoted."""
        query = (
            "SELECT json_extract(event, '$.serving_version') FROM steps WHERE step < ?"
            " AND json_extract(event, '$.serving_version') NOT IN (-1, ?) ORDER BY step DESC LIMIT 1"
        )
        row = self.state.database.execute(query, (serving, serving)).fetchone()
        return None if row is None else int(row[0])

    def _verdicts(self, version: int) -> tuple[int, int]:
        """Bad ratings and all, of this version's own answers: what the cloud answered is not its doing.

        A question that was asked again and again is one piece of evidence, with its last rating; one among others is one of its own.
        """
        query = (
            "SELECT count(*), coalesce(sum(verdict = 'bad'), 0) FROM (SELECT f.verdict, max(f.rowid) FROM feedback f"
            " JOIN requests r ON r.id = f.request_id"
            " WHERE json_extract(r.record, '$.adapter_version') = ? AND json_extract(r.record, '$.source') != 'cloud'"
            " GROUP BY json_extract(r.record, '$.task'), trim(json_extract(r.record, '$.prompt')),"
            " CASE WHEN coalesce(json_extract(r.record, '$.turns'), 1) > 1 THEN r.id END)"
        )
        total, bad = self.state.database.execute(query, (version,)).fetchone()
        return int(bad), int(total)


def _worse(
    serving: int, version: int, candidates: Mapping[str, list[Candidate]], now: Mapping[str, bool], then: Mapping[str, bool]
) -> Rollback | None:
    """Over all anchors together, or over those of one source."""
    for source in (None, *candidates):
        keys = [one.key for own, items in candidates.items() if source in (None, own) for one in items if one.key in then]
        lost = sum(then[key] and not now[key] for key in keys)
        gained = sum(now[key] and not then[key] for key in keys)
        if lost_more(lost, gained):
            where = f" of {source}" if source else ""
            evidence = (
                f"of {len(keys)} validation questions{where} {lost} are wrong that were right, {gained} are right that were wrong"
            )
            return Rollback(serving, version, "anchors", evidence)
    return None
