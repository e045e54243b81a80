"""A point of the language benchmark over links of our own making: ranks in network namespaces, shaped to a rate.

The fastest link is chosen so that exchange takes the same share of a step as on the real cluster; the others are slower
in the cluster's own ratio. So small models on a small machine see the same trade between computing and exchanging.
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
from scalewright.study.kinds.training import BenchTraining, Training, with_prediction
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model

LATENCY_S = 100e-6
"""Of a message through two virtual interfaces and a bridge; what is shaped is the rate alone."""
RATES_BYTES_PER_S = (1e5, 1e11)
"""Between which a link's rate is looked for."""
NUM_BISECTIONS = 40


@checked(frozen=True, kw_only=True, config=STRICT)
class Emulated(Training):
    """What a point of this kind is told."""

    communication_share: float = 0.5
    """Of a step over the fastest link that exchange should take."""
    link_share: float = 1.0
    """This link's rate over the fastest one's."""


_TOLD: TypeAdapter[Emulated] = TypeAdapter(Emulated)


class EmulatedKind(LanguageKind):
    metrics = ("step_time_s", "communication_frac", "tokens_per_s")
    runs_as_job = False

    def check(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> None:
        asked = parse_options(_TOLD, told, where=where)
        if not 0.0 < asked.communication_share < 1.0 or not 0.0 < asked.link_share <= 1.0:
            raise ConfigError(
                f"{where}: key 'point.communication_share' is {asked.communication_share} and 'point.link_share' "
                f"{asked.link_share}: shares lie between 0 and 1"
            )
        resolve_model(catalog, asked.model)
        parse_layout(asked.layout)

    def predict(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> Outcome:
        del catalog, told, where
        return Outcome()  # links are shaped to this machine's speed, which is known once it runs

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        del predicts  # the links' rate follows from the prediction
        point = parse_options(_TOLD, options, where=where)
        plain = BenchTraining(**{name: getattr(point, name) for name in Training.__dataclass_fields__})
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
        found = super().measured(path)
        link = RunDirectory(path).read_machine().get("link_bytes_per_s")
        if link is None or found.problem:
            return found
        return replace(found, words={"link": f"{units.format(float(link), units.LINK_BYTES_PER_S)}, emulated"})


def link_bytes_per_s(catalog: Catalog, run: LanguageRun, machine: Machine, asked: Emulated) -> float:
    """Rate of this point's link: the fastest one's, times this one's share of it.

    Equation  c(B) = exposed exchange / step over a link of rate B;  B with c(B) as asked, by bisection, for c falls as
              B grows
    Source    the cost models of a step, solved for the rate
    Assumes   the prediction's overlap of exchange with the backward pass holds on this machine
    Checked   tests/study/test_emulated.py: with that rate the predicted share is the one asked for
    """

    def share(rate: float) -> float:
        prediction = language_outlook(catalog, run, over_links(machine, rate), start_s=0.0).prediction
        return float(prediction.time.part("communication").total) / prediction.time_s

    low, high = RATES_BYTES_PER_S
    for _ in range(NUM_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if share(middle) > asked.communication_share else (low, middle)
    return math.sqrt(low * high) * asked.link_share


def over_links(machine: Machine, rate_bytes_per_s: float) -> Machine:
    """This machine with every rank on a node of its own, behind a link of that rate."""
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
