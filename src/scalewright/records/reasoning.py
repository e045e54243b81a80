"""Files of a stage of reasoning-model training, in its run directory. Only this module knows their form.

stage.json              what the stage reached and what it used; written whole when the stage ends (reason-stage/1)
curve.jsonl             one line a step: reward, length, entropy, KL, loss, seconds by part (reason-curve/1)
rollouts.jsonl          answers to read, with their reward and the reason for it (reason-rollouts/1)
answers/shard-N.jsonl   answers of a generation stage; a shard that exists is whole (reason-answers/1)

A stage that is killed and resumed writes the lines of the steps after its checkpoint again: `curve_writer` and
`rollout_writer` first drop them, and readers keep the last line of a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from scalewright import units
from scalewright.errors import ConfigError, DocumentError
from scalewright.records.documents import check_schema, document, read_document, schema, write_document, write_text
from scalewright.records.events import LineWriter, json_lines
from scalewright.records.run_directory import RunDirectory

STAGE, CURVE, ROLLOUTS, ANSWERS = "reason-stage", "reason-curve", "reason-rollouts", "reason-answers"
WorkName = Literal["prefill", "decode", "training", "log_probs"]
StageName = Literal["sft", "grpo", "generate", "distill", "evaluate"]
PARTS = ("data", "generation", "reward", "release", "restore", "log_probs", "training", "weight_sync", "evaluation",
         "checkpoint", "idle")  # fmt: skip
"""Parts of a stage's time, in the order of a step. release, restore: state of the trainer or the engine leaves the
device, and comes again. idle: waiting for slower ranks, and what no other part covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of trials with its 95 % interval."""

    value_frac: float
    low_frac: float
    high_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Share of held-out problems that the model solves."""

    num_problems: int
    greedy: Rate
    """The likeliest token each time, one answer a problem."""
    num_answers: int = 0
    """Sampled answers to each problem; 0: none were sampled."""
    temperature: float = 1.0
    """Of the sampled answers."""
    pass_at_k: dict[int, Rate] = field(default_factory=dict)
    """Unbiased estimate of the share of problems with a right answer among k sampled ones."""
    mean_tokens: float = 0.0
    """Length of the greedy answers."""
    marks: str = ""
    """One character a problem, in the order of the test split: 1 where the greedy answer is right. Two stages with the
    same problems are compared problem by problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveUse:
    """Calls of one collective on one rank, mean over ranks, in the steps that were profiled."""

    count: int
    bytes: float
    """What the rank gave to the calls."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplitShares:
    """Where the time of the profiled steps went, mean over ranks; the four shares sum to 1."""

    compute_frac: float
    communication_frac: float
    """Exposed: nothing was computed meanwhile."""
    data_wait_frac: float
    idle_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """One kind of work: counted FLOP and bytes of one rank over the time that was measured for it."""

    name: WorkName
    flop: float
    bytes: float
    """Least traffic of the main memory: weights, and keys and values, once for each pass that reads them."""
    seconds: float

    @property
    def flop_per_byte(self) -> float:
        return self.flop / self.bytes

    @property
    def flop_per_s(self) -> float:
        return self.flop / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Distance between the trainer and the engine that wrote the answers, mean over steps."""

    kl: float
    """Of the two engines' distributions, by the k3 estimate on the sampled tokens."""
    masked_frac: float
    """Tokens outside the band, which train nothing."""
    effective_sample_frac: float
    """Effective sample size of the importance weights over the number of tokens."""
    clip_frac: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """What a stage reached, and what it used to get there. Times and counts are of all attempts together."""

    stage: StageName
    model: str
    num_params: int
    num_trained_params: int
    """Fewer than `num_params` with LoRA; 0 where nothing is trained."""
    num_ranks: int
    layout: str
    device: str
    """Name of the device, for people."""
    precision: str
    engine_precision: str
    seed: int
    steps: int
    num_attempts: int
    wall_s: float
    """Of the steps, without opening the model and the last evaluation."""
    accuracy: Accuracy | None
    """On the test split at the end of the stage; None: not measured."""
    seconds_by_part: dict[str, float]
    """Mean over ranks; names as in PARTS; evaluation and checkpoints are on top of `wall_s`."""
    rank_seconds_by_part: list[dict[str, float]]
    """The same for each rank, rank 0 first."""
    rank_gap_frac: float
    """(slowest - fastest) / slowest rank, by the time in which a rank was not idle."""
    split: StepSplitShares | None
    """None: no step was profiled."""
    collectives: dict[str, CollectiveUse]
    utilisation_frac: float | None
    """Share of the time in which the device computed; None: it does not say."""
    roofline: list[MeasuredWork]
    kv_occupancy_frac: float | None
    """Mean over decode steps of the share of the cache's pages in use; None: nothing was generated."""
    kv_peak_frac: float | None
    host_bytes: float
    """Peak resident memory of one rank's process, the largest of all ranks."""
    device_bytes: float | None
    """Peak memory allocated on one GPU; None on CPUs."""
    energy_j: float | None
    """None: the nodes have no counter that can be read."""
    energy_of: str
    """What the counters cover: whole nodes, GPUs, CPUs."""
    cost_usd: float | None
    """By the price of the device in the catalogue; None: it has none."""
    num_samples: int
    """Sequences that were generated, or trained on where none were generated."""
    num_tokens: int
    """Tokens of these: answers where they were generated, whole sequences otherwise."""
    train_flop: float
    """Of all ranks, by the published formula."""
    mismatch: Mismatch | None
    """None: no answer of an engine was trained on."""
    num_groups: int = 0
    num_equal_groups: int = 0
    """Groups whose answers all had the same reward: they teach nothing."""
    reward_failures: dict[str, int] = field(default_factory=dict)
    """Answers whose reward failed in the sandbox, by kind: time, memory, crash, ..."""
    sandbox: dict[str, str] = field(default_factory=dict)
    """Protections of the sandbox on this host, on or off and why; empty: rewards did not run in one."""
    notes: list[str] = field(default_factory=list)

    @property
    def cost_usd_per_thousand_samples(self) -> float | None:
        if self.cost_usd is None or not self.num_samples:
            return None
        return self.cost_usd / self.num_samples * units.KILO

    def document(self) -> dict[str, Any]:
        body = asdict(self)
        for row, point in zip(body["roofline"], self.roofline, strict=True):
            row.update(flop_per_byte=point.flop_per_byte, flop_per_s=point.flop_per_s)
        body["cost_usd_per_thousand_samples"] = self.cost_usd_per_thousand_samples
        return document(STAGE, body)


def write_stage(directory: RunDirectory, record: StageRecord) -> None:
    write_document(directory.stage, record.document())


def read_stage(directory: RunDirectory) -> StageRecord:
    """The record of a stage that ended."""
    doc = read_document(directory.stage, STAGE)
    try:
        since: dict[str, Any] = {"reward_failures": {}, "sandbox": {}}  # records of earlier versions have none
        body = {f.name: (since | dict(doc))[f.name] for f in fields(StageRecord)}
        if body["stage"] not in get_args(StageName):
            raise KeyError("stage")
        body["accuracy"] = _accuracy(body["accuracy"])
        body["split"] = None if body["split"] is None else StepSplitShares(**body["split"])
        body["collectives"] = {name: CollectiveUse(**row) for name, row in body["collectives"].items()}
        counted = {f.name for f in fields(MeasuredWork)}
        body["roofline"] = [MeasuredWork(**{k: row[k] for k in counted}) for row in body["roofline"]]
        body["mismatch"] = None if body["mismatch"] is None else Mismatch(**body["mismatch"])
        return StageRecord(**body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DocumentError(f"{directory.stage}: is not a whole {STAGE} document ({error}): run it again") from error


def _accuracy(body: dict[str, Any] | None) -> Accuracy | None:
    if body is None:
        return None
    rates = {int(k): Rate(**rate) for k, rate in body["pass_at_k"].items()}
    return Accuracy(**{**body, "greedy": Rate(**body["greedy"]), "pass_at_k": rates})


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One step. None: the stage has no such number, or it was not finite."""

    step: int
    """From 0."""
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    reward_mean: float | None = None
    reward_std: float | None = None
    correct_frac: float | None = None
    length_mean: float | None = None
    """Tokens of an answer."""
    truncated_frac: float | None = None
    """Answers that ended without a stop token."""
    entropy: float | None = None
    """Of the policy at the trained tokens, in nats."""
    kl_reference: float | None = None
    kl_engines: float | None = None
    masked_frac: float | None = None
    effective_sample_frac: float | None = None
    clip_frac: float | None = None
    equal_groups_frac: float | None = None
    reward_failures: dict[str, int] | None = None
    """Answers of the step whose reward failed in the sandbox, by kind."""
    accuracy_frac: float | None = None
    """Greedy, on the test split, where this step was evaluated."""
    num_tokens: int = 0
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    """Of rank 0."""

    def row(self) -> dict[str, Any]:
        """Without what the stage does not have; a number that is not finite is left out too."""
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: value for key, value in body.items() if _is_there(value)}


def _is_there(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLine:
    """One answer for people to read."""

    step: int
    problem: str
    """Id of the problem."""
    prompt: str
    answer: str
    reward: float
    is_correct: bool
    why: str
    """One phrase of the verifier."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """One answer of a generation stage; SFT and distillation train on these."""

    problem: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    """With its stop token."""
    reward: float
    is_correct: bool
    log_prob: float = 0.0
    """Of the whole answer under the engine that wrote it."""


def curve_writer(directory: RunDirectory, *, first_step: int) -> LineWriter:
    """Appends `CurvePoint.row()`s; lines of `first_step` and later, left by a killed attempt, are dropped first."""
    return _writer(directory.curve, CURVE, first_step)


def rollout_writer(directory: RunDirectory, *, first_step: int) -> LineWriter:
    """Appends rollouts, as `curve_writer` does."""
    return _writer(directory.rollouts, ROLLOUTS, first_step)


def _writer(path: Path, kind: str, first_step: int) -> LineWriter:
    if path.exists():
        kept = [row for row in _rows(path, kind) if row.get("step", -1) < first_step]
        lines = [json.dumps({"schema": schema(kind)})] + [json.dumps(row, allow_nan=False) for row in kept]
        write_text(path, "\n".join(lines) + "\n")
        return LineWriter(path)
    writer = LineWriter(path)
    writer.append(json.dumps({"schema": schema(kind)}) + "\n")
    return writer


def append_row(writer: LineWriter, row: Mapping[str, Any]) -> None:
    writer.append(json.dumps(row, separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n")


def read_curve(directory: RunDirectory) -> list[CurvePoint]:
    """The steps so far, in order; empty where none was written."""
    points: dict[int, CurvePoint] = {}
    for row in _rows(directory.curve, CURVE):
        point = _line(CurvePoint, row, where=directory.curve)
        points[point.step] = point
    return [points[step] for step in sorted(points)]


def read_rollouts(directory: RunDirectory) -> list[RolloutLine]:
    """Answers to read, in the order in which they were written; empty where none was."""
    return [_line(RolloutLine, row, where=directory.rollouts) for row in _rows(directory.rollouts, ROLLOUTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHead:
    """What a shard took."""

    num_sampled: int
    """Answers that were generated for it, kept or not."""
    num_kept: int
    totals: dict[str, float] = field(default_factory=dict)
    """Counters of the engine that made it, by name."""


def write_shard(directory: RunDirectory, number: int, answers: Sequence[StoredAnswer], head: ShardHead) -> None:
    """Write a shard whole."""
    first = {"schema": schema(ANSWERS), **asdict(head)}
    lines = [json.dumps(row, separators=(",", ":"), allow_nan=False) for row in (first, *map(asdict, answers))]
    write_text(directory.answer_shard(number), "\n".join(lines) + "\n")


def read_shard_head(path: Path) -> ShardHead:
    first = next(json_lines(path), {})
    check_schema(first.get("schema"), ANSWERS, where=str(path))
    try:
        return ShardHead(**{key: value for key, value in first.items() if key != "schema"})
    except TypeError as error:
        raise DocumentError(
            f"{path}: its first line is not whole ({error}); delete it and run the stage again"
        ) from error


def read_shard(path: Path) -> list[StoredAnswer]:
    """The answers of a shard."""
    answers = []
    for row in json_lines(path):
        if "schema" in row:
            check_schema(row["schema"], ANSWERS, where=str(path))
            continue
        tokens = {key: tuple(row.get(key, ())) for key in ("prompt", "response")}
        answers.append(_line(StoredAnswer, {**row, **tokens}, where=path))
    return answers


def read_stored_answers(path: Path) -> list[StoredAnswer]:
    """Every answer of a generation stage's run directory, each (prompt, response) once, in the order of the shards."""
    shards = RunDirectory(path).answer_shards()
    if not shards:
        raise ConfigError(f"{path}: holds no answers: name the run directory of a `reason generate` that has ended")
    answers: dict[tuple[tuple[int, ...], tuple[int, ...]], StoredAnswer] = {}
    for shard in shards:
        for answer in read_shard(shard):
            answers.setdefault((answer.prompt, answer.response), answer)
    return list(answers.values())


Line = TypeVar("Line", CurvePoint, RolloutLine, StoredAnswer)


def _line(kind: type[Line], row: Mapping[str, Any], *, where: Path) -> Line:
    """Keys that this release does not know are left out: a later release may add some."""
    known = {f.name for f in fields(kind)}
    try:
        return kind(**{key: value for key, value in row.items() if key in known})
    except TypeError as error:
        raise DocumentError(f"{where}: a line is not whole ({error}); choose another --run-dir") from error


def _rows(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for row in json_lines(path):
        if "schema" in row:
            check_schema(row["schema"], kind, where=str(path))
            continue
        yield row
