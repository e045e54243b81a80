"""A point of the language benchmark over emulated links: ranks in network namespaces, behind links of a given rate.

The rate of the fastest link is chosen so that communication takes the same share of a step as on the real cluster. The
other links are slower in the cluster's own ratio. So a small model on a small machine has the same balance between
computation and communication.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.errors import ConfigError
from scalewright.lab.network import payload_frac
from scalewright.launch.prepare.outlook import language_outlook
from scalewright.records.run_directory import RunDirectory
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value
from scalewright.study.kinds.base import Outcome
from scalewright.study.kinds.language import LanguageKind, LanguagePointRun
from scalewright.study.kinds.options import STRICT, parse_options
from scalewright.study.kinds.training import TrainingOptions, TrainingPoint, with_prediction
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model

LATENCY_S = 100e-6
"""Of a message through two virtual interfaces and a bridge; only the rate is shaped."""
RATES_BYTES_PER_S = (1e5, 1e11)
"""Range in which the rate of a link is searched."""
NUM_BISECTIONS = 40


@checked(frozen=True, kw_only=True, config=STRICT)
class EmulatedPoint(TrainingPoint):
    """Options of a point of this kind."""

    communication_share: float = 0.5
    """Share of a step that communication takes over the fastest link."""
    link_share: float = 1.0
    """Rate of this link over that of the fastest."""


_OPTIONS: TypeAdapter[EmulatedPoint] = TypeAdapter(EmulatedPoint)


class EmulatedKind(LanguageKind):
    metrics = ("step_time_s", "communication_frac", "tokens_per_s")
    runs_as_job = False

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        point = parse_options(_OPTIONS, options, where=where)
        if not 0.0 < point.communication_share < 1.0 or not 0.0 < point.link_share <= 1.0:
            raise ConfigError(
                f"{where}: key 'point.communication_share' is {point.communication_share} and 'point.link_share' "
                f"{point.link_share}: shares lie between 0 and 1"
            )
        resolve_model(catalog, point.model)
        parse_layout(point.layout)

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome:
        del catalog, options, where
        return Outcome()  # the rate of the links follows from this machine's speed, which is known when it runs

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        del predicts  # the links' rate follows from the prediction
        point = parse_options(_OPTIONS, options, where=where)
        plain = TrainingOptions(**{name: getattr(point, name) for name in TrainingPoint.__dataclass_fields__})
        run = LanguagePointRun(catalog, plain, path)
        if run.execution.is_finished:
            return run.execution
        ready = run.ready()
        if ready.here is None:
            raise ConfigError("shaped links need one machine, not an allocation of several nodes: run it on one node")
        rate = link_bytes_per_s(catalog, ready.config, ready.here.machine, point)
        machine = over_links(ready.here.machine, rate)
        outlook = language_outlook(catalog, ready.config, machine, start_s=ready.here.start_s)
        return replace(with_prediction(run.execution, replace(ready, outlook=outlook)), link_bytes_per_s=rate)

    def measured(self, path: Path) -> Outcome:
        outcome = super().measured(path)
        link = RunDirectory(path).read_machine().get("link_bytes_per_s")
        if link is None or outcome.problem:
            return outcome
        return replace(outcome, words={"link": f"{units.format(float(link), units.LINK_BYTES_PER_S)}, emulated"})


def link_bytes_per_s(catalog: Catalog, run: LanguageRun, machine: Machine, point: EmulatedPoint) -> float:
    """Rate of this point's link: the rate of the fastest, times this link's share of it.

    Equation  c(B) = exposed communication / step over a link of rate B; B by bisection so that c(B) is the given share,
              because c falls as B grows
    Source    the cost models of a step, solved for the rate
    Assumes   communication overlaps with the backward pass on this machine as predicted
    Checked   tests/study/test_emulated.py: with that rate the predicted share is the given one
    """

    def share(rate: float) -> float:
        prediction = language_outlook(catalog, run, over_links(machine, rate), start_s=0.0).prediction
        return float(prediction.time.part("communication").total) / prediction.time_s

    low, high = RATES_BYTES_PER_S
    for _ in range(NUM_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if share(middle) > point.communication_share else (low, middle)
    return math.sqrt(low * high) * point.link_share


def over_links(machine: Machine, rate_bytes_per_s: float) -> Machine:
    """This machine with every rank on its own node, behind a link of that rate."""
    return replace(
        machine,
        gpus_per_node=1,
        num_nodes=None,
        network_bytes_per_s_per_gpu=rate_bytes_per_s * payload_frac(),
        network_latency_s=LATENCY_S,
        transport="tcp",
        network=None,
    )


KIND = EmulatedKind()
