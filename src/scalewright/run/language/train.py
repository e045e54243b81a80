"""Run the language benchmark: resume, train, measure, save, and stop on a signal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.data.tokens.reader import checked_start, data_state
from scalewright.errors import ConfigError
from scalewright.records import metric_names as names
from scalewright.records.documents import read_document
from scalewright.records.types import ExitCode
from scalewright.run.checkpoint import OPTIONAL, Loaded
from scalewright.run.device import allow_attention, choose_device, join_group, make_bf16_products_work
from scalewright.run.host_use import OwnClock
from scalewright.run.language.data import Loader, open_data
from scalewright.run.language.mesh_position import check_world_size
from scalewright.run.language.session import LanguageSession, open_language_session
from scalewright.run.language.whole_weights import hugging_face_start, start_session
from scalewright.run.rank_context import RankContext
from scalewright.run.saves import Saves
from scalewright.run.steady import steady_state
from scalewright.run.step_log import StepLog
from scalewright.workload import language_run
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.run_options import SYNTHETIC, has_tensors


def run(rank: RankContext) -> ExitCode:
    """Train for the configured steps; 75 when stopped by a signal, with a checkpoint to resume from."""
    config = language_run.from_document(
        read_document(rank.directory.config, language_run.KIND), where=str(rank.directory.config)
    )
    check_world_size(config.layout, rank.world.world_size)
    device = choose_device(config.device, rank.world)
    note = make_bf16_products_work(device, [config.precision])
    if note is not None:
        rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=note)
    kernel = allow_attention(config.attention, device)
    rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=f"attention: {kernel}; torch {torch.__version__}")
    join_group(rank.world, device)
    try:
        with contextlib.closing(LanguageTraining(config, rank, device)) as training:
            return training.run()
    finally:
        dist.destroy_process_group()


class LanguageTraining:
    """One rank's run."""

    def __init__(
        self,
        config: LanguageRun,
        rank: RankContext,
        device: torch.device,
    ) -> None:
        self.config, self.rank, self.device = config, rank, device
        with rank.watchdog.suspended():
            start = hugging_face_start(config.start_from)
            constants = None if start is None else start.constants
            self.session: LanguageSession = open_language_session(config, device, constants=constants)
            if start is not None:
                start_session(self.session, start)
        self.saves = Saves(config, rank, layout=config.layout.brief, tensors=self._tensors, state=self._state)
        self.session.train_step.before_update = self.saves.hold_update
        self.log = StepLog(
            rank=rank, saves=self.saves, device=device, keep_trace=config.keep_trace,
        )  # fmt: skip
        layout = config.layout
        is_plain = int(layout.num_gpus) == int(layout.dp) > 1 and layout.zero == 0 and device.type == "cpu"
        self.own_clock = OwnClock(self.session.split.parameters().values(), is_used=is_plain)
        self._num_tokens, self._num_steps = 0, 0
        self._data = open_data(config)
        self._first, self._first_sample = 0, 0
        """Step and sample that this attempt begins with."""

    def run(self) -> ExitCode:
        start_from = "" if has_tensors(Path(self.config.start_from)) else self.config.start_from
        self._first = first = self.saves.resume(self._restore, start_from=start_from)
        self.saves.make_room()
        loader = self.session.loader(first_step=first, first_sample=self._first_sample, data=self._data)
        try:
            for step in range(first, self.config.steps):
                self._step(step, loader)
                if self.saves.after_step(step + 1, stop=self.rank.stop.requested is not None):
                    return ExitCode.REQUEUE
        finally:
            loader.close()
        self.saves.finish()
        self._conclude()
        return ExitCode.YES

    def close(self) -> None:
        self.saves.close()

    def _step(self, step: int, loader: Loader) -> None:
        config = self.config
        is_profiled = step >= config.steps - config.profile_steps and step > 0
        with self.log.timing(is_profiled=is_profiled, step=step) as clock:
            batch = loader.next()
            result = self.session.step(batch.tokens_BL, batch.targets_BL)
            loss, norm = float(result.loss), float(result.grad_norm)  # waits for the device
        clock.data_wait_s, clock.own_s = batch.waited_s, self.own_clock.since_s(clock.started_s)
        self._num_steps += 1
        self._num_tokens += result.num_tokens
        self.log.done(
            step, clock, loss=loss, device_flop=config.step_flop / int(config.layout.num_gpus),
            others={names.GRAD_NORM: norm, names.TOKENS_PER_S: config.tokens_per_step / clock.wall_s},
        )  # fmt: skip

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self.session.optimizer.state()
        own = f"{OPTIONAL}{self.rank.world.rank}"
        tensors[f"{own}.random"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors[f"{own}.random_cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def _state(self, done: int) -> dict[str, Any]:
        return {
            "num_updates": self.session.optimizer.num_updates,
            **data_state(self._data, num_samples=self._samples_at(done)),
            "loss_scale": self.session.train_step.loss_scale.state(),
        }

    def _samples_at(self, done: int) -> int:
        return self._first_sample + (done - self._first) * int(self.config.layout.gbs)

    def _restore_data(self, loaded: Loaded) -> None:
        """Continue after the samples that were taken, whatever the batch was; other data begins with its first."""
        state = loaded.manifest.state
        self._first_sample = loaded.manifest.step * int(self.config.layout.gbs)
        if "set_tokens" not in state:
            return  # a checkpoint of an earlier version
        is_own = loaded.folder.parent == self.rank.directory.checkpoints
        if is_own or state["set_tokens"] == self._data.num_tokens:
            self._first_sample = checked_start(self._data, state)
        else:
            self._first_sample = 0

    def _restore(self, loaded: Loaded, tensors: dict[str, Tensor]) -> None:
        own, state = f"{OPTIONAL}{self.rank.world.rank}", loaded.manifest.state
        torch.set_rng_state(tensors[f"{own}.random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors[f"{own}.random_cuda"], self.device)
        self.session.optimizer.refresh_weights()
        self._restore_data(loaded)
        try:
            self.session.optimizer.num_updates = int(state["num_updates"])
            self.session.train_step.loss_scale.restore(state["loss_scale"])
            is_own = loaded.folder.parent == self.rank.directory.checkpoints
            self.session.optimizer.check_resumed(num_steps=loaded.manifest.step, is_own=is_own)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{loaded.folder}: its state is not that of a language run ({error}); resume from a checkpoint of one"
            ) from error

    def _conclude(self) -> None:
        """Record which steps count, and compare the reported tokens with the tokens that were trained on."""
        timed, last = self.log.timed, self.config.steps - 1
        verdict = steady_state([t.wall_s for t in timed], self.config.protocol)
        if timed:
            first = timed[verdict.first].step
            self.rank.metrics.event(
                step=first, name=names.EVENT_STEADY, detail=verdict.verdict, value=verdict.median_s, unit="s"
            )
        counted = torch.tensor([self._num_tokens], dtype=torch.int64)
        if self.rank.world.world_size > 1:
            dist.all_reduce(counted)
        executed = int(counted) // int(self.config.layout.tp)  # ranks of a tensor group score the same tokens
        reported = self._num_steps * self.config.tokens_per_step
        detail = f"{reported} tokens reported, {executed} executed"
        self.rank.metrics.event(step=last, name=names.EVENT_TOKENS, detail=detail, value=float(executed == reported))
        self._record_data(last)

    def _record_data(self, last: int) -> None:
        """How far the run went through each set."""
        if self.config.data == SYNTHETIC:
            return
        taken = self._samples_at(last + 1)
        names_and_epochs = zip(self._data.names, self._data.epochs(taken), strict=True)
        words = [f"epochs_of_{Path(name).name.replace(' ', '_')}={epochs:.3g}" for name, epochs in names_and_epochs]
        self.rank.metrics.event(step=last, name=names.EVENT_DATA, detail=" ".join([f"samples={taken}", *words]))
