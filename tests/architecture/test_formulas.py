"""Every formula says its equation, source, assumptions and check, and each of these can be followed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "scalewright"
SECTION = re.compile(r"^(Equation|Source|Assumes|Checked|Valid) +(\S.*)$")
KEY = re.compile(r"^[a-z]+\d{4}$")
NOT_A_FORMULA = {
    "Machine.peak_flop_per_s": "a look-up in the catalogue",
    "Machine.matmul_flop_per_s": "a look-up in the catalogue, with the share its docstring names",
    "Breakdown.total": "a sum of its parts",
    "LayerTimes.total_s": "a sum of its parts",
    "Shards.num_params": "a sum of its parts",
    "Saving.exposed_s": "a difference of its parts",
    "WallTime.total_s": "a sum of its parts",
    "Load.num_prompt_tokens": "requests x tokens read for each",
    "Phases.num_all_steps": "a sum of its parts",
    "Phases.num_mean_running": "a weighted mean of its parts",
    "Phases.num_mean_context": "a weighted mean of its parts",
    "Serving.table_bytes": "a choice between two fields",
    "Serving.num_prefill_tokens": "a look-up in the catalogue",
    "Serving.num_max_sequences": "a look-up in the catalogue",
    "Serving.num_expert_copies": "a quotient of degrees",
    "Serving.matmul_flop_per_s": "a look-up among the measured or fitted rates",
    "stored_bytes": "a look-up by format",
    "cached_bytes": "a look-up by format",
    "Path.is_real": "a flag",
    "Path.network_bytes_per_s": "a quotient of two fields",
    "Path.bytes_per_s": "the rate of group_path's equation",
    "Path.message_bytes_per_s": "the rate of group_path's equation, without slowdown",
    "Path.ring_latency_s": "steps inside nodes and between them",
    "Path.tree_latency_s": "steps inside nodes and between them",
    "Path.hop_latency_s": "a choice between two fields",
    "hops_latency_s": "a look-up by tier",
    "slowdown_by_other_jobs": "network.slowdown for the whole job",
    "tier_frac": "a look-up by tier",
    "tensor_bytes": "tokens x width x bytes",
    "num_whole": "the next whole number",
    "num_tile_sides": "two numbers from a name",
    "least_time_s": "the least of its arguments",
    "num_output_rows": "a size rounded up, as its docstring says",
    "softmax_falls_back": "a condition as a column",
    "norm_and_activation_bytes": "elementwise_bytes_per_layer of a setting",
    "latent_width": "a sum of the shape's own numbers",
    "latent_up_flop": "2 x tokens x parameters of two matrices",
    "Setting.feed_forward_width": "a sum of the shape's own numbers",
    "head_dim_sum": "a size padded to what kernels exist for, as its docstring says",
    "stored_bytes_per_layer": "picks between two formulas by the share of layers",
    "num_dense_layer_params": "a count of the shape's own numbers",
    "num_expert_layer_params": "a count of the shape's own numbers",
    "num_expert_copies": "a quotient of degrees",
    "num_dense_mtp_params": "a count of the shape's own numbers",
    "first_expert_rank": "a pipeline rank's number",
    "num_spread_params": "a quotient of counts",
    "StackCosts.num_layer_passes": "a choice between two fields by width",
    "StackCosts.num_score_passes": "a choice between two fields by width",
    "skipped_flop_per_sample": "half of a part of the forward work",
    "recompute_flop_per_sample": "a selection of the parts of the forward work",
}


def sections(docstring: str | None) -> dict[str, str]:
    paragraphs: dict[str, str] = {}
    current = ""
    for line in (docstring or "").splitlines():
        match = SECTION.match(line.strip())
        if match:
            current = match.group(1)
            paragraphs[current] = match.group(2)
        elif current and line.strip():
            paragraphs[current] += " " + line.strip()
    return paragraphs


def functions(folder: str) -> list[tuple[str, str, ast.FunctionDef]]:
    """File, qualified name and node of each public function and method."""
    documented = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            inside = [(f"{node.name}.", n) for n in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
            documented += [
                (f"{folder}/{path.name}", prefix + n.name, n)
                for prefix, n in inside
                if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")
            ]
    return documented


FUNCTIONS = [f for folder in ("costs", "catalog", "workload") for f in functions(folder)]
FORMULAS = [
    pytest.param(sections(ast.get_docstring(node)), id=f"{file}:{name}")
    for file, name, node in FUNCTIONS
    if "Equation" in (ast.get_docstring(node) or "")
]


def test_there_are_formulas_to_check() -> None:
    assert len(FORMULAS) >= 20


@pytest.mark.parametrize("docstring_parts", FORMULAS)
def test_formula_has_equation_source_assumptions_and_check(docstring_parts: dict[str, str]) -> None:
    assert {"Equation", "Source", "Assumes", "Checked"} <= set(docstring_parts)


@pytest.mark.parametrize("docstring_parts", FORMULAS)
def test_source_key_is_in_the_bibliography(docstring_parts: dict[str, str]) -> None:
    known = set(
        re.findall(r"^@\w+\{([^,\s]+),", (ROOT / "docs" / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)
    )
    cited = [word for word in re.findall(r"[\w-]+", docstring_parts["Source"]) if KEY.match(word)]
    assert [key for key in cited if key not in known] == []
    first = docstring_parts["Source"].split()[0]
    assert cited or not KEY.match(first)


@pytest.mark.parametrize("docstring_parts", FORMULAS)
def test_check_that_names_a_file_names_one_that_exists(docstring_parts: dict[str, str]) -> None:
    for name in re.findall(r"tests/[\w/.-]*\w", docstring_parts["Checked"]):
        assert (ROOT / name).exists(), name


def returns_float(node: ast.FunctionDef) -> bool:
    return node.returns is not None and bool(
        {"float", "FloatLike"} & set(re.findall(r"\w+", ast.unparse(node.returns)))
    )


def test_no_public_function_of_the_cost_models_returns_a_number_without_its_equation() -> None:
    bare = [
        f"{file}: {name}"
        for file, name, node in functions("costs")
        if returns_float(node)
        and ast.unparse(node.returns or ast.Constant("")) in ("float", "FloatLike", "float | None")
        and name not in NOT_A_FORMULA
        and not name.startswith(
            ("Setting.", "StepSetting.", "VisionSetting.")
        )  # accessors of the question, not answers
        and "Equation" not in sections(ast.get_docstring(node))
    ]
    assert bare == []


def test_formula_keys_of_breakdowns_lead_to_a_formula() -> None:
    documented = {
        f"{file.removeprefix('costs/').removesuffix('.py')}.{name}"
        for file, name, node in functions("costs")
        if "Equation" in sections(ast.get_docstring(node))
    }
    text = "".join((PACKAGE / "costs" / f"{n}.py").read_text(encoding="utf-8") for n in ("step", "footprint"))
    modules = "step|footprint|compute|collectives|memory|pipeline|interval"
    used = set(re.findall(rf'"((?:{modules})\.\w+)"', text))
    assert len(used) >= 6
    assert used <= documented
