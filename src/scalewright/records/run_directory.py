"""The run directory: one class owns its layout. It is the only interface between launch, run, observe and report.

run.json          id, kind, when, and the ids of plan, point and study
config.json       the resolved configuration; the same one resumes, another one is refused
plan.json         the plan it was made from, if any
prediction.json   what was predicted before the run started (prediction/1)
measurements.json results of a micro benchmark (measurements/1)
script.sh         the command or job script that started it
environment.json  variables of the scheduler and the libraries, of the latest attempt
provenance.json   per attempt: commit, dirty state, versions, driver, container
exit_info.json    how the latest attempt ended: code, reason, last checkpoint
conditions.json   per attempt on one machine: other work during the run (run-conditions/1)
rollup.jsonl      per minute: p50, p95, mean of every metric
preflight/        before step 1: request.json (expected values), result.json (the verdict), nodes.txt (nodes to run on),
                  exclude.txt (nodes to leave out), library-rank-N.log (log of the collective library)
logs/rank-N.log   events/rank-N.jsonl   events/node-HOST.jsonl   stacks/rank-N.txt   traces/   checkpoints/step-N/
data/             images that were made for this run: train/ and val/
answers/rank-N.jsonl  finished answers of a generation benchmark
stage.json, curve.jsonl, rollouts.jsonl, answers/shard-N.jsonl  of a stage of `reason`: see records/reasoning.py
hybrid.jsonl, timeline/ROLE-RANK.jsonl  of a stage that trains on its own answers: see records/hybrid.py
controller.json, roles/  of a stage in separate roles: the controller's address and journal, and a folder for each role
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError
from scalewright.records.documents import digest, document, read_document, write_document
from scalewright.records.loader import restore
from scalewright.records.named_path import NamedPath
from scalewright.records.terminal_text import printable

MANIFEST = "manifest.json"
_STEP = re.compile(r"^step-(\d+)$")
_RANK = re.compile(r"^rank-(\d+)\.jsonl$")
_SHARD = re.compile(r"^shard-\d+\.jsonl$")


MAX_DEPTH_BELOW = 3
"""Folders between the results of a study and the run directory of a repeat: runs/POINT/repeat-N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """How an attempt ended."""

    code: int
    reason: str
    """One sentence; `finished` when every step was done."""
    job: str
    attempt: int
    rank: int
    last_checkpoint: str | None
    """Folder of the newest whole checkpoint, relative to the run directory."""
    time: float
    lost_another: bool = False
    """It ended because another rank did. The reason of that one replaces it."""

    @property
    def finished(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class RunDirectory:
    path: Path

    run = NamedPath("run.json")
    config = NamedPath("config.json")
    plan = NamedPath("plan.json")
    prediction = NamedPath("prediction.json")
    measurements = NamedPath("measurements.json")
    machine = NamedPath("machine.json")
    script = NamedPath("script.sh")
    environment = NamedPath("environment.json")
    provenance = NamedPath("provenance.json")
    exit_info = NamedPath("exit_info.json")
    conditions = NamedPath("conditions.json")
    rollup = NamedPath("rollup.jsonl")
    logs = NamedPath("logs")
    events = NamedPath("events")
    checkpoints = NamedPath("checkpoints")
    data = NamedPath("data")
    """Images that were made for this run."""
    answers = NamedPath("answers")
    stage = NamedPath("stage.json")
    curve = NamedPath("curve.jsonl")
    rollouts = NamedPath("rollouts.jsonl")
    hybrid = NamedPath("hybrid.jsonl")
    timeline = NamedPath("timeline")
    roles = NamedPath("roles")
    controller_address = NamedPath("controller.json")
    """Where the controller of separate roles listens; written anew at each of its starts."""
    controller_token = NamedPath("roles/controller/token")
    """What the first message of a connection must carry; readable for the owner only."""
    journal = NamedPath("roles/controller/journal.jsonl")
    journal_snapshot = NamedPath("roles/controller/snapshot.json")
    processes = NamedPath("processes.json")
    """Of a role: its processes, for a supervisor that finds them left behind."""
    traces = NamedPath("traces")
    stacks = NamedPath("stacks")
    stack_request = NamedPath("stacks/request.json")
    """Written by the rank whose watchdog fired first; every other rank then writes its stacks and ends."""
    preflight = NamedPath("preflight")
    preflight_request = NamedPath("preflight/request.json")
    preflight_result = NamedPath("preflight/result.json")
    preflight_nodes = NamedPath("preflight/nodes.txt")
    """Nodes that passed, in srun's format; written when the check has ended."""
    preflight_exclude = NamedPath("preflight/exclude.txt")
    """Nodes that failed, in sbatch's format; absent if none did."""

    def role(self, name: str) -> Path:
        """Run directory of one role, such as engine-0."""
        return self.roles / name

    def preflight_library_log(self, rank: int) -> Path:
        return self.preflight / f"library-rank-{rank}.log"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def rank_events(self, rank: int) -> Path:
        return self.events / f"rank-{rank}.jsonl"

    def node_events(self, host: str) -> Path:
        return self.events / f"node-{re.sub(r'[^A-Za-z0-9.-]', '_', host)}.jsonl"

    def rank_answers(self, rank: int) -> Path:
        return self.answers / f"rank-{rank}.jsonl"

    def all_rank_answers(self) -> list[Path]:
        """Files of finished answers, the first rank's first."""
        paths = ((m, p) for p in self.answers.glob("rank-*.jsonl") if (m := _RANK.match(p.name)))
        return [path for _, path in sorted((int(match.group(1)), path) for match, path in paths)]

    def answer_shard(self, number: int) -> Path:
        return self.answers / f"shard-{number:05d}.jsonl"

    def answer_shards(self) -> list[Path]:
        """Shards of answers that are whole, in order."""
        return sorted(path for path in self.answers.glob("shard-*.jsonl") if _SHARD.match(path.name))

    def timeline_of(self, role: str, rank: int) -> Path:
        return self.timeline / f"{role}-{rank}.jsonl"

    def timelines(self) -> list[Path]:
        """Files of spans, one for each rank of each role."""
        return sorted(self.timeline.glob("*-*.jsonl"))

    def stack(self, rank: int) -> Path:
        return self.stacks / f"rank-{rank}.txt"

    def trace(self, *, rank: int, step: int) -> Path:
        return self.traces / f"rank-{rank}-step-{step}.json.gz"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def all_rank_events(self) -> dict[int, Path]:
        """Event files by rank."""
        paths = {int(m.group(1)): p for p in self.events.glob("rank-*.jsonl") if (m := _RANK.match(p.name))}
        return dict(sorted(paths.items()))

    def all_node_events(self) -> list[Path]:
        return sorted(self.events.glob("node-*.jsonl"))

    def checkpoint_steps(self) -> list[int]:
        """Steps whose checkpoint is whole: the manifest is written last."""
        folders = ((_STEP.match(p.name), p) for p in self.checkpoints.glob("step-*"))
        return sorted(int(m.group(1)) for m, p in folders if m and (p / MANIFEST).is_file())

    def last_checkpoint(self) -> Path | None:
        steps = self.checkpoint_steps()
        return self.checkpoint(steps[-1]) if steps else None

    @classmethod
    def create_or_resume(
        cls,
        path: Path,
        config_document: dict[str, Any],
        *,
        plan_id: str = "",
        point_id: str = "",
        study_id: str = "",
    ) -> RunDirectory:
        """A new run directory, or the existing one if it has the same resolved configuration."""
        directory = cls(path)
        kind = _kind(config_document)
        if directory.holds(config_document):
            return directory
        _make_folder(path)
        ids = {"plan": plan_id, "point": point_id, "study": study_id}
        body = {"id": path.resolve().name, "kind": kind, "created": datetime.now(UTC).isoformat(), **ids}
        with _environment_errors(path):
            write_document(directory.run, document("run", body))
            for folder in (directory.logs, directory.events, directory.checkpoints):
                folder.mkdir(exist_ok=True)
            write_document(directory.config, config_document)  # last: it makes the directory a run
        return directory

    def holds(self, config_document: dict[str, Any]) -> bool:
        """Whether this run has that configuration; false if there is no run. Another one raises ConfigError."""
        if not self.config.exists():
            return False
        stored = read_document(self.config, _kind(config_document))
        if digest(stored) != digest(config_document):
            raise ConfigError(
                f"{self.path}: holds a run with another configuration ({_difference(stored, config_document)}): "
                "choose another --run-dir, or give the same options to resume"
            )
        return True

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run directory that exists."""
        directory = cls(path)
        if not directory.config.is_file():
            below = directory.first_below()
            hint = "check the path" if below is None else f"name one below it, such as {below}"
            raise ConfigError(f"{path}: is not a run directory: it has no {directory.config.name}; {hint}")
        return directory

    def first_below(self) -> Path | None:
        """The first run directory in this folder: the results of a study hold one for each point and repeat."""
        for depth in range(1, MAX_DEPTH_BELOW + 1):
            configs = sorted(self.path.glob(f"{'*/' * depth}{self.config.name}"))
            if configs:
                return configs[0].parent
        return None

    def read_machine(self) -> dict[str, Any]:
        """The devices, as recorded at launch; empty if they were unknown."""
        return read_document(self.machine, "machine") if self.machine.exists() else {}

    def peak_flop_per_s(self) -> float | None:
        """Dense peak of one device in the run's precision; None if it was unknown at launch."""
        peak = self.read_machine().get("peak_flop_per_s")
        if peak is None:
            return None
        if isinstance(peak, bool) or not isinstance(peak, int | float) or peak <= 0:
            raise DocumentError(
                f"{self.machine}: key 'peak_flop_per_s' is no positive number; it is not as it was written"
            )
        return float(peak)

    def read_exit_info(self) -> ExitInfo | None:
        """How the latest attempt ended. Keys that a newer release added are left out."""
        if not self.exit_info.exists():
            return None
        return restore(read_document(self.exit_info, "exit-info"), ExitInfo, where=str(self.exit_info))

    def write_exit_info(self, info: ExitInfo, *, is_cause: bool = False) -> None:
        """Record how an attempt ended. The first cause is kept: other ranks end later because of it.

        `is_cause`: this is known to be the cause, and replaces what other ranks wrote.
        """
        earlier: ExitInfo | None = None
        with contextlib.suppress(ConfigError):  # of another version, or damaged: replaced
            earlier = self.read_exit_info()
        same = earlier is not None and (earlier.job, earlier.attempt) == (info.job, info.attempt)
        is_only_lost = earlier is not None and earlier.lost_another and not info.lost_another
        if earlier is None or not same or earlier.finished or is_cause or is_only_lost:
            write_document(self.exit_info, document("exit-info", asdict(info)))

    @contextlib.contextmanager
    def held(self, *, owner: str = "") -> Iterator[None]:
        """Refuse a second launcher in the same directory while this one runs.

        `owner` is the scheduler's job. A job that was queued again may find the lock of its own earlier attempt, which
        a file server keeps for a while after a node was lost: it goes on, because Slurm never runs a job twice at once.
        """
        lock = self.path / ".lock"
        with _environment_errors(self.path):
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(handle, 256, 0).decode("utf-8", "replace").strip()
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES) and (not owner or holder != owner):
                    job = f" (job {printable(holder)})" if holder else ""
                    raise ConfigError(
                        f"{self.path}: another run is active in it{job}: wait for it or choose another --run-dir"
                    ) from error
            with contextlib.suppress(OSError):  # on a full disk the lock itself is enough
                os.ftruncate(handle, 0)
                os.pwrite(handle, owner.encode(), 0)
            yield  # without locks on the file system, a second launcher is not refused
        finally:
            os.close(handle)


def new_run_id(slug: str, *, now: datetime | None = None) -> str:
    """UTC time and a word to find it by."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{re.sub(r'[^a-z0-9.]+', '-', slug.lower()).strip('-')}"


def _kind(config_document: dict[str, Any]) -> str:
    return str(config_document["schema"]).removeprefix("scalewright.").partition("/")[0]


def _make_folder(path: Path) -> None:
    if path.is_file():
        raise ConfigError(f"{path}: is a file: name a folder with --run-dir")
    with _environment_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        others = sorted(p.name for p in path.iterdir() if p.name != ".lock")
    if others and "run.json" not in others:
        raise ConfigError(
            f"{path}: is not empty ({others[0]}) and not a run directory: choose a new or empty --run-dir"
        )


@contextlib.contextmanager
def _environment_errors(path: Path) -> Iterator[None]:
    """Turn the error of a full or read-only disk into exit code 3: the machine is at fault, not the input."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailedError(
            f"{path}: the run directory cannot be written: {error.strerror}; choose another --run-dir"
        ) from error


def _difference(stored: dict[str, Any], requested: dict[str, Any]) -> str:
    """The first key that differs, with both values."""
    for key in sorted(set(stored) | set(requested)):
        old, new = stored.get(key), requested.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return f"{key}.{_difference(old, new)}"
        return f"{key} is {old}, not {new}"
    return "it differs"
