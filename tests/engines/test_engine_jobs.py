"""Jobs of engines: stored texts, refusals with a layout that works, flags that follow from the model."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from engine_cases import CATALOG, GIVEN, GOLDEN, all_stored, engine_request, script_text
from engines.emitting import ARGUMENTS
from scalewright.engines.info import all_engines, find_engine
from scalewright.engines.nearest import nearest_layout, rendered
from scalewright.engines.types import EngineRefusedError, EngineRequest, Refusal
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.workload.huggingface.config import from_hf_config
from scalewright.workload.named import resolve_model
from script_cases import SITES

STORED = all_stored()
LAYOUTS = [
    f"tp={tp},pp={pp},vpp={vpp},cp={cp},dp={16 // (tp * pp * cp)},mbs=1,gbs=64,zero={zero},sp={sp},recompute={again}"
    for tp, pp, vpp, cp, zero, sp, again in product(
        (1, 4), (1, 2), (1, 2), (1, 2), (0, 1, 3), (0, 1), ("none", "selective", "full")
    )
    if (vpp == 1 or pp > 1) and (sp == 0 or tp > 1)
]


def flags_of(command: tuple[str, ...]) -> dict[str, list[str]]:
    """Arguments by flag, as a parser takes them."""
    flags: dict[str, list[str]] = {}
    name = ""
    for word in command:
        if word.startswith("--"):
            name = word
            flags[name] = []
        elif name:
            flags[name].append(word)
    return flags


@pytest.mark.parametrize("name", STORED)
def test_text_is_the_stored_one(name: str) -> None:
    assert STORED[name] == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_stored_text_has_its_case() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(STORED)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="ShellCheck is not installed")
def test_every_stored_script_is_clean_for_shellcheck() -> None:
    scripts = [str(path) for path in sorted(GOLDEN.glob("*.sbatch"))]
    done = subprocess.run(["shellcheck", "-s", "bash", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("name", [name for name in STORED if name.endswith(".sbatch")])
def test_bash_reads_the_script(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=STORED[name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def refusal_of(engine: str, request: EngineRequest) -> Refusal | None:
    try:
        rendered(engine, request)
    except EngineRefusedError as error:
        return error.refusal
    return None


@pytest.mark.parametrize("engine", GIVEN)
def test_a_layout_renders_or_is_refused_with_one_that_does(engine: str) -> None:
    requests = [engine_request(engine, layout=text) for text in LAYOUTS]
    refused = [(request, refusal) for request in requests if (refusal := refusal_of(engine, request)) is not None]
    assert 0 < len(refused) < len(LAYOUTS)
    for request, refusal in refused:
        assert refusal.nearest is not None, refusal.reason
        assert refusal.nearest.brief in refusal.sentence
        assert int(refusal.nearest.num_gpus) == request.num_gpus
        assert refusal_of(engine, replace(request, layout=refusal.nearest)) is None


def test_the_nearest_layout_of_one_that_renders_is_itself() -> None:
    request = engine_request("megatron")
    assert nearest_layout("megatron", request) == request.layout


def test_a_model_that_no_layout_helps_has_no_nearest() -> None:
    with pytest.raises(EngineRefusedError, match="bloom") as raised:
        rendered("torchtitan", engine_request("torchtitan", model="bloom-7b1", seq_len=2048))
    assert raised.value.refusal.nearest is None


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama3-8b", {"--rotary-base": "500000", "--norm-epsilon": "1e-05", "--num-query-groups": "8",
                       "--untie-embeddings-and-output-weights": None, "--disable-bias-linear": None,
                       "--swiglu": None, "--kv-channels": "128"}),
        ("llama3-405b", {"--use-rope-scaling": None, "--rope-scaling-factor": "8"}),
        ("qwen2.5-0.5b", {"--rotary-base": "1000000", "--norm-epsilon": "1e-06", "--add-qkv-bias": None}),
        ("qwen3-8b", {"--qk-layernorm": None, "--rotary-base": "1000000"}),
        ("qwen3-30b-a3b", {"--num-experts": "128", "--moe-router-topk": "8", "--moe-aux-loss-coeff": "0.001"}),
        ("mixtral-8x7b", {"--num-experts": "8", "--moe-router-topk": "2", "--moe-ffn-hidden-size": "14336",
                          "--moe-aux-loss-coeff": "0.02"}),
        ("deepseek-v3", {"--moe-router-score-function": "sigmoid", "--moe-router-enable-expert-bias": None,
                         "--moe-router-num-groups": "8", "--moe-router-group-topk": "4",
                         "--moe-router-topk-scaling-factor": "2.5", "--rope-type": "yarn",
                         "--rotary-scaling-factor": "40", "--moe-router-load-balancing-type": "seq_aux_loss",
                         "--moe-shared-expert-intermediate-size": "2048"}),
        ("deepseek-v2-lite", {"--moe-router-pre-softmax": None, "--mscale": "0.707"}),
        ("qwen1.5-moe-a2.7b", {"--moe-shared-expert-gate": None}),
        ("gpt2", {"--norm-epsilon": "1e-05", "--position-embedding-type": "learned_absolute"}),
    ],
)  # fmt: skip
def test_megatron_is_told_everything_that_follows_from_the_model(model: str, expected: dict[str, str | None]) -> None:
    request = engine_request("megatron", model=model, layout="dp=16,mbs=1,gbs=64,zero=1")
    flags = flags_of(rendered("megatron", request).command)
    for name, value in expected.items():
        assert flags[name] == ([] if value is None else [value]), name
    absent = {"--untie-embeddings-and-output-weights"} if request.shape.tied_embeddings else set()
    assert not absent & set(flags)


@pytest.mark.parametrize("model", [name for name in CATALOG.ids("models") if not name.startswith("resnet")])
def test_megatron_knows_every_argument(model: str) -> None:
    """Names and kinds are those of the parser of the release that is named."""
    request = engine_request("megatron", model=model, layout="dp=16,mbs=1,gbs=64,zero=1", seq_len=512)
    try:
        job = rendered("megatron", request)
    except NotExpressedError:
        return
    for name, values in flags_of(job.command).items():
        kind = ARGUMENTS["arguments"][name]
        assert (not values) == (kind == "flag"), name
        if isinstance(kind, list):
            assert set(values) <= set(kind), name


def test_a_config_json_gives_the_same_flags_as_the_name(tmp_path: Path) -> None:
    """The file that we write for an engine, read back, is the model."""
    named = resolve_model(CATALOG, "llama3.2-1b")
    request = engine_request("deepspeed", model="llama3.2-1b")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(rendered("deepspeed", request).files["engine/engine.json"])["model"]))
    read = from_hf_config(path)
    sizes = {"source", "seq", "context"}
    assert read.transformer.model_dump(exclude=sizes) == named.transformer.model_dump(exclude=sizes)
    assert read.details is not None
    assert named.details is not None
    compared = {"source", "init_std", "max_positions"}
    assert read.details.model_dump(exclude=compared) == named.details.model_dump(exclude=compared)
    first, second = (
        flags_of(rendered("megatron", engine_request("megatron", spec=spec)).command) for spec in (named, read)
    )
    assert first == second


@pytest.mark.parametrize("engine", GIVEN)
def test_settings_of_the_user_come_last(engine: str) -> None:
    settings = {"torchtitan": {"training.steps": "7"}, "deepspeed": {"zero_optimization.stage": "2"}}
    chosen = settings.get(engine, {"some.key" if engine == "verl" else "some_key": "7"})
    job = rendered(engine, engine_request(engine, settings=chosen, extra_args=("--more", "x y")))
    assert job.command[-2:] == ("--more", "x y")
    if engine == "torchtitan":
        assert tomllib.loads(job.files["engine/torchtitan.toml"])["training"]["steps"] == 7
    elif engine in ("megatron", "vllm"):
        assert flags_of(job.command)["--some_key"] == ["7"]
    elif engine == "verl":
        assert "some.key=7" in job.command
    else:
        body = json.loads(job.files["engine/engine.json"])
        assert body["deepspeed"]["zero_optimization"]["stage"] == 2 if engine == "deepspeed" else body["trainer"]
        assert body["settings"] == chosen


def test_a_setting_of_torchtitan_without_a_section_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"section\.key"):
        rendered("torchtitan", engine_request("torchtitan", settings={"steps": "7"}))


@pytest.mark.parametrize("engine", GIVEN)
def test_nothing_of_the_user_reaches_a_shell_unquoted(engine: str) -> None:
    nasty = "it's $(touch /tmp/x) `id` \" ; & \n|"
    words = (nasty, "$HOME", "a\tb")
    key = "training.steps" if engine == "torchtitan" else "key"
    script = script_text(engine, SITES["leonardo"], extra_args=words, settings={key: nasty})
    lines = script[script.index("command=(") + len("command=(") :]
    taken = shlex.split(lines[: lines.index("\n)") if "\n)" in lines[: lines.index(")\n")] else lines.index(")\n")])
    assert tuple(taken[-3:]) == words


@pytest.mark.parametrize("engine", GIVEN)
def test_what_is_missing_is_a_placeholder(engine: str) -> None:
    bare: EngineRequest = engine_request(engine, data="", load="", tokenizer="", engine_dir="")
    names = {place.name for place in rendered(engine, bare).placeholders}
    expected: dict[str, set[str]] = {
        "megatron": {"data", "tokenizer", "engine-dir"}, "torchtitan": {"data", "tokenizer"}, "deepspeed": {"data"},
        "huggingface": {"data"}, "trl": {"load", "data", "tokenizer"}, "verl": {"load", "data"}, "vllm": {"load"},
    }  # fmt: skip
    assert names == expected[engine]
    assert rendered(engine, engine_request(engine)).placeholders == ()


def test_facts_of_engines_agree_with_the_catalogue_and_the_profiles() -> None:
    engines = all_engines()
    for info in engines.values():
        assert CATALOG.stack(info.stack).id == info.stack
        assert all(name in CATALOG.stack(info.stack).frameworks for name in info.frameworks)
        assert info.covers(info.oldest)
        assert info.covers(info.newest)
        assert not info.covers("99.0")
    named = {name for site in SITES.values() for entry in site.engines for name in entry.engines}
    assert named <= set(engines)
    assert find_engine("fsdp").id == "huggingface"


def test_the_image_of_a_site_is_used_unless_the_user_gives_one() -> None:
    script = script_text("megatron", SITES["lumi"])
    assert "lumi-multitorch-full" in script
    assert "--bind /project/Megatron-LM" in script
    assert "module load cineca-ai/4.3.0" in script_text("deepspeed", SITES["leonardo"])


def test_a_notice_queues_a_megatron_job_again_though_it_ends_with_zero() -> None:
    assert "if ((status == 0 && noticed == 0)); then" in script_text("megatron", SITES["leonardo"])
    assert "if ((status == 0)); then" in script_text("deepspeed", SITES["leonardo"])
