"""Tables of published observations for the documentation: predicted when the page is made."""

from __future__ import annotations

import functools

from markdown_table import cell, table

from scalewright import units
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.observations import load_observations
from scalewright.records.observations import ObservationTable
from scalewright.study.observations.table import observation_table
from scalewright.study.observations.training import rl_prediction


@functools.cache
def observations() -> ObservationTable:
    return observation_table(Catalog((packaged_data(),)), "hpc-r1")


def observation_rows() -> str:
    head = ("stage", "observation", "published", "predicted for Perlmutter", "verdict")
    rows = [
        tuple(map(cell, (row.stage, row.text, row.published or "–", row.predicted.text, row.predicted.verdict)))
        for row in observations().rows
    ]
    return table(head, rows, left=len(head))


def observation_assumptions() -> str:
    rows = [(f"`{row.id}`", cell(row.assumption or "–"), cell(row.not_measured)) for row in observations().rows]
    return table(("observation", "what the prediction assumes", "why it is not measured here"), rows, left=3)


def fewest_gpus() -> str:
    minima = observations().minima
    partitions = list(minima[0].num_gpus)
    rows = [
        (
            row.stage, f"`{row.model}`", row.mode, *(str(row.num_gpus[name] or "–") for name in partitions),
            str(row.published or "–"),
        )
        for row in minima
    ]  # fmt: skip
    return table(("stage", "model", "mode", *(f"`{name}`" for name in partitions), "published"), rows, left=3)


def grpo_parts() -> str:
    """The GRPO step of the artifact's script by part, over the scales that an observation names."""
    catalog, data = Catalog((packaged_data(),)), load_observations("hpc-r1")
    setting = next(observed.setting for observed in data.observations if observed.id == "rl-not-compute")
    rows = []
    for nodes in setting.nodes:
        step = rl_prediction(catalog, data.system, setting, nodes=nodes)
        parts = {part.name: part.whole_s for part in step.rl.parts}
        scoring_s = parts["old_log_probs"] + parts["reference_log_probs"]
        rest_s = step.time_s - parts["rollout"] - scoring_s - parts["update"] - parts["weight_sync"]
        times = (
            step.time_s,
            *step.interval_s,
            parts["rollout"],
            scoring_s,
            parts["update"],
            parts["weight_sync"],
            rest_s,
        )
        rows.append((str(step.question.num_gpus), *(units.format(value, units.SECONDS) for value in times)))
    head = ("GPUs", "step", "from", "to", "generation", "log-probs", "updates", "weight sync", "other")
    return table(head, rows)
