"""A study with its points. The id of a point is a hash of its kind and options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.records.documents import digest
from scalewright.records.types import Point
from scalewright.sites.current import HERE
from scalewright.sites.loader import find_site
from scalewright.study.expressions import Value
from scalewright.study.file import PointMatrix, StudyFile, axes_of, find, load
from scalewright.study.kinds.base import Kind
from scalewright.study.kinds.registry import kind_named
from scalewright.study.matrix import Combination, expand, matches
from scalewright.study.metrics import metric
from scalewright.study.pipeline.setting import PipelineSetting, profile_of
from scalewright.study.pipeline.stages import PlannedPipeline, expand_pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study file with its points."""

    file: StudyFile
    path: Path
    kinds: tuple[Kind, ...]
    """Kind of each combination."""
    combinations: tuple[Combination, ...]
    points: tuple[Point, ...]
    """One for each combination, in the same order. Combinations with equal options share an id, and one run."""
    is_measured: bool = False
    """The points come from the `measure` table, or from the pipeline."""
    pipeline: PlannedPipeline | None = None
    """The stages of a pipeline: one for each point, in the same order."""

    @property
    def id(self) -> str:
        """A hash of all points: another matrix or another option is another study."""
        return digest([point.id for point in self.points])

    @property
    def metrics(self) -> tuple[str, ...]:
        """The study's own, or those of the kind. A pipeline beside predicted points has the metrics of its kind."""
        own = () if self.pipeline is not None and axes_of(self.file) else self.file.metrics
        return own or self.kinds[0].metrics

    @property
    def where(self) -> str:
        return str(self.path)

    def matching(self, condition: Mapping[str, Value | tuple[Value, ...]]) -> list[int]:
        return [index for index, one in enumerate(self.combinations) if matches(one.values, condition)]


def open_study(
    catalog: Catalog, name: str, *, is_measured: bool = False, setting: PipelineSetting | None = None
) -> Study:
    """Read a study and expand its points. Each is checked, so that a typing error shows before hours of work.

    `setting` sizes a pipeline; without one it has the sizes of this machine.
    """
    path = find(name)
    file = load(path)
    with _naming(str(path)):
        sourced = [
            *(figure.metric for figure in file.published),
            *(name for claim in file.statements for name in (claim.metric, claim.higher_metric) if name),
            *(figure.metric for answer in file.answers for figure in answer.figures.values() if figure.metric),
        ]
        for metric_name in (*file.metrics, *sourced, *_scaling_metrics(file)):
            metric(metric_name)
    if file.measure is not None and file.measure.where == "site" and file.measure.site != HERE:
        with _naming(f"{path}: key 'measure.site'"):
            find_site(file.measure.site, next(filter(Path.is_dir, catalog.folders), None))
    where, pipeline = str(path), None
    with _naming(where):
        if file.pipeline is not None and (is_measured or not axes_of(file)):
            own = setting or PipelineSetting(profile=profile_of(file.pipeline, is_at_site=False))
            pipeline, combinations = expand_pipeline(file.pipeline, own)
        else:
            combinations = _of_matrix(catalog, file, where, is_measured=is_measured)
    kinds = []
    for combination in combinations:
        labels = ", ".join(f"{name} {value}" for name, value in combination.labels.items())
        with _naming(f"{where}: point {labels}"):
            kinds.append(kind_named(combination.kind or file.kind))
            kinds[-1].check(catalog, combination.options, where=where)
    return Study(
        file=file, path=path, kinds=tuple(kinds), combinations=tuple(combinations), is_measured=is_measured,
        pipeline=pipeline, points=tuple(_point(file, combination) for combination in combinations),
    )  # fmt: skip


def _of_matrix(catalog: Catalog, file: StudyFile, where: str, *, is_measured: bool) -> list[Combination]:
    default = kind_named(file.kind)
    return expand(
        _matrix(file, is_measured=is_measured), facts=lambda values: default.facts(catalog, values), where=where,
        max_points=file.max_points,
    )  # fmt: skip


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """Add the file and key to an error that does not name the file."""
    try:
        yield
    except ConfigError as error:
        message, file = str(error), where.partition(":")[0]
        raise ConfigError(message if file in message else f"{where}: {message}") from error


def _scaling_metrics(file: StudyFile) -> Sequence[str]:
    scaling = file.scaling
    names = () if scaling is None else (scaling.metric, *scaling.also, *scaling.also.values())
    return names if file.relative is None else (*names, file.relative.metric)


def _matrix(file: StudyFile, *, is_measured: bool) -> PointMatrix:
    if not is_measured:
        return file
    if file.measure is None:
        raise ConfigError(f"study {file.id} has no [measure] table, so it can only be predicted: add one to run it")
    if file.measure.matrix:
        return file.measure
    return file.model_copy(update={"point": {**file.point, **file.measure.point}})


def _point(file: StudyFile, combination: Combination) -> Point:
    resolved = {"kind": combination.kind or file.kind, **combination.options}
    return Point(id=digest(resolved), study=file.id, labels=combination.labels, resolved=resolved)
