"""TrainingStage: the loop of every stage that trains: resume, step, measure, save, evaluate, stop on a signal.

A step depends on the configuration, its number and the weights alone, so a stage that was killed and resumed goes the
same way as one that was not.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from scalewright.catalog.types import TransformerShape
from scalewright.data.reasoning.problem_row import ProblemRow
from scalewright.data.reasoning.task import Problem
from scalewright.errors import ConfigError, ScalewrightError
from scalewright.records import metric_names as names
from scalewright.records.events import LineWriter
from scalewright.records.hybrid import HybridSettings, TimelineWriter
from scalewright.records.reasoning import Accuracy, CollectiveUse, CurvePoint, append_row, curve_writer
from scalewright.records.types import ExitCode
from scalewright.run.breakdown import StepSplit, split_step
from scalewright.run.checkpoint import NO_DOCUMENTS, OPTIONAL, Documents, Loaded
from scalewright.run.language.rotary import LayerConstants
from scalewright.run.rank_context import RankContext
from scalewright.run.reasoning.batches import SequenceBatch, TokenSequence, pack_sequences
from scalewright.run.reasoning.collective_use import collective_use
from scalewright.run.reasoning.colocated import Owner
from scalewright.run.reasoning.evaluate import evaluated, num_sequences
from scalewright.run.reasoning.iteration_log import IterationLog
from scalewright.run.reasoning.objectives import Objective
from scalewright.run.reasoning.record import StageMeter, write_record
from scalewright.run.reasoning.rollout import PolicyEngine
from scalewright.run.reasoning.rollout_log import RolloutLog
from scalewright.run.reasoning.session import StageSession
from scalewright.run.reasoning.start import StartWeights, start_state, start_weights
from scalewright.run.reasoning.trainer import SequenceTrainer, UpdateResult, open_trainer
from scalewright.run.saves import Saves
from scalewright.run.signals import StopRequestedError
from scalewright.run.step_log import StepClock, StepLog
from scalewright.workload.reasoning.lora_settings import LoraSettings
from scalewright.workload.reasoning.stage_run import ReasonRun

WIDTH_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


class TrainingStage(ABC):
    """One rank's part of a stage that trains."""

    writes_answers: ClassVar[bool] = False
    """Whether it trains on answers that it writes itself: such a stage has a timeline and a record of iterations."""
    records_iterations: ClassVar[bool] = True
    """Whether the stage writes that record itself."""

    def __init__(self, config: ReasonRun, rank: RankContext, device: torch.device) -> None:
        self.config, self.rank, self.device = config, rank, device
        self.session = StageSession(config, rank, device)
        self.lora = LoraSettings(rank=config.lora_rank, alpha=2.0 * config.lora_rank) if config.lora_rank else None
        with rank.watchdog.suspended():
            self._start = start_weights(config.start_from, seed=config.seed, device=torch.device("cpu"))
            self.trainer = self._open_model(config.shape, config.model_id, self._start.constants, lora=self.lora)
        self.saves = Saves(
            config, rank, layout=config.layout.brief, tensors=self._tensors, state=self._state,
            documents=self.saved_documents,
        )  # fmt: skip
        self.trainer.step.before_update = self.saves.hold_update
        self.log = StepLog(rank=rank, saves=self.saves, device=device, keep_trace=False, records_shapes=True)
        self.notes: list[str] = []
        self.resumed_from: Path | None = None
        """The checkpoint that this attempt goes on from."""
        self.first_step = 0
        """Of this attempt."""
        self._curve: LineWriter | None = None
        self.rollouts: RolloutLog | None = None
        self.iterations: IterationLog | None = None
        self._split: StepSplit | None = None
        self._collectives: dict[str, CollectiveUse] = {}
        self._is_updating = False
        self._row = ProblemRow(self.session.task, seed=config.seed)

    @abstractmethod
    def prepare(self) -> None:
        """Open what the steps need, once the weights are those of the first step of this attempt."""

    @abstractmethod
    def step(self, step: int) -> CurvePoint:
        """Do a step. What it returns is the step's line of the curve."""

    @abstractmethod
    def conclude(self) -> None:
        """Called when all steps are done; an error ends the stage with its sentence."""

    def turn(self, owner: Owner) -> None:
        """Called before the trainer's state or the engine's is used, for stages that keep one of them at a time."""
        del owner

    def run(self) -> ExitCode:
        with self.rank.watchdog.suspended():
            if self.lora is not None or not self.session.directory.checkpoint_steps():
                self._load(self.trainer, self._start)  # a checkpoint of adapters does not hold their base
        first = self.first_step = self.saves.resume(self._restore)
        with self.rank.watchdog.suspended():
            if first < self.config.steps:
                self.prepare()
        if self.session.is_first:
            self._curve = curve_writer(self.session.directory, first_step=first)
            self.rollouts = RolloutLog(self.session, first_step=first)
        if self.writes_answers:
            self.session.clock.timeline = TimelineWriter(self.session.directory, "trainer", self.rank.world.rank)
            if self.records_iterations and self.session.is_first:
                self.iterations = IterationLog(self.session, self.hybrid_settings())
        with StageMeter(self.session) as meter:
            for step in range(first, self.config.steps):
                try:
                    self._timed_step(step, meter)
                except StopRequestedError:  # before anything of this step was trained
                    self.turn("trainer")
                    self.saves.save(step, wait=True)
                    return ExitCode.REQUEUE
                self.turn("trainer")
                with self.session.clock.part("checkpoint"):
                    is_stopping = self.saves.after_step(step + 1, stop=self.rank.stop.requested is not None)
                if is_stopping:
                    return ExitCode.REQUEUE
            with self.session.clock.part("checkpoint"):
                self.saves.finish()
            self.conclude()
            self._finish(meter)
        return ExitCode.YES

    def close(self) -> None:
        self.saves.close()
        if self._curve is not None:
            self._curve.close()
        if self.session.clock.timeline is not None:
            self.session.clock.timeline.close()
        if self.iterations is not None:
            self.iterations.close()

    def saved_documents(self) -> Documents:
        """What a checkpoint holds beside tensors, by the name of the file."""
        return NO_DOCUMENTS

    def hybrid_settings(self) -> HybridSettings:
        """How answers and training are arranged."""
        return HybridSettings(mode="co-located", sync_way="copy", sandbox=self.config.task.sandbox)

    def _open_model(
        self, shape: TransformerShape, model_id: str, constants: LayerConstants | None, *, lora: LoraSettings | None
    ) -> SequenceTrainer:
        config = self.config
        return open_trainer(
            shape, config.layout, device=self.device, precision=config.precision, optimizer=config.optimizer,
            seed=config.seed, temperature=config.engine.sampling.temperature or 1.0, lora=lora,
            constants=constants, model_id=model_id, compile_mode="default" if self.device.type == "cuda" else "off",
        )  # fmt: skip

    @staticmethod
    def _load(trainer: SequenceTrainer, start: StartWeights) -> None:
        """Give a model its weights; those of the seed it has already."""
        if not isinstance(start.tensors, int):
            trainer.load_weights(start.tensors, where=start.where)

    def open_frozen(self, shape: TransformerShape, model_id: str, folder: str) -> SequenceTrainer:
        """A model that only scores: a reference or a teacher. It keeps no state of an optimizer."""
        start = start_weights(folder, seed=self.config.seed, device=torch.device("cpu"))
        model = self._open_model(shape, model_id, start.constants, lora=None)
        self._load(model, start)
        model.optimizer.means.clear()
        model.optimizer.squares.clear()
        return model

    def sync_weights(self) -> None:
        """Give the engine the trainer's weights, timed."""
        assert self.session.engine is not None
        started_s = time.perf_counter()
        with self.session.clock.part("weight_sync"):
            self.session.engine.sync(self.trainer.named_weights())
        if self.iterations is not None:
            self.iterations.synced(version=self.session.clock.step + 1, seconds=time.perf_counter() - started_s)

    def problems_at(self, start: int, num: int) -> list[Problem]:
        """Training problems number `start` and after, of an endless row that the seed decides."""
        return self._row.problems(start, num)

    def open_engine(self, *, num_sequences: int) -> PolicyEngine:
        """The engine with the trainer's weights."""
        return self.session.open_engine(
            self.trainer.named_weights(), num_sequences=num_sequences, constants=self._start.constants
        )

    def micro_batches(self, sequences: Sequence[TokenSequence], *, packs: bool) -> list[SequenceBatch]:
        """This rank's micro-batches of an update: sequences are dealt out by length, so that ranks have equal work."""
        return pack_sequences(
            [sequences[index] for index in self.own(sequences)],
            row_tokens=self.config.row_tokens or self.config.context,
            num_rows=int(self.config.layout.mbs),
            packing="packed" if packs else "padded",
            device=self.device,
            dtype=self.trainer.dtype,
            pad_token=self.session.task.pad_token,
        )

    def own(self, sequences: Sequence[TokenSequence]) -> list[int]:
        """Which sequences of an update this rank's replica trains on."""
        position = self.trainer.position
        order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i].prompt) + len(sequences[i].response), i))
        return sorted(order[position.mesh.get_local_rank("replica") :: position.num_replicas])

    def update(self, batches: Sequence[SequenceBatch], objective: Objective) -> UpdateResult:
        """Train once, timed and counted."""
        session = self.session
        self._is_updating = True
        before_s = session.clock.seconds("training")
        with session.clock.part("training"):
            result = self.trainer.update(batches, objective)
        self._is_updating = False
        tp = int(self.config.layout.tp)
        session.totals.add_work(
            "training",
            flop=session.work.training_flop(**counts_of(batches)) / tp,
            num_bytes=session.work.training_bytes(
                num_passes=len(batches), num_updates=1, width_bytes=WIDTH_BYTES[self.config.precision]
            )
            / tp,
            seconds=session.clock.seconds("training") - before_s,
        )
        return result

    def log_probs(self, trainer: SequenceTrainer, batches: Sequence[SequenceBatch]) -> list[Tensor]:
        """Log-probabilities of the answers under a model, timed and counted as work of the policy's size."""
        session = self.session
        before_s = session.clock.seconds("log_probs")
        with session.clock.part("log_probs"):
            values = trainer.log_probs_of(batches)
        tp = int(self.config.layout.tp)
        width = WIDTH_BYTES[self.config.precision]
        session.totals.add_work(
            "log_probs",
            flop=session.work.forward_flop(**counts_of(batches)) / tp,
            num_bytes=float(session.work.num_params * width * len(batches)) / tp,
            seconds=session.clock.seconds("log_probs") - before_s,
        )
        return values

    def _timed_step(self, step: int, meter: StageMeter) -> None:
        config, session = self.config, self.session
        is_profiled = step >= config.steps - config.profile_steps and step > 0
        flop_before = session.totals["training_flop"]
        session.clock.begin_step(step)
        try:
            with self.log.timing(is_profiled=is_profiled, step=step) as clock:
                point = self.step(step)
                ended_s = time.perf_counter()
        except ScalewrightError as error:
            self._keep(step, error)
            raise
        seconds = session.clock.take(clock.wall_s)
        meter.step_done(seconds)
        flop = session.totals["training_flop"] - flop_before
        with self.rank.watchdog.suspended() if is_profiled else contextlib.nullcontext():  # a trace takes long to read
            self._record(step, point, seconds, clock, flop=flop)
        if is_profiled and session.clock.timeline is not None:
            session.clock.timeline.add("profile", ended_s, time.perf_counter(), step=step)

    def _record(
        self, step: int, point: CurvePoint, seconds: dict[str, float], clock: StepClock, *, flop: float
    ) -> None:
        others = {
            name: value
            for name, value in (
                (names.GRAD_NORM, point.grad_norm), (names.TOKENS_PER_S, point.num_tokens / clock.wall_s),
                (names.REWARD, point.reward_mean),
            )
            if value is not None
        }  # fmt: skip
        clock.data_wait_s = seconds.get("data", 0.0)
        for part, value in seconds.items():
            self.log.write(step, names.STAGE_PARTS[part], value)
        self.log.done(step, clock, loss=point.loss or 0.0, device_flop=flop, others=others)
        if clock.trace is not None:
            self._split = split_step(clock.trace, self.log.timed or [], device=self.device) if self.log.timed else None
            for name, use in collective_use(clock.trace).items():
                before = self._collectives.get(name, CollectiveUse(count=0, bytes=0.0, seconds=0.0))
                self._collectives[name] = CollectiveUse(
                    count=before.count + use.count, bytes=before.bytes + use.bytes,
                    seconds=before.seconds + use.seconds,
                )  # fmt: skip
        accuracy = self._accuracy_on_the_way(step)
        if self._curve is not None:
            rate = None if point.loss is None else float(self.trainer.optimizer.scalars[0])  # None: no update
            whole = replace(
                point, step=step, learning_rate=rate, seconds_by_part=seconds,
                accuracy_frac=None if accuracy is None else accuracy.greedy.value_frac,
            )  # fmt: skip
            append_row(self._curve, whole.row())

    def _accuracy_on_the_way(self, step: int) -> Accuracy | None:
        every = self.config.evaluation.every
        if not every or (step + 1) % every or step + 1 == self.config.steps:
            return None
        return self._evaluate(f"step-{step}", samples=False)

    def _evaluate(self, label: str, *, samples: bool) -> Accuracy | None:
        if not self.config.evaluation.num_problems:
            return None
        with self.rank.watchdog.suspended(), self.session.clock.part("evaluation"):
            self.turn("engine")
            if self.session.engine is None:
                self.open_engine(num_sequences=num_sequences(self.session))
            else:
                self.session.engine.sync(self.trainer.named_weights())
            evaluation = evaluated(self.session, label=label, samples=samples)
        return None if evaluation is None else evaluation.accuracy

    def _finish(self, meter: StageMeter) -> None:
        accuracy = self._evaluate("end", samples=True)
        meter.step_done(self.session.clock.take())
        num_params = sum(param.numel() for param in self.trainer.optimizer.params.values())
        write_record(
            self.session, accuracy=accuracy, num_trained_params=num_params, split=self._split,
            collectives=self._collectives, energy_of=meter.energy_of, notes=self.notes,
        )  # fmt: skip

    def _keep(self, step: int, error: ScalewrightError) -> None:
        """Save the state before a step that failed, if no weight was changed in it: nothing that was done is lost."""
        if isinstance(error, ConfigError) and not self._is_updating and step > 0:
            self.turn("trainer")
            with contextlib.suppress(ScalewrightError):
                self.saves.save(step, wait=True)

    def _tensors(self) -> dict[str, Tensor]:
        own = f"{OPTIONAL}{self.rank.world.rank}.totals"
        return self.trainer.tensors() | {own: self.session.totals.values}

    def _state(self, _: int) -> dict[str, Any]:
        return self.trainer.state() | {
            "stage": self.config.stage,
            "num_samples": int(self.session.totals["num_samples"]),
            **start_state(self._start, folder=self.config.start_from, lora=self.lora),
        }

    def _restore(self, loaded: Loaded, tensors: dict[str, Tensor]) -> None:
        self.trainer.restore(loaded, tensors)
        self.resumed_from = loaded.folder


def counts_of(batches: Sequence[SequenceBatch]) -> dict[str, float]:
    """Tokens that were read, tokens that were scored, and pairs of a query and a key, over micro-batches."""
    num_pairs = 0.0
    for batch in batches:
        num_pairs += float(batch.num_pairs)
    return {
        "num_tokens": float(sum(batch.num_tokens for batch in batches)),
        "num_scored": float(sum(len(batch.targets_T) for batch in batches)),
        "num_pairs": num_pairs,
    }
