"""Words, colours and groups that the page, the plot and the terminal share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewright import units
from scalewright.records.hybrid import HybridSettings, HybridStep, SpanKind
from scalewright.records.hybrid_report import HybridShown
from scalewright.report.pipeline.figures import PART_COLOURS

KIND_COLOURS: dict[SpanKind, str] = {
    "prefill": "#8811EE",
    "decode": PART_COLOURS["generation"],
    "reward": PART_COLOURS["reward"],
    "log_probs": PART_COLOURS["log_probs"],
    "train": PART_COLOURS["training"],
    "sync": PART_COLOURS["weight_sync"],
    "data": PART_COLOURS["data"],
    "release": "#881111",
    "restore": "#661144",
    "evaluate": PART_COLOURS["evaluation"],
    "checkpoint": PART_COLOURS["checkpoint"],
    "profile": "#88CC66",
    "restart": "#000000",
    "idle": "#D5DAE0",
}
"""In the order in which they are stacked; the parts of a stage have the same colours in its own charts."""
KIND_TITLES: dict[SpanKind, str] = {"log_probs": "log-probs", "sync": "weight sync", "idle": "waiting"}
AGE_COLOURS = ("#9ECAE1", "#4292C6", "#08519C", "#08306B")
"""Older rollouts are darker."""
TRAINED, WASTED = PART_COLOURS["training"], PART_COLOURS["evaluation"]
MAX_BARS = 80
"""More iterations than this are drawn in groups."""


def kind_title(kind: SpanKind) -> str:
    return KIND_TITLES.get(kind, kind)


def wait_title(reason: str) -> str:
    return reason or "other"


def settings_sentence(settings: HybridSettings) -> str:
    """How the run was arranged, in one sentence."""
    engines = settings.engine_ranks
    parts = [f"Trainer and engine share their ranks ({settings.mode})" if not engines else _engines(settings)]
    if settings.token_budget:
        parts.append(f"an iteration ends after {settings.token_budget:,} tokens")
        parts.append(f"a rollout is given up after {settings.retention} cuts")
    else:
        parts.append("an iteration ends when all its answers ended")
    if settings.staleness:
        parts.append(f"rollouts may be {settings.staleness} version{'s' if settings.staleness > 1 else ''} old")
    if settings.groups == "parts":
        parts.append("answers of a group are trained on as they end")
    if settings.old_tokens == "mask":
        parts.append("tokens of older versions are left out of the loss")
    if settings.sandbox:
        parts.append(f"sandbox {settings.sandbox}")
    return "; ".join(parts) + "."


def _engines(settings: HybridSettings) -> str:
    sizes = settings.engine_ranks
    several = f"{len(sizes)} engine{'s' if len(sizes) > 1 else ''}"
    if len(set(sizes)) == 1:
        each = f"of {sizes[0]} rank{'s' if sizes[0] > 1 else ''}" + (" each" if len(sizes) > 1 else "")
    else:
        each = f"of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} ranks"
    return f"{several} {each} beside the trainer ({settings.mode})"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationBar:
    """One iteration, or the mean of several in a row."""

    first_step: int
    last_step: int
    values: dict[int, float]
    """By cut count, age or place of a stack."""

    @property
    def title(self) -> str:
        if self.first_step == self.last_step:
            return f"iteration {self.first_step + 1}"
        return f"iterations {self.first_step + 1} to {self.last_step + 1}, mean"


def bars_of(steps: Sequence[HybridStep], values_of: Callable[[HybridStep], dict[int, float]]) -> list[IterationBar]:
    """A bar for each iteration; of many iterations one for each group of neighbours."""
    size = -(-len(steps) // MAX_BARS) if steps else 1
    bars = []
    for start in range(0, len(steps), size):
        group = steps[start : start + size]
        sums: dict[int, float] = {}
        for step in group:
            for key, value in values_of(step).items():
                sums[key] = sums.get(key, 0.0) + value
        means = {key: value / len(group) for key, value in sorted(sums.items())}
        bars.append(IterationBar(first_step=group[0].step, last_step=group[-1].step, values=means))
    return bars


def carried_by_cuts(step: HybridStep) -> dict[int, float]:
    return {cuts: float(num) for cuts, num in step.carried_by_cuts.items()}


def carried_by_age(step: HybridStep) -> dict[int, float]:
    """Versions since the first token of each carried rollout."""
    ages: dict[int, float] = {}
    for version, num in step.carried_by_version.items():
        age = min(max(step.version - version, 0), len(AGE_COLOURS) - 1)
        ages[age] = ages.get(age, 0.0) + num
    return ages


def tokens(step: HybridStep) -> dict[int, float]:
    """Trained, then wasted."""
    return {0: float(step.num_trained_tokens), 1: float(step.num_wasted_tokens)}


def token_rows(shown: HybridShown) -> list[tuple[str, int, float | None]]:
    """What became of the tokens: words, number, and share of those decoded."""
    decoded = shown.num_decoded_tokens
    rows = [("decoded", decoded), ("trained on", shown.num_trained_tokens), ("wasted", shown.num_wasted_tokens)]
    rest = decoded - shown.num_trained_tokens - shown.num_wasted_tokens
    if rest > 0:
        rows.append(("left in the pool", rest))
    return [(name, num, num / decoded if decoded else None) for name, num in rows]


def seconds(value: float) -> str:
    return units.format(value, units.SECONDS)
