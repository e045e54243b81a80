"""Every product of layouts on 2 and 4 ranks trains the same model as one rank: same losses, same gradient norms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pool import RankPool

from scalewright.catalog.library import open_catalog
from scalewright.workload.language_run import OptimizerSettings, resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import ModelSpec, from_catalog, from_shape

pytestmark = pytest.mark.ranks

# fp32 sums in another order differ by about 1e-7 each; four steps of Adam at a rate of 1e-2 grow that to below 1e-5.
LOSS_TOLERANCE_FRAC = 1e-5
NORM_TOLERANCE_FRAC = 2e-4
# 16-bit products round to 3 digits; layouts round in other places.
SHORT_TOLERANCE_FRAC = 1e-2
STEPS = 4
GLOBAL_BATCH = 4

GPT = from_shape("layers=2,hidden=32,heads=4,vocab=64,seq=16")
DEEP_GPT = from_shape("layers=4,hidden=32,heads=4,vocab=64,seq=16")
LLAMA = ModelSpec(
    id="llama",
    name="a Llama with grouped keys, query norms and an output table of its own",
    shape=from_catalog(open_catalog().model("llama3.2-1b")).transformer.model_copy(
        update={"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn_hidden": 64, "vocab": 64}
        | {"seq": 16, "qk_norm": True, "tied_embeddings": False}
    ),
)
MODELS = {"gpt": GPT, "deep-gpt": DEEP_GPT, "llama": LLAMA}

LAYOUTS = [
    *("dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "tp=2", "tp=2,sp=1", "cp=2", "cp=2,zero=3", "pp=2"),
    *("tp=2,sp=1,recompute=full", "dp=2,recompute=operators", "pp=2,recompute=selective"),
    *("dp=4", "dp=4,zero=3", "dp=2,tp=2", "dp=2,tp=2,sp=1,zero=1", "dp=2,tp=2,sp=1,zero=3", "dp=2,pp=2"),
    *("dp=2,pp=2,zero=1", "dp=2,pp=2,zero=2", "dp=2,cp=2", "dp=2,cp=2,zero=3", "tp=2,pp=2"),
    *("tp=2,cp=2", "cp=2,pp=2", "cp=4"),
]
# Four chunks of a pipeline need as many layers; elsewhere two are faster, and every layer is split alike.
DEEP_LAYOUTS = ["pp=2", "pp=2,vpp=2", "dp=2,pp=2,vpp=2,zero=3", "tp=2,pp=2,vpp=2,sp=1", "pp=4"]
# What a Llama has and a GPT has not: rotary positions under cp, grouped keys and query norms under tp, an own head.
LLAMA_LAYOUTS = ["dp=2,zero=3", "tp=2", "cp=2", "pp=2", "dp=2,tp=2,sp=1,zero=3", "tp=2,pp=2", "tp=2,cp=2"]
LAYOUTS_OF_MODEL = {"gpt": LAYOUTS, "deep-gpt": DEEP_LAYOUTS, "llama": LLAMA_LAYOUTS}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool()
    yield made
    made.close()


def document(name: str, layout: str, **options: Any) -> dict[str, Any]:
    # a pipeline wants many micro-batches; elsewhere few are faster and the answer is the same
    micro_batch = 1 if "pp=" in layout or "dp=4" in layout else 2
    run = resolve(
        MODELS[name],
        parse_layout(f"{layout},mbs={micro_batch},gbs={GLOBAL_BATCH}"),
        **({"precision": "fp32", "steps": STEPS, "device": "cpu"} | options),
        optimizer=OptimizerSettings(learning_rate=1e-2),
    )
    return run.document()


@pytest.fixture(scope="module")
def alone(pool: RankPool) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Each model on one rank."""
    return {
        (name, precision): pool.run("jobs:train", document(name, "dp=1", precision=precision), num_ranks=1)[0]
        for name in MODELS
        for precision in ("fp32", "bf16")
    }


def check(steps: list[tuple[float, float]], expected: list[tuple[float, float]], tolerance_frac: float) -> None:
    assert [loss for loss, _ in steps] == pytest.approx([loss for loss, _ in expected], rel=tolerance_frac)
    norm_tolerance = max(NORM_TOLERANCE_FRAC, 5 * tolerance_frac)
    assert [norm for _, norm in steps] == pytest.approx([norm for _, norm in expected], rel=norm_tolerance)


@pytest.mark.parametrize(
    ("layout", "name"),
    [(layout, name) for name, layouts in LAYOUTS_OF_MODEL.items() for layout in layouts],
)
def test_layout_gives_the_losses_of_one_rank(pool: RankPool, alone: dict[Any, Any], layout: str, name: str) -> None:
    ranks = int(parse_layout(layout).num_gpus)
    answers = pool.run("jobs:train", document(name, layout), num_ranks=ranks)
    for steps in answers:
        check(steps, alone[name, "fp32"], LOSS_TOLERANCE_FRAC)


@pytest.mark.parametrize("layout", ["dp=2", "dp=2,zero=3", "tp=2,sp=1", "pp=2"])
def test_layouts_agree_in_bf16_too(pool: RankPool, alone: dict[Any, Any], layout: str) -> None:
    answers = pool.run("jobs:train", document("gpt", layout, precision="bf16"), num_ranks=2)
    check(answers[0], alone["gpt", "bf16"], SHORT_TOLERANCE_FRAC)


def test_the_loss_falls(alone: dict[Any, Any]) -> None:
    for seen in alone.values():
        assert seen[-1][0] < seen[0][0] - 0.2


@pytest.mark.parametrize(
    ("before", "after"),
    [("dp=2,zero=3", "dp=1"), ("dp=1", "tp=2,sp=1"), ("dp=2,tp=2,sp=1,zero=3", "pp=2"), ("pp=2", "dp=2,zero=1")],
)
def test_checkpoint_of_one_layout_continues_under_another(
    pool: RankPool, alone: dict[Any, Any], tmp_path: Path, before: str, after: str
) -> None:
    half = STEPS // 2
    first = document("gpt", before, steps=half)
    pool.run("jobs:train_and_save", first, str(tmp_path), num_ranks=int(parse_layout(before).num_gpus))
    ranks = int(parse_layout(after).num_gpus)
    seen = pool.run("jobs:load_and_train", document("gpt", after), str(tmp_path), STEPS, num_ranks=ranks)
    check(seen[0], alone["gpt", "fp32"][half:], LOSS_TOLERANCE_FRAC)
