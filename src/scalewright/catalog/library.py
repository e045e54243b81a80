"""Find and load catalogue entries: a search path of folders, one TOML per thing, names without case or dashes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TypeVar, cast

from scalewright.catalog.facts import link_sources
from scalewright.catalog.types import (
    KINDS,
    SCHEMAS,
    Accelerator,
    Constants,
    Entry,
    Fabric,
    Grid,
    Link,
    Model,
    Price,
    ServingEngine,
    Stack,
    Storage,
    System,
    Transport,
)
from scalewright.errors import ConfigError, DocumentError, UnknownNameError
from scalewright.records.documents import read_text
from scalewright.records.loader import load_toml, parse_toml
from scalewright.records.types import EnvName

E = TypeVar("E", bound=Entry)
D = TypeVar("D")
ABOUT_OTHERS = ("prices", "totals")
"""Kinds whose entries are of a thing that has an entry of its own, often of the same name."""
KIND_WORDS = {
    "gpu": "accelerators", "gpus": "accelerators", "device": "accelerators", "devices": "accelerators",
    "cluster": "systems", "clusters": "systems", "machine": "systems", "machines": "systems", "network": "fabrics",
    "networks": "fabrics", "disk": "storage", "filesystem": "storage",
}  # fmt: skip
"""What people call a kind of entries."""
MOST_NAMED = 4
MAX_DERIVED = 128
"""Machines and searches that a catalogue keeps; points of a study that share one follow each other."""


def packaged_data() -> Path:
    return Path(str(resources.files("scalewright.catalog"))) / "data"


def home() -> Path:
    """The user's folder: $SCALEWRIGHT_HOME, else scalewright in the XDG configuration folder."""
    chosen = os.environ.get(EnvName.HOME)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "scalewright"


def search_path(extra: Path | None = None) -> tuple[Path, ...]:
    """Folders in order of precedence; an entry found earlier hides one of the same id found later."""
    if extra is not None and not extra.is_dir():
        raise ConfigError(f"--catalog {str(extra)!r} is not a folder: name one that holds accelerators/, systems/, ...")
    own = (extra,) if extra is not None else ()
    return (*own, Path("scalewright"), home(), packaged_data())


def folded(name: str) -> str:
    """The form names are compared in: no case, spaces, dashes or underscores."""
    return re.sub(r"[\s_-]+", "", name).lower()


@dataclass(slots=True)
class Catalog:
    """Entries by kind and name. Files are read when asked for, so a lookup by id opens one file.

    An entry is read once. What was edited since is seen by the next catalogue that is opened, so that nothing that
    follows from entries may be kept longer than the catalogue itself: keep it with `derived`.
    """

    folders: tuple[Path, ...]
    _entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    _names: dict[str, dict[str, str]] = field(default_factory=dict)
    _paths: dict[str, dict[str, Path]] = field(default_factory=dict)
    _derived: dict[Hashable, object] = field(default_factory=dict, repr=False, compare=False)

    def derived(self, key: Hashable, make: Callable[[], D]) -> D:
        """What `make` gives, made once for a key: machines and searches, which many points of a study share."""
        if key not in self._derived:
            if len(self._derived) >= MAX_DERIVED:
                del self._derived[next(iter(self._derived))]
            self._derived[key] = make()
        return cast(D, self._derived[key])

    def ids(self, kind: str) -> list[str]:
        return sorted(self._files(kind))

    def get(self, kind: str, name: str) -> Entry:
        """The entry whose id or alias is `name`; otherwise an error that lists the nearest."""
        files = self._files(kind)
        entry_id = name if name in files else self._by_alias(kind).get(folded(name))
        if entry_id is None:
            raise UnknownNameError(kind.removesuffix("s"), name, files, hint=self._hint(kind, name))
        return self._load(kind, entry_id, files[entry_id])

    def _hint(self, kind: str, name: str) -> str:
        """Where to look for an unknown name: people give a device where a system is meant."""
        plain = f"see: scalewright catalog {kind}"
        others = [k for k in ("accelerators", "systems", "models") if k != kind and folded(name) in self._by_alias(k)]
        if kind not in ("accelerators", "systems", "models") or not others:
            return plain
        device = self._by_alias("accelerators").get(folded(name)) if kind == "systems" else None
        systems = [cast(System, entry) for entry in self.readable("systems")[0]] if device else []
        with_it = [s.id for s in systems if any(p.accelerator == device for p in s.partitions)][:MOST_NAMED]
        where = f"; systems with it: {', '.join(with_it)}" if with_it else ""
        return f"it is one of the {others[0]}{where}; {plain}"

    def find_all(self, name: str) -> tuple[dict[str, Entry], list[str]]:
        """The entries of that name by kind, because kinds may share one: a system and its price. And why an entry of
        that name does not load, where another one does."""
        matches: dict[str, Entry] = {}
        problems: list[DocumentError] = []
        for kind in KINDS:
            try:
                matches[kind] = self.get(kind, name)
            except UnknownNameError:
                continue
            except DocumentError as error:
                problems.append(error)
        if problems and not matches:
            raise problems[0]
        if not matches:
            names = [*KINDS, *(entry_id for kind in KINDS for entry_id in self.ids(kind))]
            if name.lower() in KIND_WORDS:
                kind = KIND_WORDS[name.lower()]
                raise ConfigError(f"no kind of the catalogue is called {name!r}: write scalewright catalog {kind}")
            raise UnknownNameError("kind or catalogue entry", name, names, hint="see: scalewright catalog")
        return matches, [str(problem) for problem in problems]

    def find(self, name: str) -> Entry:
        """The entry of that name: where kinds share it, the thing before what is published or asked for it."""
        matches, _ = self.find_all(name)
        kinds = [kind for kind in matches if kind not in ABOUT_OTHERS] or list(matches)
        if len(kinds) > 1:
            one = f"sw.catalog.{kinds[0]}[{name!r}]"
            raise ConfigError(
                f"{name!r} names entries of several kinds ({', '.join(matches)}): name the kind, as {one}"
            )
        return matches[kinds[0]]

    def find_pair(self, first: str, second: str) -> tuple[Entry, Entry]:
        """Two entries of one kind, to be compared."""
        ours, theirs = self.find_all(first)[0], self.find_all(second)[0]
        shared = [kind for kind in ours if kind in theirs]
        if not shared:
            raise ConfigError(f"{first!r} and {second!r} are of different kinds: compare two of one kind")
        return ours[shared[0]], theirs[shared[0]]

    def all(self, kind: str) -> list[Entry]:
        files = self._files(kind)
        return [self._load(kind, entry_id, files[entry_id]) for entry_id in sorted(files)]

    def readable(self, kind: str) -> tuple[list[Entry], list[str]]:
        """Entries that load, and why others do not: a broken file must not hide its neighbours."""
        entries, problems = [], []
        for entry_id, path in sorted(self._files(kind).items()):
            try:
                entries.append(self._load(kind, entry_id, path))
            except DocumentError as error:
                problems.append(str(error))
        return entries, problems

    def path(self, kind: str, entry_id: str) -> Path:
        return self._files(kind)[entry_id]

    def _files(self, kind: str) -> dict[str, Path]:
        if kind not in KINDS:
            raise UnknownNameError("kind of catalogue entry", kind, KINDS)
        if kind not in self._paths:
            paths: dict[str, Path] = {}
            for folder in self.folders:
                for path in sorted((folder / kind).glob("*.toml")):
                    paths.setdefault(path.stem, path)
            self._paths[kind] = paths
        return self._paths[kind]

    def _load(self, kind: str, entry_id: str, path: Path) -> Entry:
        key = (kind, entry_id)
        if key not in self._entries:
            schema_kind = SCHEMAS[kind].removeprefix("scalewright.").partition("/")[0]
            entry = load_toml(path, KINDS[kind], kind=schema_kind, prepare=link_sources)
            if entry.id != entry_id:
                raise DocumentError(f"{path}: id is {entry.id!r}; it must be the file's name, {entry_id!r}")
            self._entries[key] = entry
        return self._entries[key]

    def _by_alias(self, kind: str) -> dict[str, str]:
        if kind not in self._names:
            names: dict[str, str] = {}
            for entry_id, path in self._files(kind).items():
                for name in (entry_id, *_strings(path, "aliases")):
                    names.setdefault(folded(name), entry_id)
            self._names[kind] = names
        return self._names[kind]

    def accelerator(self, name: str) -> Accelerator:
        return self._typed("accelerators", name, Accelerator)

    def link(self, name: str) -> Link:
        return self._typed("links", name, Link)

    def transport(self, name: str) -> Transport:
        return self._typed("transports", name, Transport)

    def fabric(self, name: str) -> Fabric:
        return self._typed("fabrics", name, Fabric)

    def system(self, name: str) -> System:
        return self._typed("systems", name, System)

    def model(self, name: str) -> Model:
        return self._typed("models", name, Model)

    def storage(self, name: str) -> Storage:
        return self._typed("storage", name, Storage)

    def grid(self, name: str) -> Grid:
        return self._typed("grids", name, Grid)

    def constants(self, name: str = "engine") -> Constants:
        return self._typed("constants", name, Constants)

    def stack(self, name: str) -> Stack:
        return self._typed("stacks", name, Stack)

    def engine(self, name: str) -> ServingEngine:
        return self._typed("engines", name, ServingEngine)

    def stack_of_own_run(self, compile_option: str) -> Stack:
        """The stack that describes scalewright's own runs with this `compile` option."""
        for entry_id, path in self._files("stacks").items():
            if compile_option in _strings(path, "own_runs"):
                return self.stack(entry_id)
        raise ConfigError(f"no stack of the catalogue has {compile_option!r} among its own_runs: add it to one of them")

    def prices(self, accelerator_id: str, system_id: str | None = None) -> list[Price]:
        """Prices of a device that load: those of that system before those that hold everywhere, and those of the
        user's folders first; `broken_prices` names the others."""
        places = {entry_id: place for place, entry_id in enumerate(self._files("prices"))}
        prices = [cast(Price, p) for p in self.readable("prices")[0] if cast(Price, p).accelerator == accelerator_id]
        fitting = [price for price in prices if price.system is None or price.system == system_id]
        return sorted(fitting, key=lambda price: (price.system is None, places[price.id]))

    def broken_prices(self) -> list[str]:
        """What is wrong with files of prices, which may be of any device."""
        return self.readable("prices")[1]

    def _typed(self, kind: str, name: str, entry_type: type[E]) -> E:
        entry = self.get(kind, name)
        assert isinstance(entry, entry_type)
        return entry


def _strings(path: Path, key: str) -> list[str]:
    """The strings under a key of an entry that is not validated: a broken neighbour must not break a lookup."""
    try:
        values = parse_toml(read_text(path), where=str(path)).get(key, [])
    except DocumentError:
        return []
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def open_catalog(extra: Path | None = None) -> Catalog:
    return Catalog(search_path(extra))
