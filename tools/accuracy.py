"""Tables of how far off the predictions are, as Markdown, from `validate --json` and from stored results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from claims import calibrated_h200, engine_fits, held_out, json_lines, left_out, mean_size, percent
from markdown_table import cell, table

Validation = dict[str, Any]


MEMORY_KINDS = {
    "allocated": "peak of the tensors",
    "reserved": "reserved by the allocator",
    "device": "as nvidia-smi or rocm-smi shows it",
}


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def percent_or_dash(value: float | None, *, signed: bool = False) -> str:
    return "–" if value is None else percent(value, signed=signed)


def num_timed_groups(validation: Validation) -> int:
    return sum(group["num_timed"] > 0 for group in validation["groups"])


def five_rows(validation: Validation) -> str:
    """The README's table: the most telling figure first."""
    unseen, o, calibrated = held_out()["all"], validation["overall"], calibrated_h200()
    rows: Sequence[tuple[str, ...]] = [
        (
            f"**published steps of {unseen['num_sources']} sources that nothing was fitted to**",
            f"{unseen['num_rows']}",
            f"**{percent(unseen['balanced_mean_ape_frac'])}**",
            percent(unseen["balanced_rule_mean_ape_frac"]),
        ),
        ("published steps, each source left out of the fit in turn", left_out()["rows"], left_out()["balanced"], "–"),
        (
            f"published steps shipped; the {left_out()['constants']} constants were fitted to most of them",
            f"{o['num_timed']}",
            percent(o["balanced_mape_frac"]),
            percent(o["rule_balanced_mape_frac"]),
        ),
        (
            "our own steps on one H200 after `calibrate`, none of them fitted",
            f"{len(calibrated)}",
            mean_size([row["error_frac"] for row in calibrated]),
            "–",
        ),
        *(
            (f"published memory, {words}", f"{o[f'num_memory_{kind}']}", percent(o[f"memory_{kind}_mape_frac"]), "–")
            for kind, words in MEMORY_KINDS.items()
        ),
    ]
    return table(("mean error of the predicted step time or memory", "rows", "Scalewright", "50 % rule"), rows)


def held_out_table() -> str:
    """Errors by source for sources that nothing was fitted to."""
    rows = [
        (
            cell(name),
            str(scores["num_rows"]),
            percent(scores["mean_ape_frac"]),
            percent(scores["median_ape_frac"]),
            percent(scores["bias_frac"], signed=True),
            f"{scores['num_inside']} of {scores['num_rows']}",
            percent(scores["rule_mean_ape_frac"]),
        )
        for name, scores in [*held_out()["sources"].items(), ("all rows", held_out()["all"])]
    ]
    unseen = held_out()["all"]
    balanced = percent(unseen["balanced_mean_ape_frac"])
    rows.append(("mean of the sources", "", balanced, "", "", "", percent(unseen["balanced_rule_mean_ape_frac"])))
    return table(("source", "rows", "mean error", "median", "bias", "inside the 90 % interval", "50 % rule"), rows)


def verdict(overall: dict[str, Any]) -> str:
    """One sentence that compares the models with the rule."""
    ours, rule = overall["balanced_mape_frac"], overall["rule_balanced_mape_frac"]
    word = "smaller" if ours < rule else "**larger**"
    return (
        f"Scalewright's balanced error is {word} than that of the rule: {percent(ours)} against {percent(rule)}. "
        f"Its mean signed error is {percent(overall['bias_frac'], signed=True)}: negative means predicted too fast.\n"
    )


def fitted_summary(validation: Validation) -> str:
    o = validation["overall"]
    rows = [
        (
            f"balanced MAPE over {num_timed_groups(validation)} groups",
            percent(o["balanced_mape_frac"]),
            percent(o["rule_balanced_mape_frac"]),
        ),
        (f"MAPE over {o['num_timed']} rows", percent(o["mape_frac"]), percent(o["rule_mape_frac"])),
        (
            f"median error over {o['num_timed']} rows",
            percent(o["median_ape_frac"]),
            percent(o["rule_median_ape_frac"]),
        ),
    ]
    return table(("error of predicted step time", "Scalewright", "50 % rule"), rows) + "\n" + verdict(o)


def groups(validation: Validation) -> str:
    rows = [
        (
            cell(group["source"]),
            cell(group["gpu"]),
            group["dtype"],
            f"{group['num_timed']} of {group['num_rows']}",
            percent_or_dash(group["mape_frac"]),
            percent_or_dash(group["median_ape_frac"]),
            percent_or_dash(group["bias_frac"], signed=True),
            percent_or_dash(group["rule_mape_frac"]),
        )
        for group in validation["groups"]
    ]
    head = ("source document", "GPU", "dtype", "predicted", "MAPE", "median", "bias", "rule MAPE")
    return table(head, rows, left=3)


def other_scores(validation: Validation) -> str:
    o = validation["overall"]
    rows = [
        (f"Spearman rank correlation, mean over {o['num_problems']} problems", number(o["spearman"])),
        ("top-1 regret, mean", percent_or_dash(o["regret_frac"])),
        ("pairwise accuracy, mean", number(o["pairwise_accuracy_frac"])),
        *(
            (
                f"memory {words}: MAPE and bias of {o[f'num_memory_{kind}']} published peaks",
                f"{percent_or_dash(o[f'memory_{kind}_mape_frac'])}, "
                f"{percent_or_dash(o[f'memory_{kind}_bias_frac'], signed=True)}",
            )
            for kind, words in MEMORY_KINDS.items()
        ),
        ("out-of-memory runs caught", f"{o['num_oom_caught']} of {o['num_oom']}"),
        ("others of them called tight", f"{o['num_oom_tight']}"),
        ("runs that ran and are called impossible", f"{o['num_false_alarms']} of {o['num_ran']}"),
        (f"coverage of the {100 * o['interval_frac']:.0f} % interval", percent_or_dash(o["coverage_frac"])),
        ("mean width of the interval, of the prediction", percent_or_dash(o["width_frac"])),
        ("Winkler score of the interval, of the prediction", percent_or_dash(o["winkler_frac"])),
        ("coverage by quantiles of the other sources", percent_or_dash(o["left_out_coverage_frac"])),
    ]
    return table(("score", "value"), rows)


def reasons(validation: Validation) -> str:
    rows = [(cell(reason), str(count)) for reason, count in validation["reasons"].items()]
    return table(("why a row is not predicted", "rows"), rows) if rows else "Every row is predicted.\n"


def configuration(name: str) -> str:
    """`18x1152-s1024-b8-eager` as `18 x 1152, 1024 tokens, 8, bf16 eager`: layers, width, tokens, batch, precision."""
    first, *parts = name.removeprefix("resnet-").split("-")
    dtype = next((part.replace("f16", "fp16") for part in parts if part in ("fp16", "f16", "tf32", "fp32")), "bf16")
    how = f"{dtype} {'graph' if 'graphs' in parts else 'eager'}"
    sizes = {part[0]: part[1:] for part in parts if part[:1] in "bs" and part[1:].isdigit()}
    if name.startswith("resnet"):
        return f"ResNet-{first}, {sizes['b']}, {how}"
    return f"{first.replace('x', ' x ')}, {sizes['s']} tokens, {sizes['b']}, {how}"


def calibrated_h200_table() -> str:
    """Steps on one H200 that no residual was fitted to: measured, and the errors with and without a calibration."""
    rows = [
        (
            configuration(row["name"]),
            f"{1e3 * row['measured_s']:.3g} ms" if row["measured_s"] >= 0.1 else f"{1e3 * row['measured_s']:.1f} ms",
            percent(row["error_frac"], signed=True),
            percent(row["catalogue_error_frac"], signed=True),
        )
        for row in sorted(calibrated_h200(), key=lambda row: row["name"].startswith("resnet"))
    ]
    means = [mean_size([row[key] for row in calibrated_h200()]) for key in ("error_frac", "catalogue_error_frac")]
    rows.append(("mean", "", *means))
    return table(("configuration", "measured", "calibrated", "catalogue"), rows)


def calibrated_cpu_table() -> str:
    """Small models on ranks of a CPU: errors by number of ranks, and how much the repeats differ."""
    measured = json_lines("cpu_calibrated.jsonl")
    rows = []
    for num_ranks in sorted({row["num_ranks"] for row in measured}):
        same = [row for row in measured if row["num_ranks"] == num_ranks]
        errors, spreads = [row["error_frac"] for row in same], [row["spread_frac"] for row in same]
        rows.append(
            (
                str(num_ranks),
                mean_size(errors),
                percent(max(errors, key=abs), signed=True),
                f"{sum(abs(error) <= 0.2 for error in errors)} of {len(same)}",
                f"{sum(row['inside'] for row in same)} of {len(same)}",
                f"{100 * min(spreads):.0f} to {100 * max(spreads):.0f} %",
            )
        )
    head = ("ranks", "mean error", "worst", "within 20 %", "inside the 90 % interval", "spread of the repeats")
    return table(head, rows)


def engines_h200_table() -> str:
    """Runs of other training programs on one H200, and how far off each way of predicting them is."""
    rows = []
    for engine, program in engine_fits().items():
        for run in program["runs"]:
            time = f"{1e3 * run['measured_s']:.1f} ms"
            errors = (percent_or_dash(run[key], signed=True) for key in ENGINE_ERRORS)
            rows.append((f"{engine} {program['release']}", run["label"].removesuffix(", bf16"), time, *errors))
    return table(("program", "run", "measured", *ENGINE_ERRORS.values()), rows, left=2)


ENGINE_ERRORS = {
    "before": "plain stack", "other_program": "factors of the other program", "after": "after the fit",
    "left_out": "left out of the fit", "left_out_held": "left out, held to the other program",
}  # fmt: skip


def rl_errors() -> str:
    """Errors of RL steps by model, mode and framework; the model left out of the fit in turn."""
    from scalewright.catalog.library import Catalog, packaged_data
    from scalewright.planner.validation.rl_rows import read_rl_left_out
    from scalewright.planner.validation.rl_table import rl_scores, rl_table

    scored, left_out = rl_table(Catalog((packaged_data(),))), read_rl_left_out()
    rows = []
    for kind, members in scored.groups.items():
        for name, own in members.items():
            unseen = percent(left_out["models"][name]["mape_frac"]) if kind == "model" else ""
            rows.append((f"{kind} {name}", *_rl_cells(rl_scores(own)), unseen))
    rows.append(("all rows", *_rl_cells(rl_scores(scored.scored)), percent(left_out["mape_frac"])))
    return table(("", "rows", "mean error", "median", "bias", "inside the 90 % interval", "model left out"), rows)


def _rl_cells(scores: dict[str, float | int]) -> tuple[str, ...]:
    return (
        str(scores["num_rows"]), percent(scores["mape_frac"]), percent(scores["median_ape_frac"]),
        percent(scores["bias_frac"], signed=True), percent(scores["coverage_frac"]),
    )  # fmt: skip
