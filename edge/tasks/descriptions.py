"""What a task source holds: families, levels, counts, examples, samples, and as many held-out items of every level of every family."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge.core.errors import UsageError
from edge.core.formatting import counted
from edge.core.rng import stream
from edge.core.types import Split, TaskItem
from edge.tasks.datasets.catalogue import DATA_SETS, DataSet
from edge.tasks.datasets.source import DataSetSource
from edge.tasks.jsonl import JsonLinesSource
from edge.tasks.practice import FAMILIES, GROUPS, PracticeSource
from edge.tasks.source import ListedItems, TaskSource, listed_items


@dataclass(frozen=True, slots=True)
class SourceAbout:
    """One source in a list. `kind` is practice, data set or file; `levels` is per family; `train` and `test` count items (None: unlimited).

    `judged_as` are the kinds of answer; `where` is how to get it; `about` what it asks; `notes` what of it cannot be judged.
    """

    name: str
    kind: str
    judged_as: tuple[str, ...]
    families: tuple[str, ...]
    levels: Mapping[str, tuple[int, ...]]
    labels: tuple[str, ...]
    max_steps: tuple[int, ...]
    train: int | None
    test: int | None
    where: str
    about: str
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all_levels(self) -> tuple[int, ...]:
        """The levels of all families together."""
        return tuple(sorted({level for levels in self.levels.values() for level in levels}))


def known_sources() -> list[SourceAbout]:
    """Every source that has a name: practice families, practice groups, data sets. Opens and downloads nothing."""
    practice = [_about_practice(name) for name in (*FAMILIES, *GROUPS)]
    return [*practice, *(_about_data_set(data_set) for data_set in DATA_SETS.values())]


def about(source: TaskSource) -> SourceAbout:
    """What an open source holds; reads its items where it is a list."""
    if isinstance(source, PracticeSource):
        return _about_practice(source.name.removeprefix("practice:"))
    if isinstance(source, DataSetSource):
        description = _about_data_set(source.data_set)
        listed = _about_listed(source.name, description.kind, source.items)
        return replace(listed, about=description.about, left_out=tuple(source.left_out))
    if isinstance(source, JsonLinesSource):
        return replace(_about_listed(source.name, "file", source), notes=source.notes)
    raise UsageError(f"{source.name}: this kind of source cannot be described")


def file_lines(source: JsonLinesSource) -> Iterator[str]:
    """What a person should know of a task file before work begins: how many questions of which labels, how they are judged, and what of
    them cannot be."""
    described = about(source)
    labels = Counter(item.task for item in (*source.train_items, *source.test_items))
    named = f"label {next(iter(labels))}"
    if len(labels) > 1:
        named = f"labels kept apart: {', '.join(f'{label} ({count})' for label, count in sorted(labels.items()))}"
    train, test = counted(described.train or 0, "question"), described.test or 0
    yield f"{source.name}: {train} to learn from, {test} held out; judged as {', '.join(described.judged_as)}; {named}"
    yield from (f"{source.name}: {note}" for note in source.notes)


def examples(source: TaskSource) -> list[TaskItem]:
    """One item of each family, level and kind of answer, easiest first: a held-out one where there is one."""
    if isinstance(source, PracticeSource):
        return list(_practice_examples(source.name.removeprefix("practice:")))
    listed = _listed(source)
    first: dict[tuple[str, int, str], TaskItem] = {}
    for item in (*listed.test_items, *listed.train_items):
        first.setdefault((item.family, item.level, item.kind.value), item)
    return [first[key] for key in sorted(first)]


def sample(source: TaskSource, count: int, *, level: int | None, split: Split, seed: int) -> list[TaskItem]:
    """At most `count` different items of one split in an order drawn by `seed`. Raises UsageError for a level that does not occur."""
    description = about(source)
    if level is not None and level not in description.all_levels:
        known = ", ".join(map(str, description.all_levels))
        raise UsageError(f"{source.name}: no item of level {level}", hint=f"levels: {known}")
    chosen: dict[str, TaskItem] = {}
    questions: set[str] = set()
    for item in _drawn(source, split, seed, count):
        if len(chosen) >= count:
            break
        if (level is None or item.level == level) and item.id not in chosen and item.question not in questions:
            chosen[item.id] = item
            questions.add(item.question)
    return list(chosen.values())


_DRAWN_PER_ITEM = 500


def _drawn(source: TaskSource, split: Split, seed: int, count: int) -> Iterator[TaskItem]:
    """Items of the split in an order by the seed; an endless source ends after plenty, because a small family repeats itself."""
    if isinstance(source, PracticeSource):
        return itertools.islice(source.stream(split, seed), count * _DRAWN_PER_ITEM)
    listed = _listed(source)
    items = list(listed.train_items if split == "train" else listed.test_items)
    stream(seed, "sample", split).shuffle(items)
    return iter(items)


def _listed(source: TaskSource) -> ListedItems:
    if (listed := listed_items(source)) is not None:
        return listed
    raise UsageError(f"{source.name}: the items of this kind of source cannot be listed")


def _practice_examples(name: str) -> Iterator[TaskItem]:
    for family in GROUPS.get(name, (name,)):
        for level in FAMILIES[family].levels:
            item = FAMILIES[family].generate(0, "test", level)
            yield replace(item, task=name) if name in GROUPS else item


def _about_practice(name: str) -> SourceAbout:
    families = [FAMILIES[family] for family in GROUPS.get(name, (name,))]
    return SourceAbout(
        name=f"practice:{name}",
        kind="practice",
        judged_as=tuple(dict.fromkeys(family.kind.value for family in families)),
        families=tuple(family.name for family in families),
        levels={family.name: tuple(family.levels) for family in families},
        labels=(name,) if name in GROUPS else tuple(sorted({family.task for family in families})),
        max_steps=tuple(sorted({family.max_steps for family in families})),
        train=None,
        test=None,
        where="built in",
        about="; ".join(family.about for family in families),
    )


def _about_data_set(data_set: DataSet) -> SourceAbout:
    train, test = data_set.published
    return SourceAbout(
        name=data_set.name,
        kind="data set",
        judged_as=(data_set.kind.value,),
        families=(data_set.name,),
        levels={data_set.name: data_set.levels},
        labels=(data_set.task,),
        max_steps=(data_set.max_steps,),
        train=train,
        test=test,
        where=f"hub {data_set.hub}",
        about=data_set.about,
    )


def _about_listed(name: str, kind: str, listed: ListedItems) -> SourceAbout:
    items = (*listed.train_items, *listed.test_items)
    families = tuple(sorted({item.family for item in items}))
    return SourceAbout(
        name=name,
        kind=kind,
        judged_as=tuple(sorted({item.kind.value for item in items})),
        families=families,
        levels={family: tuple(sorted({item.level for item in items if item.family == family})) for family in families},
        labels=tuple(sorted({item.task for item in items})),
        max_steps=tuple(sorted({item.max_steps for item in items})),
        train=len(listed.train_items),
        test=len(listed.test_items),
        where="local files or cache",
        about="",
    )


_FIRST_SEED = 1_000_000
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Stratum:
    """Items of one level of one family, and its `weight` in the family's default mix (the weights of a family add up to 1).

    For tables level by level (`edge-agent eval --per-level N`). The items of the practice families are those that
    `python -m tools.nano passes` takes at its default seed.
    """

    family: str
    level: int
    weight: float
    items: tuple[TaskItem, ...]


def strata_of(source: TaskSource, per_level: int) -> list[Stratum]:
    """The source's strata with at most `per_level` items each, by family and level.

    A practice family's mix is its default one; any other source mixes as its whole test split does.
    """
    if not source.name.startswith("practice:"):
        return _listed_strata(source.test(_ALL), per_level)
    name = source.name.removeprefix("practice:")
    if name not in GROUPS:
        return list(_practice_strata(name, per_level))
    strata = [stratum for family in GROUPS[name] for stratum in _practice_strata(family, per_level)]
    return [replace(one, items=tuple(replace(item, task=name) for item in one.items)) for one in strata]


def _practice_strata(name: str, per_level: int) -> Iterator[Stratum]:
    family = FAMILIES[name]
    whole = sum(family.level_weights.values())
    for level, weight in family.level_weights.items():
        items = tuple(family.generate(_FIRST_SEED + index, "test", level) for index in range(per_level))
        yield Stratum(name, level, weight / whole, items)


def _listed_strata(items: Sequence[TaskItem], per_level: int) -> list[Stratum]:
    def place(item: TaskItem) -> tuple[str, int]:
        return item.family, item.level

    sizes = Counter(item.family for item in items)
    levels = [(key, tuple(members)) for key, members in itertools.groupby(sorted(items, key=place), key=place)]
    return [Stratum(family, level, len(members) / sizes[family], members[:per_level]) for (family, level), members in levels]
