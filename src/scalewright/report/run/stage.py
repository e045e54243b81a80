"""The report of one stage of reasoning-model training: what it reached, where its time went, and what it used."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.documents import read_document
from scalewright.records.reasoning import Accuracy, Rate, RolloutLine, StageRecord, read_rollouts
from scalewright.records.run_directory import RunDirectory
from scalewright.report.console import plain_table, rate_words

MOST_ROLLOUTS = 4
WORK_NAMES = {"prefill": "prefill", "decode": "decode", "training": "training", "log_probs": "log-probs"}


def print_stage(console: Console, record: StageRecord, directory: RunDirectory) -> None:
    count = f"{record.num_params:,} parameters"
    if record.num_trained_params and record.num_trained_params != record.num_params:
        count += f", {record.num_trained_params:,} trained"
    ranks = f"{record.num_ranks} rank{'' if record.num_ranks == 1 else 's'}"
    console.print(f"[bold]{record.stage}[/] of {escape(record.model)} ({count}) on {ranks}, {escape(record.device)}")
    if record.accuracy is not None:
        console.print(accuracy_sentence(record.accuracy))
    _print_times(console, record, directory)
    _print_use(console, record)
    _print_work(console, record)
    _print_rollouts(console, read_rollouts(directory))
    for note in record.notes:
        console.print(f"note: {escape(note)}")


def accuracy_sentence(accuracy: Accuracy) -> str:
    words = f"accuracy {_rate(accuracy.greedy)} greedy on {accuracy.num_problems:,} held-out problems"
    rates = [f"pass@{k} {_rate(rate)}" for k, rate in accuracy.pass_at_k.items()]
    return ", ".join([words, *rates])


def _rate(rate: Rate) -> str:
    return f"{rate.value_frac:.1%} ({rate.low_frac:.1%} to {rate.high_frac:.1%})"


def _print_times(console: Console, record: StageRecord, directory: RunDirectory) -> None:
    console.print()
    table = plain_table("part", "time", "share", right=("time", "share"))
    total_s = sum(record.seconds_by_part.values()) or 1.0
    for part, seconds in record.seconds_by_part.items():
        table.add_row(part.replace("_", " "), units.format(seconds, units.SECONDS), f"{seconds / total_s:.1%}")
    table.add_row("[bold]steps[/]", units.format(record.wall_s, units.SECONDS), "")
    console.print(table)
    if directory.prediction.exists():
        predicted = read_document(directory.prediction, "prediction").get("training_time_s")
        if predicted:
            ratio = record.wall_s / predicted
            console.print(f"predicted {units.format(predicted, units.SECONDS)}; measured over predicted {ratio:.2f}")


def _print_use(console: Console, record: StageRecord) -> None:
    console.print()
    rows: list[tuple[str, str]] = []
    if record.wall_s > 0 and record.num_tokens:
        rows.append(("throughput", rate_words(record.num_tokens / record.wall_s, "tokens/s")))
    if record.utilisation_frac is not None:
        rows.append(("utilisation", f"{record.utilisation_frac:.0%}"))
    if record.split is not None:
        rows.append(("communication", f"{record.split.communication_frac:.1%} of a profiled step, exposed"))
    for name, use in record.collectives.items():
        size, took = units.format(use.bytes, units.BYTES), units.format(use.seconds, units.SECONDS)
        rows.append((name.replace("_", "-"), f"{use.count:,} calls, {size}, {took}"))
    if record.num_ranks > 1:
        rows.append(("rank gap", f"{record.rank_gap_frac:.1%}"))
    if record.kv_occupancy_frac is not None:
        rows.append(("KV cache", f"{record.kv_occupancy_frac:.0%} in use, {record.kv_peak_frac or 0:.0%} at most"))
    rows.append(("host memory", units.format(record.host_bytes, units.BYTES)))
    if record.device_bytes is not None:
        rows.append(("device memory", units.format(record.device_bytes, units.BYTES)))
    rows += _paid(record)
    if record.mismatch is not None:
        m = record.mismatch
        text = f"KL {m.kl:.2e}, {m.masked_frac:.2%} of tokens masked, {m.effective_sample_frac:.1%} effective"
        rows.append(("engine mismatch", text))
    if record.num_groups:
        rows.append(("equal rewards", f"{record.num_equal_groups:,} of {record.num_groups:,} groups"))
    if record.sandbox:
        rows += _sandbox_rows(record)
    table = plain_table("", "", header=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _sandbox_rows(record: StageRecord) -> list[tuple[str, str]]:
    """Rewards that failed, and protections that this host does not permit."""
    counts = ", ".join(f"{num:,} by {kind}" for kind, num in record.reward_failures.items())
    off = ", ".join(name for name, state in record.sandbox.items() if state.startswith("off"))
    return [("failed rewards", counts or "none"), ("sandbox", f"without {off}" if off else "all protections are on")]


def _paid(record: StageRecord) -> list[tuple[str, str]]:
    energy = "no counter that can be read"
    if record.energy_j is not None:
        energy = f"{units.format(record.energy_j, units.JOULES)} of {record.energy_of}"
    rows = [("energy", energy)]
    per_thousand = record.cost_usd_per_thousand_samples
    if per_thousand is not None:
        rows.append(("cost", f"{per_thousand:.4g} USD per thousand samples"))
    return rows


def _print_work(console: Console, record: StageRecord) -> None:
    if not record.roofline:
        return
    console.print()
    numbers = ("FLOP/byte", "rate", "time")
    table = plain_table("work", *numbers, right=numbers)
    for point in record.roofline:
        table.add_row(
            WORK_NAMES[point.name], f"{point.flop_per_byte:.3g}", units.format(point.flop_per_s, units.FLOP_PER_S),
            units.format(point.seconds, units.SECONDS),
        )  # fmt: skip
    console.print(table)


def _print_rollouts(console: Console, lines: list[RolloutLine]) -> None:
    if not lines:
        return
    console.print()
    last = [line for line in lines if line.step == lines[-1].step]
    for line in last[:MOST_ROLLOUTS]:
        mark = "right" if line.is_correct else "wrong"
        console.print(
            f"{mark} ({line.reward:g}): {escape(line.prompt)} {escape(line.answer)}  [dim]{escape(line.why)}[/]"
        )
