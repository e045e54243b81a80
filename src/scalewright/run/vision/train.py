"""Run the vision benchmark: resume, train epoch by epoch, validate, measure, save, and stop on a signal."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.records import metric_names as names
from scalewright.records.documents import read_document
from scalewright.records.types import ExitCode
from scalewright.run.checkpoint import Loaded
from scalewright.run.device import choose_device, join_group, make_bf16_products_work
from scalewright.run.host_use import OwnClock
from scalewright.run.rank_context import RankContext
from scalewright.run.saves import Saves
from scalewright.run.step_log import StepLog
from scalewright.run.vision.counted import counted_steps
from scalewright.run.vision.loader import Batches, ImageLoader, SyntheticBatches
from scalewright.run.vision.session import VisionSession, is_folded, open_vision_session
from scalewright.run.vision.source import OpenedSource, data_words, open_source
from scalewright.run.vision.validate import validate
from scalewright.workload import vision_run
from scalewright.workload.run_options import SYNTHETIC
from scalewright.workload.vision_run import VisionRun


def run(rank: RankContext) -> ExitCode:
    """Train for the configured epochs; 75 when stopped by a signal, with a checkpoint to resume from."""
    config = vision_run.from_document(
        read_document(rank.directory.config, vision_run.KIND), where=str(rank.directory.config)
    )
    if rank.world.world_size != config.num_ranks:
        raise ConfigError(
            f"the run is for {config.num_ranks} ranks, but {rank.world.world_size} were started: "
            f"start {config.num_ranks}"
        )
    device = choose_device(config.device, rank.world)
    note = make_bf16_products_work(device, [config.precision])
    if note is not None:
        rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=note)
    rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=_kernels(config, device))
    join_group(rank.world, device)
    try:
        with contextlib.closing(VisionTraining(config, rank, device)) as training:
            return training.run()
    finally:
        dist.destroy_process_group()


def _kernels(config: VisionRun, device: torch.device) -> str:
    words = [f"channels {'last' if config.channels_last else 'first'}", f"compile {config.compile}"]
    if is_folded(config, device):
        words.append("first convolution and pooling folded")
    return f"{', '.join(words)}; torch {torch.__version__}"


class VisionTraining:
    """One rank's run."""

    def __init__(
        self,
        config: VisionRun,
        rank: RankContext,
        device: torch.device,
    ) -> None:
        self.config, self.rank, self.device = config, rank, device
        self.opened: OpenedSource | None = None
        self.loader: ImageLoader | None = None
        with rank.watchdog.suspended():
            self.session: VisionSession = open_vision_session(config, device)
        self.saves = Saves(config, rank, layout=config.layout.brief, tensors=self.session.state, state=self._state)
        self.session.train_step.before_update = self.saves.hold_update
        self.log = StepLog(
            rank=rank, saves=self.saves, device=device, keep_trace=config.keep_trace,
        )  # fmt: skip
        is_plain = config.num_ranks > 1 and device.type == "cpu"
        self.own_clock = OwnClock(self.session.model.parameters(), is_used=is_plain)

    def run(self) -> ExitCode:
        first = self.saves.resume(self._restore)
        self.saves.make_room()
        self._open_data(first)
        begun, inside = divmod(first, self.config.steps_per_epoch)
        for epoch in range(begun, self.config.epochs):
            if self._epoch(epoch, first_step=inside if epoch == begun else 0):
                return ExitCode.REQUEUE
        self.saves.finish()
        self._conclude()
        return ExitCode.YES

    def close(self) -> None:
        self.saves.close()
        if self.loader is not None:
            self.loader.close()
        if self.opened is not None:
            self.opened.close()

    def _open_data(self, first: int) -> None:
        if self.config.data == SYNTHETIC:
            return
        with self.rank.watchdog.suspended():
            self.opened = open_source(self.config, self.rank.directory, self.rank.world, self._wait_for_all)
            self.rank.metrics.event(step=-1, name=names.EVENT_DATA, detail=data_words(self.opened.source.training))
            if self.opened.copies:
                self.log.write(first, names.COPYING_TIME, self.opened.copying_s)
            self.loader = ImageLoader(self.opened.source, self.config, self.device, rank=self.rank.world.rank)
            if first == 0:
                self._wait_for_all()  # ranks of a node share its cores, so their loaders are measured at the same time
                rate = self.loader.images_per_s()
                if rate is not None:
                    self.log.write(first, names.LOADER_RATE, rate)

    def _wait_for_all(self) -> None:
        if self.rank.world.world_size > 1:
            dist.barrier()

    def _epoch(self, epoch: int, *, first_step: int) -> bool:
        """Train an epoch from `first_step` of it on, and validate. True: a signal asks the run to stop."""
        config, started_s = self.config, time.perf_counter()
        last = (epoch + 1) * config.steps_per_epoch - 1
        with contextlib.closing(self._batches(epoch, first_step)) as batches:
            for step in range(epoch * config.steps_per_epoch + first_step, last + 1):
                self._step(step, batches, is_first=step == last + 1 - config.steps_per_epoch + first_step)
                if step < last and self.saves.after_step(step + 1, stop=self.rank.stop.requested is not None):
                    return True
        training_s = time.perf_counter() - started_s
        self._validate(last)
        if self.loader is not None:
            self.rank.metrics.event(step=last, name=names.EVENT_DATA, detail=self.loader.use_words())
        if first_step == 0:
            self.log.write(last, names.TRAINING_TIME, training_s)
            self.log.write(last, names.EPOCH_TIME, time.perf_counter() - started_s)
        return self.saves.after_step(last + 1, stop=self.rank.stop.requested is not None)

    def _batches(self, epoch: int, first_step: int) -> Batches:
        if self.loader is None:
            step = epoch * self.config.steps_per_epoch + first_step
            return SyntheticBatches(self.config, self.device, rank=self.rank.world.rank, first_step=step)
        return self.loader.training(epoch, first_step=first_step)

    def _step(self, step: int, batches: Batches, *, is_first: bool) -> None:
        config = self.config
        is_profiled = step >= config.steps - config.profile_steps and step > 0
        with self.log.timing(is_profiled=is_profiled, step=step) as clock:
            batch = batches.next()
            result = self.session.step(batch.images_BHWC, batch.labels_B)
            loss = float(result.loss)  # waits for the device
        clock.data_wait_s, clock.own_s = batch.waited_s, self.own_clock.since_s(clock.started_s)
        self.log.done(
            step, clock, loss=loss, device_flop=config.step_flop / config.num_ranks, counts=not is_first,
            others={names.LEARNING_RATE: config.rate(step), names.IMAGES_PER_S: config.global_batch / clock.wall_s},
        )  # fmt: skip

    def _validate(self, step: int) -> None:
        if not self.config.validates or self.loader is None:
            return
        with self.rank.watchdog.suspended():
            scores = validate(self.session, self.loader.validation())
        if scores is not None:
            self.log.write(step, names.VALIDATION_LOSS, scores.loss)
            self.log.write(step, names.TOP_1, scores.top_1_frac)
            self.log.write(step, names.TOP_5, scores.top_5_frac)

    def _state(self, done: int) -> dict[str, Any]:
        return {
            "num_updates": self.session.optimizer.num_updates,
            "num_samples": done * self.config.global_batch,
            "loss_scale": self.session.train_step.loss_scale.state(),
        }

    def _restore(self, loaded: Loaded, tensors: dict[str, Tensor]) -> None:
        del tensors  # filled in place
        state, train_step = loaded.manifest.state, self.session.train_step
        try:
            self.session.optimizer.num_updates, train_step.num_done = int(state["num_updates"]), loaded.manifest.step
            train_step.loss_scale.restore(state["loss_scale"])
            is_own = loaded.folder.parent == self.rank.directory.checkpoints
            self.session.optimizer.check_resumed(num_steps=loaded.manifest.step, is_own=is_own)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{loaded.folder}: its state is not that of a vision run ({error}); resume from a checkpoint of one"
            ) from error

    def _conclude(self) -> None:
        """Record which steps count."""
        counted = counted_steps(self.config, self.log.timed)
        if counted is None:
            return
        self.rank.metrics.event(
            step=counted.first, name=names.EVENT_STEADY, detail=counted.verdict, value=counted.median_s, unit="s"
        )
        if counted.last is not None:
            self.rank.metrics.event(
                step=counted.last, name=names.EVENT_STEADY_END, detail="the last step that counts", value=1.0
            )
