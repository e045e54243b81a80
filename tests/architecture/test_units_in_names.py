"""A float that others can see says its unit in its name, or stands in the list of dimensionless names with a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "scalewright"
FILES = sorted(p for folder in ("costs", "catalog", "workload") for p in (PACKAGE / folder).rglob("*.py"))

UNIT = r"(?:s|bytes|flop|w|j|usd|kgco2e|frac|hz|transfers)"
PER = r"(?:_per_(?:s|w|j|byte|usd|gpu|node|link|layer|param|sample|device|token|core_cycle))*"
APPROVED = re.compile(rf"^(?:num_\w+|(?:\w+_)?(?<!per_){UNIT}{PER}(?:_bidir)?)$")
FLOAT_WORDS = {"float", "FloatLike"}

# Names without a unit, each with the reason it has none. `file.name` where only one place may use it.
DIMENSIONLESS = {
    "facts.value": "the unit is the Fact's own dimension",
    "breakdown.value": "the unit is the Breakdown's own `unit`",
    "observations.value": "the unit is the figure's own `unit`",
    "breakdown.total": "the unit is the Breakdown's own `unit`",
    "compute.m": "rows of a matrix product, the symbol of the equation",
    "compute.n": "columns of a matrix product, the symbol of the equation",
    "compute.k": "depth of a matrix product, the symbol of the equation",
    "attention.FLASH_BACKWARD_OVER_FORWARD": "a ratio above 1, so not a share",
    "model_details.factor": "a ratio above 1, as config.json names it",
    "model_details.low_freq_factor": "a ratio, as config.json names it",
    "model_details.high_freq_factor": "a ratio, as config.json names it",
    "model_details.beta_fast": "rotations, as config.json names it",
    "model_details.beta_slow": "rotations, as config.json names it",
    "model_details.mscale": "a ratio, as config.json names it",
    "model_details.mscale_all_dim": "a ratio, as config.json names it",
    "model_details.scaling": "a ratio above 1, so not a share",
    "model_details.aux_loss": "a coefficient of the loss",
    "model_details.norm_epsilon": "added to a variance, without a unit",
    "model_details.rope_theta": "a base of powers",
    "model_details.init_std": "of weights, without a unit",
    "derive.bits_per_transfer": "bits, as the link standards count them",
    "collective.bus_share": "a ratio up to 2, so not a share of one",
    "collectives_run.factor": "a ratio above 1, so not a share",
    "collectives.spans_nodes": "a flag as a column: 0 or 1",
    "collectives.is_real": "a flag as a column: 0 or 1",
    "collectives.slowdown": "a ratio above 1, so not a share",
    "stack_costs.elementwise_factor": "a factor around 1, fitted",
    "stack_costs.attention_factor": "a factor around 1, fitted",
    "stack_costs.update_factor": "a factor around 1, fitted",
    "stack_costs.host_factor": "a factor around 1, fitted",
    "machine.convolution_factor": "a factor around 1, fitted",
    "machine.norm_factor": "a factor around 1, fitted",
    "stack_costs.host_blend": "an exponent",
    "convolution.vector_gain": "a ratio around 1, so not a share",
    "traffic.own_norm_factor": "a factor around 1, fitted",
    "calibrated.rank_value": "the unit is the value's own",
    "calibration.residual": "a factor around 1, fitted",
    "network.slowdown": "a ratio above 1, so not a share",
    "network.collisions": "a ratio above 1, so not a share",
    "network.congestion": "a ratio above 1, so not a share",
    "network.congestion_high": "a ratio above 1, so not a share",
    "step.fits": "a flag as a column: 0 or 1",
    "step.fits_host": "a flag as a column: 0 or 1",
    "campaign.LEAST_RANGE": "a ratio above 1, so not a share",
    "rollout_pool.log_probs": "natural logarithms of probabilities",
    "energy.usd_per_eur": "an exchange rate",
    "energy.billed_per_node_s": "units of the site per node and second",
    "energy.billed_units": "the unit is the site's own",
    "storage.growth": "a ratio above 1, so not a share",
    "compute.passes": "how often a tensor crosses memory",
    "compute.width": "elements, the width of a matrix",
    "compute.ffn_width": "elements, the width of a matrix",
    "attention.REFERENCE_HEAD": "elements of a head",
    "attention.TILE_QUERIES": "a count",
    "attention.head_dim": "elements",
    "attention.head_dim_sum": "elements",
    "attention.heads": "heads on one device",
    "compute.blend": "an exponent",
    "breakdown.factor": "a multiplier of both passes",
    "compute.expert_load": "a ratio above 1, so not a share",
    "selection.expected_largest": "standard deviations",
    "compute.gated_traffic": "a ratio above 1, so not a share",
    "compute.softmax_falls_back": "a flag as a column: 0 or 1",
    "memory.latent_width": "elements per token",
    "setting.feed_forward_width": "elements per token",
    "memory.attention_widths": "elements per token",
    "interval.congestion": "a ratio above 1, so not a share",
    "interval.slowdown_by_other_jobs": "a ratio above 1, so not a share",
    "shards.first_expert_rank": "a pipeline rank's number",
    "roofline.QUERY_TILE": "rows of queries",
    "generation_rates.blend": "an exponent",
    "iteration.blend": "an exponent",
    "iteration.prompt_len": "tokens",
    "rollout_simulation.mean_staleness": "versions of the weights",
    "rollout_simulation.ratio": "a ratio above 1, so not a share",
    "rollout_simulation.low": "a ratio above 1, so not a share",
    "rollout_simulation.high": "a ratio above 1, so not a share",
    "cache_room.total_len": "tokens",
    "cache_room.held_len": "tokens",
    "cache_room.per_prompt": "answers to each prompt",
    "lengths.LEAST_ALPHA": "an exponent",
    "packing.seq": "tokens",
    "packing.pack_tokens": "tokens",
    "lengths.longest": "tokens",
    "lengths.mean": "tokens",
    "lengths.quantile": "tokens",
    "lengths.expected_max": "tokens",
    "lengths.mean_up_to": "tokens",
    "lengths.mean_age": "tokens",
    "lengths.survival": "a share, the symbol of statistics",
    "lengths.cv": "standard deviation over mean, the symbol of statistics",
    "lengths.alpha": "an exponent",
    "generate_run.temperature": "a divisor of scores, the word of the field",
    "rl.cv": "standard deviation over mean, the symbol of statistics",
    "rl.least_cv": "standard deviation over mean, the symbol of statistics",
    "lengths.least_cv": "standard deviation over mean, the symbol of statistics",
    "lengths.ratio": "a length over another",
    "lengths.cv_to_limit": "standard deviation over mean, the symbol of statistics",
    "lora_settings.alpha": "the symbol of its paper",
    "lora_settings.scale": "a factor of the adapter, alpha over rank",
    "policy_loss.clip_low": "a distance of a ratio from 1",
    "policy_loss.clip_high": "a distance of a ratio from 1",
    "policy_loss.band_low": "a quotient of probabilities",
    "policy_loss.band_high": "a quotient of probabilities, above 1",
    "policy_loss.tis_cap": "a quotient of probabilities, above 1",
    "policy_loss.kl_coef": "a coefficient of the loss",
    "language_run.learning_rate": "a step of Adam over its direction",
    "vision_run.base_rate": "a step of SGD over its gradient",
    "vision_run.rate": "a step of SGD over its gradient",
    "vision_run.momentum": "what a step keeps of the one before",
    "vision_run.weight_decay": "a coefficient of the loss",
    "vision_run.label_smoothing": "the symbol of its papers, a share",
    "vision_run.warmup_epochs": "passes over the data, perhaps not whole",
    "vision_run.epochs_done": "passes over the data, perhaps not whole",
    "language_run.beta_1": "Adam's symbol",
    "language_run.beta_2": "Adam's symbol",
    "language_run.epsilon": "Adam's symbol",
    "language_run.weight_decay": "a factor per step",
    "language_run.clip_norm": "the norm of a gradient, in the loss's own unit",
}
# Parallel degrees and positions in them are plain numbers everywhere.
DEGREES = {"tp", "pp", "vpp", "cp", "ep", "dp", "pipeline_rank", "stride", "expert_tp", "norm_split", "micro_batch"}
# Rows of published runs carry the units of the file, which planner/validate converts once.
AS_IN_THE_FILE = {
    "published.params_b",
    "published.intra_bw_gb_per_s",
    "published.inter_bw_gb_per_s_per_gpu",
    "published.tflops_per_gpu",
    "published.tflop_per_s_per_gpu",
    "published.mfu_pct",
    "published.hfu_pct",
    "published.tokens_per_s_per_gpu",
    "published.memory_gib",
    "vision_runs.images_per_s",
    "vision_runs.inter_bw_gb_per_s_per_gpu",
    "rl_runs.avg_seq",
    "rl_runs.prompt_len",
    "rl_runs.staleness_threshold",
    "generation_runs.inter_bw_gb_per_s_per_gpu",
    "generation_runs.output_tokens_per_s_total",
    "generation_runs.output_tokens_per_s_per_gpu",
    "generation_runs.total_tokens_per_s",
    "generation_runs.ttft_ms",
    "generation_runs.itl_ms",
    "generation_runs.requests_per_s",
}


def is_float(annotation: ast.expr | None) -> bool:
    """float, FloatLike, float | None, and tuples of them."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return is_float(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.Name):
        return annotation.id in FLOAT_WORDS
    if isinstance(annotation, ast.BinOp):
        return is_float(annotation.left) or is_float(annotation.right)
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if annotation.value.id in ("tuple", "Optional", "list", "Sequence"):
            return any(is_float(part) for part in inner)
        if annotation.value.id == "Annotated":
            return is_float(inner[0])
    return False


def public_floats(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each public float: parameters, returns, fields, constants; not what is inside a function."""

    def visit(body: list[ast.stmt], *, module: bool) -> Iterator[tuple[int, str]]:
        for node in body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    if is_float(arg.annotation):
                        yield arg.lineno, arg.arg
                if is_float(node.returns):
                    yield node.lineno, node.name
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from visit(node.body, module=False)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if is_float(node.annotation):
                    yield node.lineno, node.target.id
            elif module and isinstance(node, ast.Assign) and isinstance(getattr(node.value, "value", None), float):
                yield from ((node.lineno, t.id) for t in node.targets if isinstance(t, ast.Name))

    yield from ((line, name) for line, name in visit(tree.body, module=True) if not name.startswith("_"))


def offenders(text: str, stem: str) -> list[str]:
    return [
        f"{stem}.py:{line} {name}"
        for line, name in public_floats(ast.parse(text))
        if not APPROVED.match(name.lower())
        and name not in DEGREES
        and f"{stem}.{name}" not in DIMENSIONLESS | dict.fromkeys(AS_IN_THE_FILE)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_public_floats_carry_their_unit(path: Path) -> None:
    assert offenders(path.read_text(encoding="utf-8"), path.stem) == []


def test_every_listed_exception_is_still_needed() -> None:
    seen = {f"{p.stem}.{name}" for p in FILES for _, name in public_floats(ast.parse(p.read_text(encoding="utf-8")))}
    assert set(DIMENSIONLESS) <= seen


@pytest.mark.parametrize(
    "text",
    [
        "def time_s(*, size: float) -> float: ...",
        "def bandwidth(x_s: float) -> float: ...",
        "def rate(x_s: int) -> 'FloatLike': ...",
        "def limits() -> tuple[float, float]: ...",
        "class A:\n    memory_gb: float | None = None",
        "class A:\n    def speed(self) -> float: ...",
        "class A:\n    @property\n    def speed(self) -> float | None: ...",
        "GROWTH = 1.5",
        "GROWTH: float = 1",
        "def a_s(x: 'float | None' = None) -> None: ...",
        "def share_pct() -> float: ...",
        "def link_gb_per_s() -> float: ...",
    ],
)
def test_checker_catches_a_planted_offender(text: str) -> None:
    assert len(offenders(text, "planted")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def time_s(*, size_bytes: float, num_ranks: float) -> float: ...",
        "def ridge_flop_per_byte() -> float: ...",
        "def link_bytes_per_s_per_gpu() -> float: ...",
        "def switched_bytes_per_s_bidir() -> float: ...",
        "class A:\n    mfu_frac: float\n    name: str",
        "COVERAGE_FRAC = 0.9",
        "NUM_LAYERS = 4",
        "def _private(x: float) -> float: ...",
        "def f(layers: int) -> int:\n    ratio: float = 1.0\n    return layers",
    ],
)
def test_checker_lets_good_names_pass(text: str) -> None:
    assert offenders(text, "planted") == []


def test_no_identifier_says_flops() -> None:
    """It means both the work and the rate."""
    banned_names = []
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    for path in (path for path, text in texts.items() if "flops" in text.lower()):
        for node in ast.walk(ast.parse(texts[path])):
            names = [getattr(node, field, None) for field in ("id", "name", "arg", "attr")]
            banned_names += [
                f"{path.name}:{node.lineno} {n}" for n in names if isinstance(n, str) and "flops" in n.lower()
            ]
    assert banned_names == []
