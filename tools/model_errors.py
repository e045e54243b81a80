"""Error tables of the cost models: what was published, what we predict, and how far apart they are.

Each page under docs/models/ gets the rows that exercise its formulas. A page without an entry lists what its
formulas are checked by instead, so a new model needs nothing here.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.published import PublishedRun, load_runs, packaged_runs
from scalewright.catalog.types import PublishedTotal
from scalewright.costs import collectives, energy, failures, storage
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.planner.validation.campaign_rows import campaign_table
from scalewright.planner.validation.generation_table import GROUPINGS, generation_scores, generation_table
from scalewright.planner.validation.rl_rows import rl_rows
from scalewright.planner.validation.vision_rows import VisionRow, read_left_out, vision_rows, vision_scores
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe

ROOT = Path(__file__).resolve().parent.parent
HOUR_S, DAY_S = 3600.0, 86400.0
LEAST_BYTES = 2**20
"""Below which an all-reduce is its start and latency."""


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, and rows of text; the first column is left-aligned."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: str = ""


def percent(value: float, *, signed: bool = False) -> str:
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


@dataclass(frozen=True, slots=True)
class Timed:
    """A published run that was predicted."""

    run: PublishedRun
    row: dict[str, Any]

    @property
    def error_frac(self) -> float:
        return float(self.row["predicted_step_s"]) / float(self.row["measured_step_s"]) - 1.0


Validation = dict[str, Any]
Subset = tuple[str, Callable[[Timed], bool]]


def timed_rows(validation: Validation) -> list[Timed]:
    runs = {run.id: run for run in load_runs(packaged_runs())}
    both = ("predicted_step_s", "measured_step_s")
    return [Timed(runs[row["id"]], row) for row in validation["rows"] if all(row.get(k) for k in both)]


def subsets(validation: Validation, parts: Sequence[Subset], words: str) -> Table:
    """Errors of the step time over parts of the published runs."""
    timed, rows = timed_rows(validation), []
    for name, belongs in parts:
        errors = [row.error_frac for row in timed if belongs(row)]
        if errors:
            sizes = [abs(e) for e in errors]
            rows.append((
                name, str(len(errors)), percent(statistics.fmean(sizes)), percent(statistics.median(sizes)),
                percent(statistics.fmean(errors), signed=True),
            ))  # fmt: skip
    return Table(("published step times", "runs", "mean error", "median", "bias"), rows, words)


def by_device(validation: Validation) -> Table:
    kinds = dict.fromkeys((t.run.hardware.gpu, t.run.dtype) for t in timed_rows(validation))
    parts: list[Subset] = [
        (f"{gpu}, {dtype}", lambda t, gpu=gpu, dtype=dtype: (t.run.hardware.gpu, t.run.dtype) == (gpu, dtype))
        for gpu, dtype in sorted(kinds)
    ]
    words = "Whole steps, of which products, attention and element-wise work are most."
    return subsets(validation, parts, words)


def by_degree(name: str, words: str) -> Callable[[Validation], Table]:
    """Parts of the runs by a parallel degree."""
    edges = ((1, 1), (2, 4), (5, 16), (17, 10**9))

    def table(validation: Validation) -> Table:
        parts: list[Subset] = []
        for low, high in edges:
            title = (
                f"{name} = {low}"
                if low == high
                else f"{name} {low} to {high}"
                if high < 10**9
                else f"{name} over {low - 1}"
            )
            parts.append((title, lambda t, low=low, high=high: low <= (getattr(t.run.layout, name) or 1) <= high))
        return subsets(validation, parts, words)

    return table


def by_source(validation: Validation) -> Table:
    sources = dict.fromkeys(t.run.document for t in timed_rows(validation))
    parts: list[Subset] = [(source, lambda t, source=source: t.run.document == source) for source in sorted(sources)]
    return subsets(validation, parts, "All published runs, by the document they come from.")


def coverage(validation: Validation) -> Table:
    o = validation["overall"]
    rows = [
        ("inside the interval", percent(o["coverage_frac"])),
        ("inside the quantiles of the other sources", percent(o["left_out_coverage_frac"])),
        ("asked for", percent(o["interval_frac"])),
    ]
    return Table(("published step times", "share"), rows, "Each source weighs the same in the second line.")


def memory_peaks(validation: Validation) -> Table:
    runs = {run.id: run for run in load_runs(packaged_runs())}
    by: dict[str, list[float]] = {}
    for row in validation["rows"]:
        if row.get("measured_memory_bytes") and row.get("predicted_memory_bytes"):
            run = runs[row["id"]]
            error = row["predicted_memory_bytes"] / row["measured_memory_bytes"] - 1.0
            by.setdefault(f"{run.hardware.gpu}, {run.dtype}: {run.document}", []).append(error)
    rows = [
        (name, str(len(e)), percent(statistics.fmean(map(abs, e))), percent(max(e, key=abs), signed=True))
        for name, e in sorted(by.items())
    ]
    return Table(("published peaks", "runs", "mean error", "largest"), rows, "Peak allocated on the worst rank.")


def all_reduce(_: Validation) -> Table:
    catalog, rows = Catalog((packaged_data(),)), []
    for table in json.loads((packaged_data() / "published" / "microbenchmarks.json").read_text(encoding="utf-8")):
        if table["kind"] != "all_reduce_table":
            continue
        across = "2 nodes" in table["span"]
        path = collectives.group_path(_all_reduce_machine(catalog, across=across), num_ranks=table["gpus"], stride=1)
        errors = []
        for size, seconds, *_rest in table["rows"]:
            if size >= LEAST_BYTES:
                errors.append(float(collectives.all_reduce_time_s(size_bytes=size, path=path)) / seconds - 1.0)
        rows.append((
            f"{table['gpus']} {'H100 on two nodes' if across else 'A100 in a node'}", str(len(errors)),
            percent(statistics.fmean(map(abs, errors))), percent(max(errors, key=abs), signed=True),
        ))  # fmt: skip
    words = "Sizes from 1 MiB on; latencies of a quiet machine and the start that each table implies."
    return Table(("all-reduce tables", "sizes", "mean error", "largest"), rows, words)


def _all_reduce_machine(catalog: Catalog, *, across: bool) -> Machine:
    """As tests/golden/test_all_reduce_tables.py has it: nothing else runs on the machine."""
    machine, start_s = machine_from_system(catalog, "marenostrum5"), 18.18e-6
    if not across:
        start_s = 33e-6
        machine = machine_from_hardware(
            catalog, gpu="a100-sxm-80gb", gpus_per_node=8, scale_up_bytes_per_s=300e9, network_bytes_per_s_per_gpu=None
        )
    c = machine.constants
    update = {
        "latency_factor": c.latency_factor.model_copy(update={"value": 1.0}),
        "collective_offset": c.collective_offset.model_copy(update={"value": start_s}),
    }
    return replace(machine, constants=c.model_copy(update=update))


def rl_steps(_: Validation) -> Table:
    """Errors of RL steps, one line a row."""
    rows = []
    for row in rl_rows(Catalog((packaged_data(),))):
        if row.prediction is not None:
            version = f" {row.run.version}" if row.run.version else ""
            error = percent(row.error_frac, signed=True) if row.run.consistent else "columns disagree"
            rows.append((
                f"{row.what} ({row.run.framework}{version})", f"{row.step_s:,.4g} s", f"{row.predicted_s:,.4g} s",
                error,
            ))  # fmt: skip
    words = "Seven constants are fitted to these rows; `rl_steps.md` has the errors with each model left out."
    return Table(("row", "published", "predicted", "error"), rows, words)


def generation_rates(_: Validation) -> Table:
    """Errors of generation by source, model, device and precision; under constants that did not see the group."""
    table, rows = generation_table(Catalog((packaged_data(),)), None), []
    for grouping in GROUPINGS:
        for name, members in table.groups(grouping).items():
            scores, own = generation_scores(members), table.left_out.get(grouping, {}).get(name)
            rows.append((
                grouping, name, str(len(members)), percent(_number(scores["mape_frac"])),
                percent(_number(scores["median_ape_frac"])), percent(_number(scores["bias_frac"]), signed=True),
                percent(_number(scores["coverage_frac"])), "" if own is None else percent(_number(own["mape_frac"])),
            ))  # fmt: skip
    words = (
        "Error of the predicted time. Eight constants are fitted, each source weighing the same; the last column is "
        "the error under constants fitted to the others."
    )
    return Table(("by", "name", "rows", "MAPE", "median", "bias", "inside the interval", "left out"), rows, words)


def vision_rates(_: Validation) -> Table:
    """Errors of vision steps by publication, device and precision; left out of the fit, by publication."""
    groups: dict[tuple[str, str, str], list[VisionRow]] = {}
    for row in vision_rows(Catalog((packaged_data(),))):
        groups.setdefault((row.source, row.run.hardware.gpu, row.run.dtype), []).append(row)
    rows, left_out = [], read_left_out()
    for (publication, gpu, dtype), members in groups.items():
        scores, own = vision_scores(members), left_out[publication]
        rows.append((
            publication, gpu, dtype, str(len(members)), percent(_number(scores["mape_frac"])),
            percent(_number(scores["bias_frac"]), signed=True), percent(_number(scores["coverage_frac"])),
            percent(own["mape_frac"]),
        ))  # fmt: skip
    words = (
        "Error of the predicted step time. Seven constants are fitted, each publication weighing the same; the last "
        "column is the publication's error under constants fitted to the others. Some constants of 32 bit, norms and "
        "pooling were measured on the H200 itself."
    )
    columns = ("publication", "device", "precision", "rows", "mean error", "bias", "inside the interval", "left out")
    return Table(columns, rows, words)


def _number(value: float | int | None) -> float:
    assert value is not None
    return value


def compared(rows: Sequence[tuple[str, float, float]], words: str) -> Table:
    """Rows of what, published and predicted."""
    shown = [(what, f"{p:,.4g}", f"{q:,.4g}", percent(q / p - 1.0, signed=True)) for what, p, q in rows]
    return Table(("figure", "published", "predicted", "error"), shown, words)


def powers(_: Validation) -> Table:
    catalog, rows = Catalog((packaged_data(),)), []
    machine = machine_from_system(catalog, "generic-h200")
    path = ROOT / "benchmarks" / "results" / "h200_decode_power.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("kind") == "power" and row.get("work") == "product 8192^3":
            predicted = energy.board_power_w(
                tdp_w=machine.accelerator.tdp.value, activity_frac=row["busy"], memory_frac=0.0,
                constants=machine.constants,
            )  # fmt: skip
            rows.append((f"H200 board, products {row['busy']:.0%} of the time, W", row["power_w"], predicted))
    for name, hours, watts, pue in (("bloom", 1_082_990.0, 400.0, 1.0), ("gpt3", 10_000 * 14.8 * 24, 330.0, 1.1)):
        total = catalog.get("totals", name)
        assert isinstance(total, PublishedTotal)
        assert total.energy is not None
        used = energy.energy_use(time_s=hours * HOUR_S, num_devices=1, device_w=watts, overhead_w=0.0, pue_frac=pue)
        rows.append((f"{total.name}, J, from the paper's own power", total.energy.value, float(used.total)))
    return compared(rows, "Power measured for this project; totals follow from the papers' own inputs by arithmetic.")


def checkpoints(_: Validation) -> Table:
    catalog, bf16 = Catalog((packaged_data(),)), recipe("bf16")
    params, c = float(from_catalog(catalog.model("bloom-176b")).num_params), catalog.constants()
    size = storage.checkpoint_bytes(
        num_params=params, num_trained=params, weight_bytes=bf16.weight_bytes, optimizer_bytes=bf16.optimizer_bytes
    )
    disk = catalog.storage("jean-zay-scratch")
    rate = storage.job_bytes_per_s(storage=disk, direction="write", num_nodes=48, constants=c)
    seconds = storage.write_time_s(size_bytes=size, bytes_per_s=float(rate), latency_s=0.0)
    both = {16: 0.90, 64: 0.77}
    middle = statistics.fmean(storage.serial_frac(efficiency_frac=e, growth=n) for n, e in both.items())
    epochs = [
        (f"EPICURE, Leonardo FP32, epoch efficiency on {n} nodes", e,
         float(storage.epoch_efficiency_frac(serial_frac=middle, growth=n)))
        for n, e in both.items()
    ]  # fmt: skip
    rows = [("BLOOM checkpoint, TiB", 2.3, size / 2**40), ("BLOOM checkpoint on 48 nodes, s", 40.0, seconds), *epochs]
    words = "The rate of one node is taken from BLOOM's time, and one fixed part per epoch from both efficiencies."
    return compared(rows, words)


def interruptions(_: Validation) -> Table:
    mttf = Catalog((packaged_data(),)).constants().device_mttf.value
    on = failures.job_mttf_s(device_mttf_s=mttf, num_devices=16384)
    node = failures.job_mttf_s(device_mttf_s=mttf, num_devices=8)
    rows = [
        ("Llama 3 405B, interruptions in 54 days on 16,384 GPUs", 419.0, 54 * DAY_S / on),
        ("Kokolis et al. 2024, failures per 1000 node-days (recalled)", 6.5, 1000 * DAY_S / node),
    ]
    return compared(rows, "The first figure is where the constant comes from; the second is another operator's.")


def campaigns(_: Validation) -> Table:
    rows = [
        (f"{row.run.id}, GPU-hours", row.run.num_gpu_hours, row.left_out.num_gpu_hours)
        for row in campaign_table(Catalog((packaged_data(),))).rows
        if row.left_out is not None
    ]
    return compared(rows, "Whole runs as their authors report them, each planned with its own family left out.")


ERRORS: dict[str, Callable[[Validation], Table]] = {
    "campaign": campaigns,
    "collectives": all_reduce,
    "compute": by_device,
    "energy": powers,
    "failures": interruptions,
    "footprint": memory_peaks,
    "generation": generation_rates,
    "interval": coverage,
    "memory": memory_peaks,
    "pipeline": by_degree("pp", "Whole steps, by the number of pipeline stages."),
    "stage": rl_steps,
    "step": by_source,
    "storage": checkpoints,
    "vision": vision_rates,
}
