"""The trainer as a role of its own: GRPO on batches of the controller, with weights served to the engines.

A step gets the same batch whenever it is asked for, so a trainer that was killed goes on from its checkpoint with the
batches that it had, and nothing is trained twice in the weights that survive. After each step every rank serves the new
weights. Everything else, from updates to the evaluation at the end, is that of the co-located stage.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import torch.distributed as dist

from scalewright.data.reasoning.task import Problem, Score
from scalewright.errors import ConfigError
from scalewright.records.hybrid import HybridSettings
from scalewright.run.generate.served_model import stored_dtype
from scalewright.run.hybrid.client import ControllerClient
from scalewright.run.hybrid.engine_weights import reachable_host
from scalewright.run.hybrid.messages import BatchGroup, TrainAnswer, TrainBatch
from scalewright.run.reasoning.exchange import from_all_ranks
from scalewright.run.reasoning.grpo import Answered, GrpoStage
from scalewright.run.reasoning.rollout import Rollout
from scalewright.run.reasoning.session import ScoredRollout
from scalewright.run.signals import StopRequestedError
from scalewright.run.weight_sync.result import SyncWay
from scalewright.run.weight_sync.sync import WayTrials
from scalewright.run.weight_sync.trainer_side import TrainerWeights

WAIT_S = 1.0
"""Of one request for a batch; between two of them a stop is noticed."""
TOKEN_WAIT_S = 120.0
WEIGHTS = "weights"
"""Folder of the run directory for a sync by file."""


class SeparateGrpoStage(GrpoStage):
    """One rank's part of a GRPO stage whose answers are written by engines of their own."""

    records_iterations = False  # the controller does

    def prepare(self) -> None:
        config = self.config
        self._open_reference()
        self._checkpointed = -1
        self._client: ControllerClient | None = None
        if self.session.is_first:
            self._client = ControllerClient(
                self.session.directory.path, "trainer", 0, is_stopped=lambda: self.rank.stop.requested is not None
            )
            self._client.resume(self.first_step)
        from_all_ranks(lambda: None)  # the controller is there, and so is its token
        self._weights = TrainerWeights(
            self.trainer, engine_dtype=stored_dtype(config.engine.precision, self.device), token=self._token(),
            host=reachable_host(self.rank.world), folder=self.session.directory.path / WEIGHTS,
        )  # fmt: skip
        self._trials = WayTrials(self.settings.roles.sync)
        addresses, way = self._published(self.first_step)
        if self._client is not None:
            self._client.publish(self.first_step, addresses, way)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(AttributeError):  # a stage that was never prepared has none of them
            self._weights.close()
            if self._client is not None:
                self._client.close()

    def hybrid_settings(self) -> HybridSettings:
        roles = self.settings.roles
        return replace(
            super().hybrid_settings(), mode=roles.mode, staleness=roles.staleness,
            engine_ranks=list(roles.engine_ranks), sync_way=roles.sync,
        )  # fmt: skip

    def _answered(self, step: int) -> Answered:
        """The batch of this step."""
        self._say_checkpoint()
        batch = self._batch(step)
        with self.session.clock.part("data"):
            groups = [self._scored(group) for group in batch.groups]
            self.session.count_rewards([one for group in groups for one in group])
            skipped = [[self._num_skipped(one, batch.version) for one in group.answers] for group in batch.groups]
        num_decoded = int(batch.counts.get("num_decoded_tokens", 0))
        return self._of_groups(groups, skipped, num_decoded_tokens=num_decoded)

    @property
    def has_old_tokens(self) -> bool:
        return bool(self.settings.token_budget or self.settings.roles.staleness)

    def _num_skipped(self, answer: TrainAnswer, version: int) -> int:
        return answer.rollout.num_older(version) if self.settings.old_tokens == "mask" else 0

    def _batch(self, step: int) -> TrainBatch:
        """Rank 0 asks the controller until the batch is there; every rank gets it, or stops."""
        box: list[TrainBatch | None] = [None]
        with self.session.clock.part("idle", waits_for="rollouts"), self.rank.watchdog.suspended():
            while True:
                if self._client is not None and self.rank.stop.requested is None:
                    box[0] = self._client.batch(step, wait_s=WAIT_S)
                batch, is_stopping = self._shared(box, is_stopping=self.rank.stop.requested is not None)
                if batch is not None:
                    return batch
                if is_stopping:
                    raise StopRequestedError(f"stopped while step {step} waited for its answers")

    def _shared(self, box: list[TrainBatch | None], *, is_stopping: bool) -> tuple[TrainBatch | None, bool]:
        if self.rank.world.world_size == 1:
            return box[0], is_stopping
        rows = [(box[0], is_stopping)]
        dist.broadcast_object_list(rows, src=0)
        return rows[0]

    def _scored(self, group: BatchGroup) -> list[ScoredRollout]:
        problem = Problem(id=group.problem_id, prompt=group.prompt)
        return [
            ScoredRollout(
                rollout=Rollout(
                    problem=problem, index=one.index, tokens=tuple(one.tokens), log_probs=tuple(one.log_probs),
                    reason=answer.reason, weights_version=(one.versions[0], one.versions[-1]),  # type: ignore[arg-type]
                ),
                score=Score(
                    reward=answer.reward, is_correct=answer.is_correct, why=answer.why, failure=answer.failure
                ),
            )
            for answer in group.answers
            for one in (answer.rollout,)
        ]  # fmt: skip

    def sync_weights(self) -> None:
        """Serve the new weights and say that the step is done. Engines pull them when they are told to."""
        step, clock = self.session.clock.step, self.session.clock
        with clock.part("weight_sync"):
            addresses, way = self._published(step + 1)
            if self._client is not None:
                train_s = clock.seconds("training") + clock.seconds("log_probs")
                self._trials.pulled(self._client.done(step, step + 1, addresses, way, seconds={"train_s": train_s}))

    def _published(self, version: int) -> tuple[Sequence[str], SyncWay]:
        """What engines pull this version from, and how."""
        way, begun_s = from_all_ranks(self._trials.next_way)[0], time.monotonic()
        addresses = from_all_ranks(lambda: self._weights.publish(version, way))
        self._trials.offered(way, time.monotonic() - begun_s)
        return addresses if way == "peers" else addresses[:1], way

    def _say_checkpoint(self) -> None:
        """Whole checkpoints of earlier steps: the controller may forget batches before them."""
        if self._client is None:
            return
        whole = self.session.directory.checkpoint_steps()
        if whole and whole[0] > self._checkpointed:
            self._checkpointed = whole[0]
            self._client.checkpointed(whole[0])

    def _token(self) -> str:
        path, until_s = self.session.directory.controller_token, time.monotonic() + TOKEN_WAIT_S
        while not path.exists():  # shared file systems show new files late
            if time.monotonic() > until_s:
                raise ConfigError(f"{path}: the controller wrote no token here: choose a folder that all nodes share")
            time.sleep(0.1)
        return path.read_text(encoding="ascii").strip()
