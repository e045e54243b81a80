"""A study's points: each cell with an id that follows from what it resolves to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError
from scalewright.records.documents import digest
from scalewright.records.types import Point
from scalewright.sites.current import HERE
from scalewright.sites.loader import find_site
from scalewright.study.cells import Cell, expand, matches
from scalewright.study.expressions import Value
from scalewright.study.file import Cells, StudyFile, find, load
from scalewright.study.kinds.base import Kind
from scalewright.study.kinds.registry import kind_named
from scalewright.study.metrics import metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study file with its points."""

    file: StudyFile
    path: Path
    kinds: tuple[Kind, ...]
    """Of each cell."""
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    """One for each cell, in the same order. Cells that resolve to the same share an id, and one run."""
    is_measured: bool = False
    """Its points are those of the `measure` table."""

    @property
    def id(self) -> str:
        """Of the study as it resolves: another matrix or another setting is another study."""
        return digest([point.id for point in self.points])

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.file.metrics or self.kinds[0].metrics

    @property
    def where(self) -> str:
        return str(self.path)

    def matching(self, condition: Mapping[str, Value | tuple[Value, ...]]) -> list[int]:
        return [index for index, cell in enumerate(self.cells) if matches(cell.values, condition)]


def open_study(catalog: Catalog, name: str, *, is_measured: bool = False) -> Study:
    """Read a study and lay out its points; each is checked, so that a typing error shows before hours of work."""
    path = find(name)
    file = load(path)
    with _told_of(str(path)):
        for wanted in (*file.metrics, *(p.metric for p in file.published), *_scaling_metric(file)):
            metric(wanted)
    if file.measure is not None and file.measure.where == "site" and file.measure.site != HERE:
        with _told_of(f"{path}: key 'measure.site'"):
            find_site(file.measure.site, next(filter(Path.is_dir, catalog.folders), None))
    default = kind_named(file.kind)
    cells, where = _cells(file, is_measured=is_measured), str(path)
    with _told_of(where):
        laid = expand(
            cells, facts=lambda values: default.facts(catalog, values), where=where, max_points=file.max_points
        )
    kinds = []
    for cell in laid:
        labels = ", ".join(f"{name} {value}" for name, value in cell.labels.items())
        with _told_of(f"{where}: point {labels}"):
            kinds.append(kind_named(cell.kind or file.kind))
            kinds[-1].check(catalog, cell.point, where=where)
    return Study(
        file=file, path=path, kinds=tuple(kinds), cells=tuple(laid), is_measured=is_measured,
        points=tuple(_point(file, cell) for cell in laid),
    )  # fmt: skip


@contextlib.contextmanager
def _told_of(where: str) -> Iterator[None]:
    """An error about a name says in which file the name is."""
    try:
        yield
    except ConfigError as error:
        told, file = str(error), where.partition(":")[0]
        raise ConfigError(told if file in told else f"{where}: {told}") from error


def _scaling_metric(file: StudyFile) -> Sequence[str]:
    asked = file.scaling
    found = () if asked is None else (asked.metric, *asked.also, *asked.also.values())
    return found if file.relative is None else (*found, file.relative.metric)


def _cells(file: StudyFile, *, is_measured: bool) -> Cells:
    if not is_measured:
        return file
    if file.measure is None:
        raise ConfigError(f"study {file.id} has no [measure] table, so it can only be predicted: add one to run it")
    if file.measure.matrix:
        return file.measure
    return file.model_copy(update={"point": {**file.point, **file.measure.point}})


def _point(file: StudyFile, cell: Cell) -> Point:
    resolved = {"kind": cell.kind or file.kind, **cell.point}
    return Point(id=digest(resolved), study=file.id, labels=cell.labels, resolved=resolved)


def only(study: Study, chosen: Sequence[int]) -> Study:
    """The study with some of its points."""
    return replace(study, cells=tuple(study.cells[i] for i in chosen), points=tuple(study.points[i] for i in chosen))
