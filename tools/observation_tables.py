"""Tables of published observations for the documentation: predicted when the page is made."""

from __future__ import annotations

import functools

from markdown_table import cell, table

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.observations import ObservationTable
from scalewright.study.observations.table import observation_table


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
