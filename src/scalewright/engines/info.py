"""EngineInfo: the facts of an engine, one TOML file each in `data/`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from scalewright.catalog.facts import Id, Source, Strict
from scalewright.engines.types import Task, Trains
from scalewright.errors import DocumentError, UnknownNameError
from scalewright.records.loader import load_toml

KIND = "training-engine"
EAGER, COMPILED = "eager", "compiled"
"""Catalogued stacks of PyTorch without and with torch.compile."""
Tested = Literal["run", "parsed", "rendered"]
"""run: our tests train with it, or it was run by hand; parsed: its own code reads our files, nothing was trained;
rendered: text only."""
_RELEASE = re.compile(r"^\d+(\.\d+)*$")


class EngineInfo(Strict):
    """An engine: what it is called, how it is installed, and how well it is tested."""

    schema_: str = Field(alias="schema")
    id: Id
    title: str
    aliases: tuple[str, ...] = ()
    url: str
    pip: tuple[str, ...] = ()
    """What to give to `pip install`; empty: it is no package."""
    checkout: str = ""
    """Where its sources are, if it is no package: the user gives the folder with --engine-dir."""
    import_name: str
    """Module whose presence shows that it is installed."""
    distribution: str
    """Name under which pip knows its version; empty: it has none."""
    other_distributions: tuple[str, ...] = ()
    """The same program under other names, such as its build for CPUs."""
    oldest: str = ""
    """First release that was tested; with `newest` the range that starts without --force."""
    newest: str = ""
    stack: Id
    """Catalogue entry whose factors predict its steps."""
    compile_key: str = ""
    """Its own key that turns torch.compile on or off; empty: it has none."""
    frameworks: tuple[str, ...]
    """Its names in `plan --emit`; empty: it has no file of its own for a layout."""
    dialect: str
    """Reader of its log in `explain`, by the name that a StepFact has."""
    trains: tuple[Trains, ...]
    tasks: tuple[Task, ...]
    """The first is what a plan of its main stage becomes."""
    tested: Tested
    tested_text: str
    """What was done with it, in one sentence."""
    source: Source
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _releases(self) -> EngineInfo:
        for text in (self.oldest, self.newest):
            if text and not _RELEASE.match(text):
                raise ValueError(f"{text!r} is not a release such as 0.19.8")
        if bool(self.oldest) != bool(self.newest):
            raise ValueError("oldest and newest belong together")
        if not self.pip and not self.checkout:
            raise ValueError("an engine is a package (pip) or a folder of sources (checkout)")
        return self

    def stack_with(self, settings: Mapping[str, str], *, device: str) -> str:
        """Catalogue entry of a run with these settings; on a CPU nothing is compiled and no kernel is fused."""
        if device == "cpu":
            return EAGER
        compiles = settings.get(self.compile_key, "") if self.compile_key else ""
        return {"true": COMPILED, "false": EAGER}.get(compiles.lower(), self.stack)

    @property
    def is_untested(self) -> bool:
        """Whether no run of it was seen."""
        return self.tested != "run"

    @property
    def pip_line(self) -> str:
        return f"pip install {' '.join(_quoted(word) for word in self.pip)}"

    def installed_as(self, installed: Mapping[str, str]) -> str:
        """The distribution that has it among what is installed; its usual one where none does."""
        names = (self.distribution or self.import_name, *self.other_distributions)
        return next((name for name in names if name in installed), names[0])

    def covers(self, version: str) -> bool:
        """Whether the tests cover the release; true where no range is known."""
        if not self.oldest:
            return True
        oldest, newest, release = _numbers(self.oldest), _numbers(self.newest), _numbers(version)
        return oldest <= release[: len(oldest)] and release[: len(newest)] <= newest


def _quoted(word: str) -> str:
    return f"'{word}'" if any(c in word for c in "<>=![]* ") else word


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version as numbers: `0.19.8+cpu` is (0, 19, 8)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


@lru_cache(maxsize=1)
def all_engines() -> dict[str, EngineInfo]:
    """Every engine by id."""
    folder = Path(str(resources.files("scalewright.engines") / "data"))
    engines = {path.stem: load_toml(path, EngineInfo, kind=KIND)
               for path in sorted(folder.glob("*.toml"))}  # fmt: skip
    for name, info in engines.items():
        if info.id != name:
            raise DocumentError(f"{name}.toml: id is {info.id!r}; it must be the file's name")
    return engines


def find_engine(name: str) -> EngineInfo:
    """The engine of that id or alias; an unknown name is an error that lists the nearest."""
    engines = all_engines()
    for info in engines.values():
        if name.lower() in (info.id, *info.aliases):
            return info
    raise UnknownNameError("engine", name, engines, hint=f"choose {', '.join(engines)}")
