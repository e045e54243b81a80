"""Emitted configurations read by the frameworks' own parsers, at the releases that the emitters name."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine_cases import engine_request
from engines.emitting import EXPRESSED, SEQ_LEN, emitted, megatron_arguments, model
from scalewright.engines.files import deepspeed, fsdp, torchtitan
from scalewright.engines.nearest import rendered
from scalewright.engines.types import Emitted
from scalewright.workload.layout import Layout, parse_layout

PARSERS = Path(__file__).parent / "parsers"
REQUIREMENTS = PARSERS / "requirements.txt"
TRAINER_ONLY = {
    # Read by Megatron-LM's trainer; Megatron-Core's configurations have no field of that name.
    "seq_length", "max_position_embeddings", "position_embedding_type", "vocab_size", "make_vocab_size_divisible_by",
    "untie_embeddings_and_output_weights", "micro_batch_size", "global_batch_size", "ckpt_format", "use_megatron_fsdp",
    "group_query_attention", "num_query_groups", "swiglu", "disable_bias_linear", "no_gradient_accumulation_fusion",
    "norm_epsilon", "use_rope_scaling", "rope_scaling_factor",
    "num_experts", "num_virtual_stages_per_pipeline_rank", "fp8_format", "fp4_format", "grad_reduce_in_bf16",
}  # fmt: skip


@pytest.fixture(scope="session")
def packages() -> Path:
    """A folder with the pinned releases; made once per interpreter, and whole or not at all."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    place = Path(sys.prefix) / "share" / f"emit-parsers-{digest}"
    if place.is_dir():
        return place
    place.parent.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(scratch), "-r"]
    done = subprocess.run([*command, str(REQUIREMENTS)], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(scratch)
        pytest.skip(f"the frameworks' parsers cannot be installed here: {done.stderr.strip()[-200:]}")
    try:
        scratch.rename(place)
    except OSError:  # another worker was faster
        shutil.rmtree(scratch)
    return place


def parsed(packages: Path, driver: str, *args: str) -> Any:
    """What a framework's parser makes of files: each runs alone, because their imports would not agree."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_", "PYTHON"))}
    env |= {"HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "COLUMNS": "200"}
    command = [sys.executable, str(PARSERS / driver), str(packages), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def cases_of(framework: str) -> list[tuple[str, Layout, str, Emitted]]:
    cases = []
    for name_of_framework, name, text, precision in EXPRESSED:
        if name_of_framework == framework:
            seq_len = 512 if name == "bert-large" else SEQ_LEN
            layout = parse_layout(text)
            cases.append(
                (
                    name,
                    layout,
                    precision,
                    emitted(name_of_framework, name, layout, precision=precision, seq_len=seq_len),
                )
            )
    return cases


def written(folder: Path, cases: list[tuple[str, Layout, str, Emitted]]) -> list[str]:
    paths = []
    for i, (_, _, _, emitted_file) in enumerate(cases):
        path = folder / f"{i}-{emitted_file.filename}"
        path.write_text(emitted_file.text)
        paths.append(str(path))
    return paths


def test_the_releases_parsed_are_those_named() -> None:
    pinned = dict(line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    assert pinned["torchtitan"] == torchtitan.VERSION
    assert pinned["deepspeed"] == deepspeed.VERSION
    assert f"accelerate {pinned['accelerate']}" == fsdp.VERSION


def test_torchtitan_reads_its_toml(packages: Path, tmp_path: Path) -> None:
    cases = cases_of("torchtitan")
    read = parsed(packages, "torchtitan_config.py", *written(tmp_path, cases))
    for (_, layout, precision, _), config in zip(cases, read, strict=True):
        split, batch = config["parallelism"], config["training"]
        assert split["tensor_parallel_degree"] == layout.tp
        assert split["pipeline_parallel_degree"] == layout.pp
        assert split["context_parallel_degree"] == layout.cp
        dp = split["data_parallel_replicate_degree"] * split["data_parallel_shard_degree"]
        assert dp == layout.dp
        if config["model"]["name"] == "qwen3":
            assert split["expert_parallel_degree"] == layout.ep
        assert batch["global_batch_size"] == layout.gbs
        # As its trainer and its pipeline count them.
        accumulated = batch["global_batch_size"] // (batch["local_batch_size"] * dp)
        staged = batch["local_batch_size"] // split["pipeline_parallel_microbatch_size"] if layout.pp > 1 else 1
        assert accumulated * staged == layout.num_micro_batches
        converters = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}
        assert (converters.get(precision) in config["model"]["converters"]) == (precision in converters)


def test_torchtitan_has_these_flavours(packages: Path) -> None:
    """The sizes that its TOML only names are those of our catalogue."""
    for sizes, (name, flavour) in torchtitan.FLAVOURS.items():
        layers, hidden, heads, kv_heads, ffn, vocab, num_experts, top_k, expert_ffn = sizes
        source = packages / "torchtitan/models" / name
        defaults = _class_defaults(source / "model/args.py")
        given = defaults | _flavour(source / "__init__.py", flavour)
        assert (given["n_layers"], given["dim"], given["n_heads"]) == (layers, hidden, heads)
        assert given.get("n_kv_heads", heads) == kv_heads
        assert given["vocab_size"] == vocab
        assert given.get("num_experts", 0) == num_experts
        if num_experts:
            assert (given["top_k"], given["moe_inter_dim"]) == (top_k, expert_ffn)
        assert _feed_forward(given) == ffn


def _feed_forward(given: dict[str, Any]) -> int:
    """As its models size it: named outright, or Llama's rounding of two thirds of four times the width."""
    for key in ("hidden_dim", "inter_dim"):
        if key in given:
            return int(given[key])
    if "moe_inter_dim" in given:  # every layer has experts
        return int(given["moe_inter_dim"])
    width, step = int(2 * 4 * given["dim"] / 3), given["multiple_of"]
    return step * math.ceil(int(given["ffn_dim_multiplier"] * width) / step)


def _class_defaults(path: Path) -> dict[str, Any]:
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    fields = [node for cls in classes if cls.name.endswith("ModelArgs") for node in cls.body]
    return {
        node.target.id: node.value.value
        for node in fields
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant) and node.value.value is not None
    }  # fmt: skip


def _flavour(path: Path, name: str) -> dict[str, Any]:
    tables = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Dict)]
    calls = [
        call for table in tables for key, call in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == name and isinstance(call, ast.Call)
    ]  # fmt: skip
    assert len(calls) == 1, (path, name)
    keywords = [k for call in ast.walk(calls[0]) if isinstance(call, ast.Call) for k in call.keywords]
    return {k.arg: k.value.value for k in keywords if k.arg and isinstance(k.value, ast.Constant)}


def test_deepspeed_reads_its_json(packages: Path, tmp_path: Path) -> None:
    cases = cases_of("deepspeed")
    pairs = [f"{path}={layout.dp}" for path, (_, layout, _, _) in zip(written(tmp_path, cases), cases, strict=True)]
    wrong = f"{pairs[0].rpartition('=')[0]}={int(cases[0][1].dp) + 1}"  # one copy more than the batch was split for
    *read, refused = parsed(packages, "deepspeed_config.py", *pairs, wrong)
    assert "Check batch related parameters" in refused["refused"]
    for (name, layout, precision, emitted_file), config in zip(cases, read, strict=True):
        assert config["gbs"] == layout.gbs
        assert config["mbs"] == layout.mbs
        assert config["num_micro_batches"] == layout.num_micro_batches
        assert config["zero"] == layout.zero
        assert (config["bf16"], config["fp16"]) == (precision.startswith("bf16"), precision == "fp16")
        assert config["gradients"] == {"bf16": "fp32"}.get(precision)
        assert config["is_pure"] == (precision == "bf16-pure")
        assert config["ep"] == layout.ep
        in_json = "tensor_parallel" in json.loads(emitted_file.text)
        assert config["tp"] == (layout.tp if in_json else 1)
        layers = model(name).transformer.layers
        assert config["num_checkpoints"] == (layers if layout.recompute == "full" else None)


def test_accelerate_reads_its_yaml(packages: Path, tmp_path: Path) -> None:
    cases = cases_of("fsdp")
    read = parsed(packages, "accelerate_config.py", *written(tmp_path, cases))
    for (_, layout, precision, emitted_file), answer in zip(cases, read, strict=True):
        args, known = answer["args"], set(answer["known"])
        assert args["use_fsdp"] is True
        assert args["num_processes"] == layout.num_gpus
        assert args["mixed_precision"] == fsdp.PRECISIONS[precision]
        assert args["fsdp_reshard_after_forward"] == (layout.zero == 3)
        assert args["fsdp_activation_checkpointing"] == (layout.recompute == "full")
        if layout.tp > 1 or layout.cp > 1:
            assert args["use_parallelism_config"] is True
            assert args["parallelism_config_tp_size"] == layout.tp
            assert args["parallelism_config_cp_size"] == layout.cp
            assert args["parallelism_config_dp_shard_size"] == layout.dp
        # Nested keys are copied unchecked, so that a misspelt one would do nothing: each must be an option of its own.
        sections = [value for value in yaml.safe_load(emitted_file.text).values() if isinstance(value, dict)]
        assert {key for section in sections for key in section} <= known


def test_megatron_core_takes_these_arguments(packages: Path, tmp_path: Path) -> None:
    """No wheel carries Megatron-LM's parser; Megatron-Core's configuration checks the same values together."""
    cases = cases_of("megatron")
    arguments = [megatron_arguments(emitted_file.text) for *_, emitted_file in cases]
    (tmp_path / "given.json").write_text(json.dumps([_core_fields(args) for args in arguments]))
    read = parsed(packages, "megatron_config.py", str(tmp_path / "given.json"))
    for (name, layout, _, _), args, built in zip(cases, arguments, read["built"], strict=True):
        unknown = {key for key, value in args.items() if value not in (None, False)} - set(read["fields"])
        assert unknown <= TRAINER_ONLY
        assert (built["tp"], built["pp"], built["cp"], built["ep"]) == (layout.tp, layout.pp, layout.cp, layout.ep)
        assert built["num_layers"] == model(name).transformer.layers
        if args["pipeline_model_parallel_layout"]:
            even, extra = divmod(built["num_layers"], int(layout.pp))
            assert built["layers_of_stages"] == [even + (stage < extra) for stage in range(int(layout.pp))]
    assert any(built["layers_of_stages"] for built in read["built"])


def _core_fields(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments under the names of Megatron-Core's fields, as Megatron-LM's trainer passes them on."""
    given = {key: value for key, value in args.items() if value is not None}
    given |= {
        "num_moe_experts": args["num_experts"],
        "gated_linear_unit": args["swiglu"],
        "add_bias_linear": not args["disable_bias_linear"],
        "gradient_accumulation_fusion": not args["no_gradient_accumulation_fusion"],
        "num_query_groups": args["num_query_groups"] if args["group_query_attention"] else None,
        "virtual_pipeline_model_parallel_size": args["num_virtual_stages_per_pipeline_rank"],
        "fp8": args["fp8_format"],
        "fp4": "e2m1" if args["fp4_format"] else None,
        "cuda_graph_scope": [],
    }
    if args["moe_layer_freq"]:
        dense, routed = (int(part.split("*")[1]) for part in args["moe_layer_freq"].strip("()").split("+"))
        given["moe_layer_freq"] = [0] * dense + [1] * routed
    return given


def test_verl_composes_the_overrides_of_a_job(packages: Path, tmp_path: Path) -> None:
    """Hydra refuses a key that verl's configuration does not have."""
    requests = [engine_request("verl"), engine_request("verl", layout="cp=2,dp=8,mbs=1,gbs=32,zero=2")]
    words = [job.command[job.command.index("verl.trainer.main_ppo") + 1 :]
             for job in (rendered("verl", request) for request in requests)]  # fmt: skip
    (tmp_path / "overrides.json").write_text(json.dumps(words))
    for request, read in zip(
        requests, parsed(packages, "verl_config.py", str(tmp_path / "overrides.json")), strict=True
    ):
        actor, rollout, trainer = (read["actor_rollout_ref"]["actor"], read["actor_rollout_ref"]["rollout"],
                                   read["trainer"])  # fmt: skip
        assert trainer["nnodes"] * trainer["n_gpus_per_node"] == request.num_gpus
        assert trainer["total_training_steps"] == request.num_steps
        assert trainer["default_local_dir"] == str(request.checkpoint_dir)
        assert actor["ppo_micro_batch_size_per_gpu"] == request.layout.mbs
        assert actor["ulysses_sequence_parallel_size"] == request.layout.cp
        assert actor["fsdp_config"]["reshard_after_forward"] == (request.layout.zero == 3)
        assert rollout["n"] == 16  # the user's own
        assert read["data"]["train_files"] == request.data
        assert read["actor_rollout_ref"]["model"]["path"] == request.load


def test_torchtitan_reads_the_toml_of_a_job(packages: Path, tmp_path: Path) -> None:
    requests = [engine_request("torchtitan"), engine_request("torchtitan", data="synthetic", model="llama2-7b")]
    paths = []
    for number, request in enumerate(requests):
        path = tmp_path / f"{number}.toml"
        path.write_text(rendered("torchtitan", request).files["engine/torchtitan.toml"])
        paths.append(str(path))
    for request, read in zip(requests, parsed(packages, "torchtitan_config.py", *paths), strict=True):
        assert read["training"]["steps"] == request.num_steps
        assert read["checkpoint"]["interval"] == request.checkpoint_every
        assert read["optimizer"]["lr"] == request.optimizer.learning_rate
        assert read["compile"]["enable"] is True  # the user's own
