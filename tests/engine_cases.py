"""Engine jobs whose scripts and files are stored in tests/golden/engines.

Write them anew with: python tests/engine_cases.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright import __version__
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.engines.info import find_engine
from scalewright.engines.nearest import rendered
from scalewright.engines.plan_job import EngineWork, engine_interpreter, engine_job_request
from scalewright.engines.types import EngineRequest, optimizer_of
from scalewright.launch.plan_job import PlanOutline
from scalewright.launch.script.render import render
from scalewright.sites.types import Site
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe
from script_cases import ACCOUNTS, SITES

GOLDEN = Path(__file__).resolve().parent / "golden" / "engines"
CATALOG = Catalog((packaged_data(),))
RUN_DIR = Path("/project/runs/first")
GIVEN: dict[str, dict[str, Any]] = {
    "megatron": {"layout": "tp=2,pp=2,dp=4,mbs=1,gbs=64,zero=1,sp=1", "data": "/project/data/text",
                 "tokenizer": "/project/tokenizer", "engine_dir": "/project/Megatron-LM"},
    "torchtitan": {"data": "c4", "tokenizer": "/project/tokenizer", "settings": {"compile.enable": "true"}},
    "deepspeed": {"data": "/project/data/text"},
    "huggingface": {"data": "/project/data/text.npy", "settings": {"logging_steps": "5"}},
    "trl": {"task": "sft", "data": "/project/data/sft.jsonl", "load": "/project/weights",
            "tokenizer": "/project/weights"},
    "verl": {"task": "grpo", "data": "/project/data/prompts.parquet", "load": "/project/weights",
             "settings": {"actor_rollout_ref.rollout.n": "16"}},
    "vllm": {"task": "generate", "layout": "tp=4,dp=4,mbs=1,gbs=64", "load": "/project/weights"},
}  # fmt: skip
"""What a user gives to each engine."""
STORED = (
    ("megatron", "lumi"), ("megatron", "leonardo"), ("megatron", "jupiter"), ("megatron", "marenostrum5"),
    ("megatron", "perlmutter"), ("torchtitan", "jupiter"), ("deepspeed", "lumi"), ("deepspeed", "leonardo"),
    ("huggingface", "leonardo"), ("trl", "perlmutter"), ("verl", "leonardo"), ("vllm", "lumi"),
)  # fmt: skip


def engine_request(engine: str, *, gpus_per_node: int = 4, **changes: Any) -> EngineRequest:
    given = GIVEN[engine] | changes
    given.setdefault("optimizer", optimizer_of(given.get("task", "pretrain")))
    layout = parse_layout(given.pop("layout", "dp=16,mbs=1,gbs=64,zero=3,recompute=full"))
    model, seq_len = given.pop("model", "llama3-8b"), given.pop("seq_len", 4096)
    spec = given.pop("spec", None) or resolve_model(CATALOG, model)
    return EngineRequest(
        spec=spec.with_seq(seq_len), layout=layout, recipe=recipe(given.pop("precision", "bf16")), seq_len=seq_len,
        gpus_per_node=min(gpus_per_node, int(layout.num_gpus)), num_gpus=int(layout.num_gpus), run_dir=RUN_DIR,
        **{"num_steps": 1000, "checkpoint_every": 100, **given},
    )  # fmt: skip


def engine_work(engine: str, site: Site, **changes: Any) -> EngineWork:
    info = find_engine(engine)
    request = engine_request(engine, gpus_per_node=site.num_gpus_per_node or 4, **changes)
    entry = site.engine(engine)
    own = "" if entry is not None and (entry.container or entry.modules) else "/project/env/bin/python"
    request = replace(request, engine_python=engine_interpreter(own, {}, site, info))
    planned = PlanOutline(
        plan_id="0" * 12, system=site.system or "", num_nodes=request.num_nodes, gpus_per_node=request.num_local_gpus,
        predicted_s=7200.0, checkpoint_s=10.0,
        prediction={"step_time_s": 5.0, "input": {"stack": info.stack}},
    )  # fmt: skip
    return EngineWork(info=info, request=request, job=rendered(engine, request), plan={}, planned=planned)


def script_text(engine: str, site: Site, **changes: Any) -> str:
    work = engine_work(engine, site, **changes)
    job = engine_job_request(work, site, {"account": ACCOUNTS.get(site.id, "")}, walltime_s=14400, name="")
    text = render(replace(job, work_dir=Path("/project/code")), site).text
    return text.replace(f"scalewright {__version__}", "scalewright VERSION")


def stored_files(engine: str, site: Site) -> dict[str, str]:
    """Texts by name of the stored file: the script, and the engine's own files."""
    work = engine_work(engine, site)
    stored = {f"{engine}-{site.id}.sbatch": script_text(engine, site)}
    for name, text in work.job.files.items():
        if not name.endswith(".py"):
            stored[f"{engine}-{site.id}-{Path(name).name}"] = text.replace(__version__, "VERSION")
    return stored


def all_stored() -> dict[str, str]:
    return {name: text for engine, site in STORED for name, text in stored_files(engine, SITES[site]).items()}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, text in all_stored().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
