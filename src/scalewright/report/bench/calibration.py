"""A calibration in the terminal: measured values, their spread, the catalogue values, errors of training steps."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.catalog.calibration import Calibration, Interval, Value
from scalewright.report.bench.engine_fit import mean_error, print_engine, step_table
from scalewright.report.console import plain_table

TITLES = {
    "matmul_flop_per_s": "products, sustained",
    "best_matmul_flop_per_s": "products, best",
    "full_matmul_flop_per_s": "full tiles,",
    "matmul_start_s": "start of a product",
    "attention_flop_per_s": "attention",
    "attention_seq_ramp": "attention, half at",
    "attention_backward_ratio": "attention, backward/forward",
    "memory_bytes_per_s": "memory",
    "host_link_bytes_per_s": "link to the host",
    "dispatch_s": "launch",
    "collective_start_s": "start of",
    "collective_bytes_per_s": "bandwidth of",
    "storage_read_bytes_per_s": "reading",
    "storage_files_per_s": "small files",
    "checkpoint_bytes_per_s": "saving",
    "checkpoint_copy_bytes_per_s": "copy before saving",
    "decode_weight_bytes_per_s": "decode, weights",
    "decode_cache_bytes_per_s": "decode, cache",
    "decode_layer_s": "decode, each layer",
    "decode_step_s": "decode, each step",
    "decode_sequence_s": "decode, each sequence",
    "prompt_flop_per_s": "prompts, products",
    "prompt_layer_s": "prompts, each layer",
    "product_blend": "overlap in products",
}
DIMENSIONS = {"flop_per_s": units.FLOP_PER_S, "bytes_per_s": units.BYTES_PER_S, "files_per_s": units.HERTZ}
RESIDUALS = {
    "products": "time of matrix products",
    "elementwise": "memory traffic outside products",
    "host": "host work",
    "convolutions": "time of convolutions",
    "norms": "time of norms and activations",
}


def print_calibration(console: Console, calibration: Calibration) -> None:
    spent, budget = (units.format(s, units.SECONDS) for s in (calibration.spent_s, calibration.budget_s))
    versions = ", ".join(
        f"{name} {version}" for name, version in calibration.versions.items() if name in ("torch", "cuda")
    )
    console.print(
        f"[bold]{escape(calibration.name)}[/]: {escape(calibration.fingerprint.name)} over {escape(calibration.base)} "
        f"({escape(versions)}), {spent} of {budget}"
    )
    _print_values(console, calibration)
    _print_steps(console, calibration)
    _print_generation(console, calibration)
    for fit in calibration.engines:
        print_engine(console, fit)
    for title, lines in (("not measured", calibration.skipped), ("note", calibration.notes)):
        for line in lines:
            console.print(f"{title}: {escape(line)}")


def _print_values(console: Console, calibration: Calibration) -> None:
    numbers = ("measured", "spread", "catalogue", "change")
    table = plain_table("", *numbers, right=numbers)
    for value in calibration.values:
        change = "" if value.change_frac is None else f"{value.change_frac:+.0%}"
        catalogue = "-" if value.catalogue is None else _shown(value, value.catalogue)
        spread = f"±{(value.high - value.low) / 2.0 / value.value:.1%}"
        table.add_row(escape(_title(value)), f"[bold]{_shown(value, value.value)}[/]", spread, catalogue, change)
    console.print(table)


def _title(value: Value) -> str:
    ranks = f", {value.num_ranks} ranks" if value.num_ranks > 1 else ""
    of = f" {value.of}" if value.of else ""
    if value.name == "decode_weight_bytes_per_s" and " " in value.of:
        batch, width = value.of.split()
        of = f" of {width} B, batch {batch}"
    if value.name == "decode_cache_bytes_per_s" and value.of:
        of = f" of {value.of} B"
    return f"{TITLES[value.name]}{of}{ranks}"


def _shown(value: Value, number: float) -> str:
    if value.name.endswith("_s") and not value.name.endswith("_per_s"):
        return units.format(number, units.SECONDS)
    for suffix, dimension in DIMENSIONS.items():
        if value.name.endswith(suffix):
            return units.format(number, dimension)
    return f"{number:.3g}"


def _print_steps(console: Console, calibration: Calibration) -> None:
    if not calibration.steps:
        console.print("No training step was measured: no residual is fitted, and the catalogue interval is used.")
        return
    console.print(step_table("training step", calibration.steps))
    console.print(_fitted_words(calibration))
    for workload, interval in (("language", calibration.language_interval), ("vision", calibration.vision_interval)):
        if interval is not None:
            console.print(_interval_words(workload, interval))


def _print_generation(console: Console, calibration: Calibration) -> None:
    """How well the fitted rates give back the measured steps, each left out in turn."""
    for phase, words in (("decode", "decode steps"), ("prefill", "prompts")):
        steps = [step for step in calibration.generation_steps if step.phase == phase]
        if steps:
            fitted, left_out = (
                sum(abs(getattr(step, key) / step.measured_s - 1.0) for step in steps) / len(steps)
                for key in ("after_s", "left_out_s")
            )
            console.print(
                f"generation, {len(steps)} {words}: mean error {fitted:.1%}, {left_out:.1%} of those left out of a fit"
            )
    for words, interval in (
        ("decode steps", calibration.generation_interval), ("prompts", calibration.first_token_interval),
    ):  # fmt: skip
        if interval is not None:
            console.print(_interval_words(words, interval, what=""))


def _fitted_words(calibration: Calibration) -> str:
    num, steps = len(calibration.steps), sum(step.num_steps for step in calibration.steps)
    before, after, left_out = (mean_error(calibration.steps, key) for key in ("before_s", "after_s", "left_out_s"))
    which = ", ".join(f"{r.name} x {r.factor:.2f} ({RESIDUALS[r.name]})" for r in calibration.residuals)
    fitted = f"fitted: {which}" if which else "no residual was worth fitting"
    return (
        f"{fitted}; from {num} runs with {steps} steps. Mean error: {before:.1%} before the fit, {after:.1%} after, "
        f"{left_out:.1%} for runs left out of their own fit."
    )


def _interval_words(workload: str, interval: Interval, *, what: str = " steps") -> str:
    low, high = (f"{end - 1.0:+.0%}" for end in (interval.low_frac, interval.high_frac))
    return f"90 % interval of {workload}{what}: {low} to {high}, from {interval.num_steps} runs"
