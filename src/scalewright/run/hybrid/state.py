"""ControllerState: all that the controller knows, changed by operations only. The journal holds these operations.

Nothing here knows a clock, a socket or a file, and no operation decides anything: the same operations in the same
order give the same state. When an iteration begins or ends, who gets which rollouts and who is dead is decided in
`leases.py` and `controller.py`, and comes here as an operation.

A rollout is open, or it ended and waits for its group, or it is in the batch of exactly one step. The batch of a step
never changes after `end`. It is forgotten when a checkpoint after that step is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from scalewright.run.hybrid.messages import ControllerRefusedError
from scalewright.workload.reasoning.iteration import iteration_of
from scalewright.workload.reasoning.rollout_pool import (
    LEAST_GROUP,
    FinishedRollout,
    IterationResult,
    OpenRollout,
    PoolSettings,
    RolloutId,
    RolloutPool,
    TrainGroup,
)


@dataclass(slots=True, kw_only=True)
class EngineLease:
    """An engine that is alive as far as is known."""

    lease: int
    """Of this start of the engine. Messages of an earlier start are refused."""
    capacity: int
    version: int
    """Of the weights that it decodes with; -1: none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOffer:
    """What the trainer's weight servers offer."""

    version: int
    addresses: tuple[str, ...]
    way: str


@dataclass(frozen=True, slots=True)
class AnswerScore:
    reward: float
    is_correct: bool
    why: str
    failure: str = ""
    """How the reward itself failed in the sandbox; empty: it did not."""


@dataclass(slots=True, kw_only=True)
class StepBatch:
    """What one step trains on."""

    version: int
    """Of the weights that the iteration began with."""
    groups: list[TrainGroup]
    counts: dict[str, Any] = field(default_factory=dict)
    """Keys of records.hybrid.HybridStep."""

    def ids(self) -> list[RolloutId]:
        return [one.rollout.id for group in self.groups for one in group.answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """What decides the way of the state."""

    pool: PoolSettings
    num_steps: int
    staleness: int
    """Versions that the oldest trained token of an answer may be behind the trainer; 0: engines wait, and only
    `retention` bounds it."""

    def least_version(self, step: int) -> int:
        """Of an engine that writes for this step."""
        return max(step - self.staleness, 0)

    def least_trained(self, step: int) -> int:
        """An answer with an older token is not trained on in this step; 0: nothing is too old."""
        is_bounded = self.staleness > 0 and self.pool.old_tokens == "train"
        return self.least_version(step) if is_bounded else 0


class ControllerState:
    """See the module. `apply` is the only way to change it."""

    def __init__(self, settings: StateSettings) -> None:
        self.settings = settings
        self.pool = RolloutPool(settings.pool)
        self.step = 0
        """Iteration that is being written, or that begins next; as many have ended."""
        self.num_done = 0
        """Steps that the trainer has done at some time; after a restart it does some again."""
        self.checkpoint_step = 0
        self.version = -1
        """Newest version that was ever offered."""
        self.offer: WeightOffer | None = None
        self.engines: dict[int, EngineLease] = {}
        self.owners: dict[RolloutId, int] = {}
        """Engine that writes each open rollout; others are free."""
        self.batches: dict[int, StepBatch] = {}
        self.scores: dict[RolloutId, AnswerScore] = {}
        self.num_leases = 0
        self.num_expired = 0
        self._late: list[dict[str, Any]] = []
        """Rows that came between two iterations. The next one begins with them."""
        self._num_finished = 0
        self._began_s = 0.0
        self._done_s = 0.0
        self._reward_s = 0.0
        """Of rewards since the last step was done."""

    # Reading

    @property
    def is_over(self) -> bool:
        return self.num_done >= self.settings.num_steps

    def num_tokens(self, rollout: RolloutId) -> int:
        """Tokens of an open rollout, with those that wait for the next iteration."""
        late = sum(len(row["tokens"]) for row in self._late if row["id"] == rollout)
        return self.pool.opened(rollout).num_tokens + late

    def last_version(self, rollout: OpenRollout) -> int:
        """Of its last token; -1: it has none."""
        late = [row["version"] for row in self._late if row["id"] == rollout.id and row["tokens"]]
        return int(late[-1]) if late else rollout.version_runs[-1][0] if rollout.version_runs else -1

    def has_ended(self, rollout: RolloutId) -> bool:
        """Of a rollout that was open: whether its end is known."""
        late = any(row["id"] == rollout and "reason" in row for row in self._late)
        return late or not self.pool.is_open(rollout)

    def unscored(self) -> list[FinishedRollout]:
        """Rollouts that ended and have no reward yet."""
        ended = [*self.pool.ended, *(one for batch in self.batches.values() for g in batch.groups for one in g.answers)]
        return [one for one in ended if one.rollout.id not in self.scores]

    def is_ready(self, step: int) -> bool:
        """Whether the batch of a step can be given out."""
        return step in self.batches and all(rollout in self.scores for rollout in self.batches[step].ids())

    # Changing

    def apply(self, operation: Mapping[str, Any]) -> list[FinishedRollout]:
        """Do one operation; the rollouts that ended by it."""
        return _OPERATIONS[operation["call"]](self, operation) or []

    def check(self, operation: Mapping[str, Any]) -> None:
        """Refuse what no operation may do, before it is in the journal."""
        check = _CHECKS.get(operation["call"])
        if check is not None:
            check(self, operation)

    def _join(self, operation: Mapping[str, Any]) -> None:
        engine = operation["engine"]
        self._release(engine)
        lease = EngineLease(lease=self.num_leases, capacity=operation["capacity"], version=operation["version"])
        self.engines[engine] = lease
        self.num_leases += 1

    def _expire(self, operation: Mapping[str, Any]) -> None:
        self._release(operation["engine"])
        self.num_expired += 1

    def _release(self, engine: int) -> None:
        self.engines.pop(engine, None)
        self.owners = {rollout: owner for rollout, owner in self.owners.items() if owner != engine}

    def _lease(self, operation: Mapping[str, Any]) -> None:
        self.owners.update(dict.fromkeys(operation["ids"], operation["engine"]))

    def _report(self, operation: Mapping[str, Any]) -> list[FinishedRollout]:
        """Progress, or the ends of rollouts. Rows of rollouts that this engine does not own do nothing."""
        ended = []
        for row in operation["rows"]:
            rollout = row["id"]
            if self.owners.get(rollout) != operation["engine"] or not self.pool.is_open(rollout):
                continue
            fresh = self._fresh(row, num_before=self.num_tokens(rollout))
            if fresh is None:
                continue
            if self.pool.is_running:
                ended += self._write(fresh)
            else:
                self._late.append(fresh)
        return ended

    @staticmethod
    def _fresh(row: Mapping[str, Any], *, num_before: int) -> dict[str, Any] | None:
        """The row without tokens that came before, as when a message is repeated; None if some are missing."""
        num_known = num_before - row["start"]
        if num_known < 0:
            return None
        body = {"id": row["id"], "version": row["version"], "tokens": row["tokens"][num_known:],
                "log_probs": row["log_probs"][num_known:]}  # fmt: skip
        return body | ({"reason": row["reason"]} if "reason" in row else {})

    def _write(self, row: Mapping[str, Any]) -> list[FinishedRollout]:
        rollout = row["id"]
        if row["tokens"]:
            self.pool.wrote(rollout, row["tokens"], row["log_probs"], row["version"])
        if "reason" not in row:
            return []
        one = FinishedRollout(rollout=self.pool.opened(rollout), reason=row["reason"])
        self.pool.finished(rollout, row["reason"])
        self.owners.pop(rollout, None)
        self._num_finished += 1
        return [one]

    def _synced(self, operation: Mapping[str, Any]) -> None:
        self.engines[operation["engine"]].version = operation["version"]

    def _begin(self, operation: Mapping[str, Any]) -> list[FinishedRollout]:
        late, self._late = self._late, []
        ended_late = {row["id"] for row in late if "reason" in row}  # acknowledged, so not given up
        self.pool.begin(self.version, least_version=self.settings.least_trained(self.step), kept=ended_late)
        self._began_s, self._num_finished = operation["time_s"], 0
        self._done_s = self._done_s or self._began_s
        ended = [one for row in late if self.pool.is_open(row["id"]) for one in self._write(row)]
        self.owners = {rollout: owner for rollout, owner in self.owners.items() if self.pool.is_open(rollout)}
        return ended

    def _end(self, operation: Mapping[str, Any]) -> None:
        """The batch of this step is fixed here, for ever."""
        result = self.pool.end()
        groups, dropped = self._fresh_groups(result.trained)
        counts = self._counts(result, groups, dropped)
        counts["rollout_s"] = max(operation["time_s"] - self._began_s, 0.0)
        self.batches[self.step] = StepBatch(version=result.version, groups=groups, counts=counts)
        self.step += 1

    def _fresh_groups(self, trained: Sequence[TrainGroup]) -> tuple[list[TrainGroup], list[FinishedRollout]]:
        """Groups without the answers that are too stale; a group of fewer than two is dropped as a whole."""
        least = self.settings.least_trained(self.step)
        groups, dropped = [], []
        for group in trained:
            answers = [one for one in group.answers if not one.rollout.is_older(least)]
            if len(answers) < min(LEAST_GROUP, self.settings.pool.num_answers):
                answers = []
            kept = {one.rollout.id for one in answers}
            dropped += [one for one in group.answers if one.rollout.id not in kept]
            groups += [TrainGroup(prompt_place=group.prompt_place, answers=answers)] if answers else []
        return groups, dropped

    def _counts(
        self, result: IterationResult, groups: list[TrainGroup], dropped: Sequence[FinishedRollout]
    ) -> dict[str, Any]:
        line = iteration_of(self.pool, replace(result, trained=groups), step=self.step, trained_version=self.step)
        return asdict(line) | {
            "num_finished": self._num_finished,
            "num_dropped": len(dropped),
            "num_wasted_tokens": result.num_wasted + sum(one.rollout.num_tokens for one in dropped),
        }

    def _scored(self, operation: Mapping[str, Any]) -> None:
        for rollout, *score in operation["rows"]:
            self.scores.setdefault(rollout, AnswerScore(*score))
        self._reward_s += operation.get("seconds", 0.0)

    def _publish(self, operation: Mapping[str, Any]) -> None:
        version = operation["version"]
        self.offer = WeightOffer(version=version, addresses=tuple(operation["addresses"]), way=operation["way"])
        self.version = max(self.version, version)

    def _done(self, operation: Mapping[str, Any]) -> None:
        step = operation["step"]
        if step + 1 > self.num_done:
            self.num_done = step + 1
            counts = self.batches[step].counts
            failures = [self.scores[rollout].failure for rollout in self.batches[step].ids()]
            counts["sandbox_outcomes"] = dict(sorted(Counter(failure or "ok" for failure in failures).items()))
            counts["reward_s"], self._reward_s = self._reward_s, 0.0
            counts.update(operation["seconds"])
            counts["wall_s"] = max(operation["time_s"] - self._done_s, 0.0)
            self._done_s = operation["time_s"]
        self._publish(operation)

    def _resume(self, operation: Mapping[str, Any]) -> None:
        """The trainer starts again. Its weight servers are gone until it publishes."""
        self.offer = None
        self.num_done = max(self.num_done, operation["step"])

    def _checkpointed(self, operation: Mapping[str, Any]) -> None:
        self.checkpoint_step = max(self.checkpoint_step, operation["step"])
        self.batches = {step: batch for step, batch in self.batches.items() if step >= self.checkpoint_step}
        kept = {one.rollout.id for one in self.pool.ended}.union(*(batch.ids() for batch in self.batches.values()))
        self.scores = {rollout: score for rollout, score in self.scores.items() if rollout in kept}

    # Refusing

    def _check_join(self, operation: Mapping[str, Any]) -> None:
        if operation["version"] > self.version:
            raise ControllerRefusedError(
                f"engine {operation['engine']} joins with version {operation['version']}, and the newest is "
                f"{self.version}: start the engine again"
            )

    def _check_synced(self, operation: Mapping[str, Any]) -> None:
        versions = sorted(set(operation["ranks"]) | {operation["version"]})
        if len(versions) > 1:
            raise ControllerRefusedError(
                f"ranks of engine {operation['engine']} hold versions {' and '.join(map(str, versions))}: one answer "
                "must come from one version; start the engine again, so that all its ranks load the same"
            )
        if operation["version"] > self.version:
            raise ControllerRefusedError(
                f"engine {operation['engine']} says it has version {operation['version']}, and the newest is "
                f"{self.version}: start the engine again"
            )

    def _check_report(self, operation: Mapping[str, Any]) -> None:
        newest = self.engines[operation["engine"]].version
        last: dict[RolloutId, int] = {}
        for row in operation["rows"]:
            rollout, version = row["id"], row["version"]
            if self.pool.is_open(rollout):
                last.setdefault(rollout, self.last_version(self.pool.opened(rollout)))
            if not row["tokens"]:
                continue
            if not max(last.get(rollout, 0), 0) <= version <= newest:
                raise ControllerRefusedError(
                    f"engine {operation['engine']} wrote rollout {rollout} with version {version} after version "
                    f"{last.get(rollout, 0)}, and it synced to {newest}: call synced before a report with new weights"
                )
            last[rollout] = version

    def _check_publish(self, operation: Mapping[str, Any]) -> None:
        if not 0 <= operation["version"] <= self.step:
            raise ControllerRefusedError(
                f"the trainer offers version {operation['version']}, and {self.step} batches were ever given out: the "
                "journal is of another run; choose another --run-dir"
            )

    def _check_done(self, operation: Mapping[str, Any]) -> None:
        step, version = operation["step"], operation["version"]
        if version != step + 1:
            raise ControllerRefusedError(f"step {step} makes version {step + 1}, not {version}")
        if not self.checkpoint_step <= step < self.step:
            raise ControllerRefusedError(self._step_text(f"the trainer has done step {step}"))
        if step >= self.num_done and not self.is_ready(step):
            raise ControllerRefusedError(
                f"the trainer has done step {step}, and its batch was not given out: get it first"
            )

    def _check_resume(self, operation: Mapping[str, Any]) -> None:
        if not self.checkpoint_step <= operation["step"] <= self.step:
            raise ControllerRefusedError(self._step_text(f"the trainer starts before step {operation['step']}"))

    def _check_checkpointed(self, operation: Mapping[str, Any]) -> None:
        if operation["step"] > self.num_done:
            raise ControllerRefusedError(
                f"a checkpoint before step {operation['step']}, and {self.num_done} steps are done: say done first"
            )

    def check_batch(self, step: int) -> None:
        if not self.checkpoint_step <= step < self.settings.num_steps:
            raise ControllerRefusedError(self._step_text(f"the trainer needs the batch of step {step}"))

    def _step_text(self, event: str) -> str:
        return (
            f"{event}: batches are kept from its last checkpoint on, which is before step {self.checkpoint_step}, and "
            f"{self.step} were written: resume from that checkpoint, or choose another --run-dir"
        )

    # On disk

    def to_document(self) -> dict[str, Any]:
        return {
            "pool": self.pool.to_document(),
            "num_steps": self.settings.num_steps,
            "staleness": self.settings.staleness,
            "numbers": [getattr(self, name) for name in _NUMBERS],
            "offer": None if self.offer is None else asdict(self.offer),
            "engines": [[engine, asdict(lease)] for engine, lease in self.engines.items()],
            "owners": self.owners,
            "batches": [[step, _batch_row(batch)] for step, batch in self.batches.items()],
            "scores": [[rollout, *astuple(one)] for rollout, one in self.scores.items()],
            "late": self._late,
        }

    @classmethod
    def from_document(cls, body: Mapping[str, Any]) -> ControllerState:
        pool = RolloutPool.from_document(body["pool"])
        settings = StateSettings(pool=pool.settings, num_steps=body["num_steps"], staleness=body["staleness"])
        state = cls(settings)
        state.pool = pool
        for name, value in zip(_NUMBERS, body["numbers"], strict=True):
            setattr(state, name, value)
        if body["offer"] is not None:
            state.offer = WeightOffer(**{**body["offer"], "addresses": tuple(body["offer"]["addresses"])})
        state.engines = {engine: EngineLease(**lease) for engine, lease in body["engines"]}
        state.owners = dict(body["owners"])
        state.batches = {step: _batch(row) for step, row in body["batches"]}
        state._scored({"rows": body["scores"]})
        state._late = [dict(row) for row in body["late"]]
        return state


_NUMBERS = ("step", "num_done", "checkpoint_step", "version", "num_leases", "num_expired", "_num_finished", "_began_s",
            "_done_s", "_reward_s")  # fmt: skip
_OPERATIONS = {
    "join": ControllerState._join, "expire": ControllerState._expire, "lease": ControllerState._lease,
    "progress": ControllerState._report, "finished": ControllerState._report, "synced": ControllerState._synced,
    "begin": ControllerState._begin, "end": ControllerState._end, "scored": ControllerState._scored,
    "publish": ControllerState._publish, "done": ControllerState._done, "resume": ControllerState._resume,
    "checkpointed": ControllerState._checkpointed,
}  # fmt: skip
_CHECKS = {
    "join": ControllerState._check_join, "progress": ControllerState._check_report,
    "finished": ControllerState._check_report,
    "synced": ControllerState._check_synced, "publish": ControllerState._check_publish,
    "done": ControllerState._check_done, "resume": ControllerState._check_resume,
    "checkpointed": ControllerState._check_checkpointed,
}  # fmt: skip


def _batch_row(batch: StepBatch) -> dict[str, Any]:
    groups = [[group.prompt_place, [one.to_row() for one in group.answers]] for group in batch.groups]
    return {"version": batch.version, "groups": groups, "counts": batch.counts}


def _batch(row: Mapping[str, Any]) -> StepBatch:
    groups = [
        TrainGroup(prompt_place=place, answers=[FinishedRollout.from_row(one) for one in answers])
        for place, answers in row["groups"]
    ]
    return StepBatch(version=row["version"], groups=groups, counts=dict(row["counts"]))
