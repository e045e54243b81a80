"""Which cores, GPUs or nodes each role of a run gets. Nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewright.errors import ConfigError
from scalewright.records.documents import document
from scalewright.records.run_directory import RunDirectory

RoleKind = Literal["controller", "engine", "trainer"]
KIND_OF_RUN: dict[RoleKind, str] = {"controller": "controller", "engine": "engine", "trainer": "reason"}
"""The program of each role, as `python -m scalewright.run` knows it."""
CONFIG = "role"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One world of ranks that is started, watched and started again as a whole."""

    kind: RoleKind
    number: int = 0
    """Of an engine."""
    num_ranks: int = 1
    run_path: Path
    """Run directory that its program opens: an engine has its own."""
    path: Path
    """Where its logs and processes are: the run directory for the trainer, a folder below it for the others."""
    cores: tuple[int, ...] = ()
    """That its ranks share; empty: any."""
    gpus: tuple[int, ...] = ()
    """Numbers of its GPUs among those that this process sees."""
    nodes: tuple[str, ...] = ()
    """Of the allocation; empty: this machine."""

    @property
    def name(self) -> str:
        return f"engine-{self.number}" if self.kind == "engine" else self.kind

    @property
    def program(self) -> str:
        return KIND_OF_RUN[self.kind]

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)


def roles_of(run: RunDirectory, *, num_trainer_ranks: int, engine_ranks: Sequence[int]) -> list[Role]:
    """The roles of a run in the order in which they start, with a folder for each."""
    controller = Role(kind="controller", run_path=run.path, path=run.role("controller"))
    trainer = Role(kind="trainer", run_path=run.path, path=run.path, num_ranks=num_trainer_ranks)
    engines = []
    for number, num_ranks in enumerate(engine_ranks):
        path = run.role(f"engine-{number}")
        engines.append(Role(kind="engine", number=number, num_ranks=num_ranks, run_path=path, path=path))
        body = {"role": "engine", "number": number, "num_ranks": num_ranks}
        RunDirectory.create_or_resume(path, document(CONFIG, body))
    return [controller, trainer, *engines]


def check_engines_fit(*, num_trainer_ranks: int, engine_ranks: Sequence[int], num_gpus: int, num_cores: int) -> None:
    """Refuse more ranks than there are GPUs, or more ranks of engines than cores."""
    num_ranks = sum(engine_ranks)
    if num_gpus and num_trainer_ranks + num_ranks > num_gpus:
        raise ConfigError(
            f"{len(engine_ranks)} engines with {num_ranks} ranks beside {num_trainer_ranks} of the trainer on "
            f"{num_gpus} GPUs: each rank needs one of its own; give at most {max(num_gpus - num_trainer_ranks, 0)} "
            "ranks of engines"
        )
    if not num_gpus and num_ranks > num_cores:
        raise ConfigError(
            f"{len(engine_ranks)} engines with {num_ranks} ranks on {num_cores} cores: each needs a core of its own; "
            f"give at most {num_cores}, or use more nodes"
        )


def divided_cores(cores: Sequence[int], roles: Sequence[Role]) -> dict[str, tuple[int, ...]]:
    """Cores of each role's ranks: equal shares for all ranks of trainer and engines. With fewer cores than ranks,
    nobody is bound. The controller does little and may use any."""
    ranks = {role.name: role.num_ranks for role in roles if role.kind != "controller"}
    each = len(cores) // sum(ranks.values())
    if each == 0:
        return {}
    shares: dict[str, tuple[int, ...]] = {}
    place = 0
    for name, num_ranks in ranks.items():
        shares[name] = tuple(cores[place : place + each * num_ranks])
        place += each * num_ranks
    return shares


def divided_gpus(num_gpus: int, roles: Sequence[Role]) -> dict[str, tuple[int, ...]]:
    """GPUs of each role, one for each rank, the trainer's first."""
    shares: dict[str, tuple[int, ...]] = {}
    place = 0
    for role in roles:
        if role.kind != "controller":
            shares[role.name] = tuple(range(place, place + role.num_ranks))
            place += role.num_ranks
    assert place <= num_gpus
    return shares


def divided_nodes(nodes: Sequence[str], roles: Sequence[Role], *, most_ranks: int) -> dict[str, tuple[str, ...]]:
    """Nodes of each role in an allocation: as many as the trainer needs come first, the engines share the rest.

    `most_ranks` is what a node takes. With one node, or with none left, the engines are on the trainer's.
    """
    trainer = next(role for role in roles if role.kind == "trainer")
    num = min(-(-trainer.num_ranks // most_ranks), len(nodes))
    if trainer.num_ranks % num:
        raise ConfigError(
            f"{trainer.num_ranks} ranks of the trainer do not spread evenly over {num} nodes: use a multiple of {num}"
        )
    shares = {"trainer": tuple(nodes[:num]), "controller": (nodes[0],)}
    left = list(nodes[num:]) or list(nodes)
    engines = [role for role in roles if role.kind == "engine"]
    place = 0
    for role in engines:
        needed = -(-role.num_ranks // most_ranks)
        if needed > len(left) or role.num_ranks % needed:
            raise ConfigError(
                f"{role.name} has {role.num_ranks} ranks, and {len(left)} nodes with {most_ranks} each are left for "
                "engines: give it fewer ranks, or a multiple of the nodes"
            )
        shares[role.name] = tuple(left[(place + step) % len(left)] for step in range(needed))
        place += needed
    return shares


def visible_devices(env: Mapping[str, str], gpus: Sequence[int]) -> str:
    """CUDA_VISIBLE_DEVICES of a role: its share of those that this process may use."""
    seen = [word.strip() for word in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    return ",".join(seen[gpu] if seen else str(gpu) for gpu in gpus)
