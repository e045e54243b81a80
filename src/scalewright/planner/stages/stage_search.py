"""Search of both layouts of an RL step and of the split of devices between them; of generation: of its split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalewright.errors import ConfigError, ScalewrightError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import Generation
from scalewright.planner.question import Question
from scalewright.planner.search.search import search_each
from scalewright.planner.search.space import Fixed, Space, stacks_by_zero
from scalewright.workload.layout import Layout
from scalewright.workload.rl import RlStep

NUM_LAYOUTS = 3
"""Fastest layouts of the trainer that are tried with every generator."""
EIGHTHS = (1, 2, 3, 4, 5, 6)
"""Parts of the devices that generate, in eighths, where trainer and generator are apart."""
USUAL_BATCH = 512
"""Sequences of an update at most, where none are given."""
PACES: tuple[dict[str, Any], ...] = (
    {"lag": 1},
    {"staleness_frac": 0.5, "num_chunks": 4},
)
"""One step off policy, and asynchronous as verl's recipes set it."""
NUM_BUDGETED = 12
"""Fastest choices of every pace that are tried with a token budget."""
MOST_PIPELINE_RANKS = 16
"""Of a copy that generates: serving engines are run with pipelines between few nodes."""
RETENTIONS = (1, 2, 4, 8, 16)
"""How often an answer may be cut under a token budget, where the step does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChoice:
    """A way to run the stage on the devices, predicted."""

    name: str
    """How old the weights are that wrote the answers; of generation: the split."""
    prediction: Answer

    @property
    def seconds_per_token(self) -> float:
        """Of the tokens that a step trains on: a token budget changes their number."""
        return self.prediction.time_s / self.prediction.num_units

    @property
    def split(self) -> int:
        """Devices of a generator of its own."""
        stage = self.prediction.question.stage
        return stage.rollout_gpus if isinstance(stage, RlStep) else 0

    def as_dict(self) -> dict[str, Any]:
        answer, question = self.prediction, self.prediction.question
        body: dict[str, Any] = {
            "name": self.name,
            "layout": question.layout.as_dict(),
            "num_gpus": question.num_gpus,
            "step_time_s": answer.time_s,
            "step_time_interval_s": list(answer.interval_s),
            "tokens_per_s": answer.rate_per_s,
            "fits": answer.fits,
        }
        if not isinstance(question.stage, RlStep):
            return body
        step = question.stage
        generator = {"tp": step.rollout_tp, "pp": step.rollout_pp, "num_gpus": step.rollout_gpus or question.num_gpus}
        body |= {"generator": generator, "parts": [part.as_dict() for part in answer.rl.parts]}
        budget = answer.rl.budget
        if budget is None:
            return body
        own = {"token_budget": step.token_budget, "retention": step.retention, "step_gain": answer.rl.step_gain}
        return body | own | budget.as_dict()


def mini_batch(step: RlStep, given: int | None) -> int:
    """Sequences of an update: as given, else the largest part of the answers within the usual batch."""
    if given is not None:
        return given
    total = step.num_sequences
    return max(size for size in range(1, min(total, USUAL_BATCH) + 1) if total % size == 0)


def rl_choices(
    base: Question, *, num_gpus: int, batch: int, fixed: Fixed, stack: str, is_paced: bool, is_retained: bool = False
) -> list[StageChoice]:
    """Ways to run a step that fit: the fastest of every pace, then other splits.

    `is_paced` says that the step itself names its lag, share of stale answers or split, so that no other is tried;
    `is_retained` the same of its retention.
    """
    step = base.stage
    assert isinstance(step, RlStep)
    if not is_retained:  # splits are compared without a loss; what each retention gives comes after
        step = replace(step, retention=max(RETENTIONS))
    splits = list(_splits(step, num_gpus, is_paced=is_paced))
    trainers = {num_gpus - apart.rollout_gpus for apart in splits}
    layouts = _trainer_layouts(base, trainers, batch=batch, fixed=fixed, stack=stack)
    candidates: list[StageChoice] = []
    best_tp: dict[int, int | None] = {}
    for apart in splits:
        devices = apart.rollout_gpus or num_gpus
        if devices not in best_tp:
            best_tp[devices] = step.rollout_tp if step.rollout_tp > 1 else _generator_tp(base, devices)
        tp = best_tp[devices]
        if tp is None or devices % tp:
            continue
        for question in layouts.get(num_gpus - apart.rollout_gpus, ()):
            prediction = _answered(replace(question, stage=replace(apart, rollout_tp=tp)))
            if prediction is not None and prediction.fits:
                candidates.append(StageChoice(name=apart.policy, prediction=prediction))
    budgeted = list(_with_budgets(candidates, is_retained=is_retained))
    if step.token_budget and not is_retained:
        candidates = budgeted
    else:
        candidates += budgeted
    return best_of_each(sorted(candidates, key=lambda choice: choice.seconds_per_token))


def _with_budgets(candidates: Iterable[StageChoice], *, is_retained: bool) -> Iterator[StageChoice]:
    """The fastest choices of every pace with a tail, under a token budget instead of waiting for the longest answers.

    Of the retentions, the fastest of those that lose no long answers: what a budget loses is not missed in tokens a
    second, and what is learned is biased.
    """
    fastest: dict[str, list[StageChoice]] = {}
    for choice in sorted(candidates, key=lambda choice: choice.seconds_per_token):
        fastest.setdefault(choice.name, []).append(choice)
    for choice in (one for choices in fastest.values() for one in choices[:NUM_BUDGETED]):
        question = choice.prediction.question
        step = question.stage
        assert isinstance(step, RlStep)
        if step.staleness_frac or not step.has_tail:
            continue
        bounded = replace(step, token_budget=step.token_budget or step.usual_budget)
        retained = [bounded] if is_retained else [replace(bounded, retention=times) for times in RETENTIONS]
        answered = [_answered(replace(question, stage=stage)) for stage in retained]
        fitting = [prediction for prediction in answered if prediction is not None and prediction.fits]
        if fitting:
            best = min(fitting, key=lambda one: (*one.rl.lost_and_biased, one.time_s / one.num_units))
            yield StageChoice(name=bounded.policy, prediction=best)


def best_of_each(choices: Iterable[StageChoice]) -> list[StageChoice]:
    """The fastest of every pace first, since a lag changes what is learned; then the others, one for each split."""
    best: dict[str, StageChoice] = {}
    others: dict[tuple[str, int], StageChoice] = {}
    for choice in choices:
        if choice.name not in best:
            best[choice.name] = choice
        elif best[choice.name].split != choice.split:
            others.setdefault((choice.name, choice.split), choice)
    return [*best.values(), *others.values()]


def _splits(step: RlStep, num_gpus: int, *, is_paced: bool) -> Iterator[RlStep]:
    """Both in turns on all devices, then apart: shares of the devices at each pace."""
    if is_paced and step.rollout_gpus:
        yield step
        return
    if not is_paced:
        yield replace(step, rollout_gpus=0)
    counts = dict.fromkeys(num_gpus * part // 8 for part in EIGHTHS if num_gpus * part % 8 == 0)
    paces = [pace for pace in PACES if _allows(step, pace)]
    if is_paced:
        paces = [{"lag": step.lag, "staleness_frac": step.staleness_frac}]
    for count in counts:
        if 0 < count < num_gpus:
            for pace in paces:
                yield replace(step, rollout_gpus=count, **pace)


def _allows(step: RlStep, pace: Mapping[str, Any]) -> bool:
    """Whether a pace keeps what the step asks for: one way in which answers go on, and its bound of staleness."""
    is_stale = bool(pace.get("staleness_frac"))
    if step.token_budget and is_stale:
        return False
    return step.staleness is None or max(pace.get("lag", 0), int(is_stale)) <= step.staleness


def _trainer_layouts(
    base: Question, counts: Iterable[int], *, batch: int, fixed: Fixed, stack: str
) -> dict[int, list[Question]]:
    """The fastest layouts of the trainer on each number of devices, as questions."""
    step, catalog = base.stage, base.catalog
    assert isinstance(step, RlStep)
    assert catalog is not None
    seq = -(-step.longest_sequence // 16) * 16  # context parallelism may split it
    numbers = sorted(counts)
    spaces = [
        Space(
            spec=base.spec.with_seq(seq), machine=base.machine, num_gpus=number, global_batch=batch,
            recipes=(base.recipe,), stack_of=stacks_by_zero(stack, catalog, base.machine), fixed=fixed, mode=base.mode,
            catalog=catalog, is_auto_stack=stack == "auto",
        )
        for number in numbers
    ]  # fmt: skip
    layouts: dict[int, list[Question]] = {}
    for number, result in zip(numbers, search_each(spaces, only_best=True), strict=True):
        layouts[number] = [
            replace(base, layout=best.question.layout, stack=best.question.stack)
            for best in result.best(NUM_LAYOUTS, "time")
        ]
    return layouts


def _generator_tp(base: Question, num_gpus: int) -> int | None:
    """The split of the generator that writes a batch fastest on so many devices; None where it fits nowhere."""
    step = base.stage
    assert isinstance(step, RlStep)
    timed = []
    for tp in _tensor_splits(base, num_gpus):
        alone = replace(step, rollout_gpus=0, rollout_tp=tp, lag=0, staleness_frac=0.0, num_chunks=1)
        question = replace(base, layout=Layout(dp=num_gpus), stage=alone)
        prediction = _answered(question.rollout())
        if prediction is not None and prediction.fits:
            timed.append((prediction.time_s, tp))
    return min(timed)[1] if timed else None


def _tensor_splits(base: Question, num_gpus: int) -> Iterator[int]:
    tp, heads = 1, base.spec.transformer.heads
    while tp <= num_gpus and heads % tp == 0:
        if num_gpus % tp == 0:
            yield tp
        tp *= 2


def generation_choices(base: Question, *, num_gpus: int) -> list[StageChoice]:
    """Splits of a generator that fit on the devices, the most tokens per second first."""
    assert isinstance(base.stage, Generation)
    choices = []
    for tp, pp in _serving_splits(base, num_gpus):
        dp = num_gpus // (tp * pp)
        prediction = _answered(replace(base, layout=replace(base.layout, tp=tp, pp=pp, dp=dp)))
        if prediction is not None and prediction.fits:
            name = f"tp={tp},{f'pp={pp},' if pp > 1 else ''}dp={dp}"
            choices.append(StageChoice(name=name, prediction=prediction))
    return sorted(choices, key=lambda choice: -choice.prediction.rate_per_s)


def _serving_splits(base: Question, num_gpus: int) -> Iterator[tuple[int, int]]:
    """Tensor parallelism, and pipelines of as many ranks as divide the devices that are left."""
    for tp in _tensor_splits(base, num_gpus):
        most = min(num_gpus // tp, base.spec.transformer.layers, MOST_PIPELINE_RANKS)
        yield from ((tp, pp) for pp in range(1, most + 1) if num_gpus // tp % pp == 0)


def _answered(question: Question) -> Answer | None:
    try:
        return answer(question)
    except ScalewrightError:
        return None  # it does not divide: not a choice


def check_batch(step: RlStep, batch: int) -> None:
    if batch < 1 or step.num_sequences % batch:
        raise ConfigError(
            f"{step.num_sequences} answers are not whole mini-batches of {batch}: choose a divisor with --global-batch"
        )
