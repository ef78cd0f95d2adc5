"""The data sets that are known by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from edge.core.types import AnswerKind
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.tasks.datasets import schemas
from edge.tasks.datasets.schemas import Draft
from edge.tasks.record import Record


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set. `published` counts its train and test items on the hub.

    `config` and `hub_splits` are where it lies in the hub's parquet branch; `subfolders` are what its part is called inside a local copy
    of the whole. `unknown_split` says what a file is whose name gives no split: "hash" holds out one question in ten.
    """

    name: str
    about: str
    task: str
    kind: AnswerKind
    draft: Callable[[Record], Draft]
    columns: tuple[str, ...]
    levels: tuple[int, ...]
    hub: str
    config: str
    hub_splits: tuple[str, ...]
    subfolders: tuple[str, ...]
    published: tuple[int, int]
    unknown_split: Literal["hash", "test"] = "hash"

    @property
    def max_steps(self) -> int:
        """The paper's limit of reasoning steps for this task."""
        return STEP_LIMITS[self.task]


_ARC_COLUMNS = ("id", "question", "choices", "answerKey")

_ALL = (
    DataSet(
        name="gsm8k",
        about="grade-school word problems; the level is the number of lines of the reference solution",
        task="math",
        kind=AnswerKind.MATH,
        draft=schemas.gsm8k,
        columns=("question", "answer"),
        levels=tuple(range(1, 12)),
        hub="openai/gsm8k",
        config="main",
        hub_splits=("train", "test"),
        subfolders=("main",),
        published=(7473, 1319),
    ),
    DataSet(
        name="math",
        about="MATH-lighteval, competition problems in seven subjects",
        task="math",
        kind=AnswerKind.MATH,
        draft=schemas.math,
        columns=("problem", "level", "type", "solution"),
        levels=(1, 2, 3, 4, 5),
        hub="DigitalLearningGmbH/MATH-lighteval",
        config="default",
        hub_splits=("train", "test"),
        subfolders=("default", "data"),
        published=(7500, 5000),
    ),
    DataSet(
        name="arc-easy",
        about="grade-school science questions, the easy half",
        task="qa",
        kind=AnswerKind.CHOICE,
        draft=schemas.arc_easy,
        columns=_ARC_COLUMNS,
        levels=(1,),
        hub="allenai/ai2_arc",
        config="ARC-Easy",
        hub_splits=("train", "test"),
        subfolders=("ARC-Easy",),
        published=(2251, 2376),
    ),
    DataSet(
        name="arc-challenge",
        about="grade-school science questions, the half that simple methods get wrong",
        task="qa",
        kind=AnswerKind.CHOICE,
        draft=schemas.arc_challenge,
        columns=_ARC_COLUMNS,
        levels=(2,),
        hub="allenai/ai2_arc",
        config="ARC-Challenge",
        hub_splits=("train", "test"),
        subfolders=("ARC-Challenge",),
        published=(1119, 1172),
    ),
    DataSet(
        name="taco",
        about="TACO-verified, programming contests; one question in ten is held out",
        task="code",
        kind=AnswerKind.PROGRAM,
        draft=schemas.taco,
        columns=("id", "question", "input_output", "starter_code", "difficulty", "source"),
        levels=(1, 2, 3, 4, 5),
        hub="likaixin/TACO-verified",
        config="default",
        hub_splits=("train", "test"),
        subfolders=("default", "data"),
        published=(12898, 0),
    ),
    DataSet(
        name="mmlu",
        about="57 subjects from school to profession; learns from the auxiliary training set",
        task="qa",
        kind=AnswerKind.CHOICE,
        draft=schemas.mmlu,
        columns=("question", "subject", "type", "choices", "answer", "train"),
        levels=(),
        hub="cais/mmlu",
        config="all",
        hub_splits=("auxiliary_train", "test"),
        subfolders=("all", "data"),
        published=(99842, 14042),
    ),
    DataSet(
        name="humaneval",
        about="164 functions to complete; for evaluation only",
        task="code",
        kind=AnswerKind.PROGRAM,
        draft=schemas.humaneval,
        columns=("task_id", "prompt", "canonical_solution", "test", "entry_point"),
        levels=(),
        hub="openai/openai_humaneval",
        config="openai_humaneval",
        hub_splits=("test",),
        subfolders=("openai_humaneval",),
        published=(0, 164),
        unknown_split="test",
    ),
)

DATA_SETS: Mapping[str, DataSet] = {data_set.name: data_set for data_set in _ALL}
"""By the name on the command line."""


def by_hub_id(hub_id: str) -> list[DataSet]:
    """The data sets of `OWNER/NAME` or `OWNER/NAME/CONFIG`, upper and lower case aside; none when it is not known."""
    wanted = hub_id.strip("/").lower()
    return [one for one in _ALL if wanted in (one.hub.lower(), f"{one.hub}/{one.config}".lower())]
