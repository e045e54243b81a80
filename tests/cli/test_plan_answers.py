"""`plan` and `plan-show`: answers in 80 columns, one document, the same again from a file, and the exit code."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewright.workload.layout import parse_layout

Here = Callable[..., subprocess.CompletedProcess[str]]


def plan(*more: str, model: str = "gpt3-13b", system: str = "selene", nodes: str = "4") -> list[str]:
    return ["plan", "--model", model, "--system", system, "--nodes", nodes, "--global-batch", "128", *more]


EXAMPLE = ["plan", "--model", "gpt3-175b", "--system", "lumi", "--nodes", "128", "--global-batch", "1536"]
MISFIT = plan(model="gpt3-175b", nodes="1")


def test_example_answers_every_question_in_eighty_columns(here: Here) -> None:
    done = here(*EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    flat = " ".join(done.stdout.split())
    for words in (
        "lumi-g, 128 nodes): fits", "recommended by time: tp=", "90 % interval", "MFU", "where the memory goes",
        "GPU-hours",
        "carbon" if "carbon" in flat else "CO2e", "checkpoint", "the recommended layout", "why others lost",
        "tp 16 spans two nodes of 8", "node counts", "recommended:", "fewest devices that fit", "considered",
        "critical batch",
    ):  # fmt: skip
        assert words in flat, words
    assert flat.index("recommended by time") < flat.index("why others lost")


def test_where_other_nodes_allow_a_better_layout_words_say_so(here: Here) -> None:
    """Efficiency compares one layout with itself. What another layout gains on other nodes is a sentence."""
    question = plan(model="llama3-70b", system="perlmutter", nodes="16")
    document = json.loads(here(*question, "--json").stdout)
    flat = " ".join(here(*question).stdout.split())
    own = {k: v for k, v in parse_layout(document["best"]["layout_text"]).as_dict().items() if k not in ("dp", "gbs")}
    changed = 0
    for row in (row for row in document["scaling"] if row["fits"]):
        other = {k: v for k, v in parse_layout(row["layout"]).as_dict().items() if k not in ("dp", "gbs")}
        changed += other != own
        assert row.get("strong_efficiency_frac", 0.0) <= 1.01
    assert ("the recommended split" in flat) == (changed > 0)


@pytest.mark.parametrize(
    "args",
    [
        plan("--explain"),
        plan("--what-if", "tp=8,recompute=full", "--compare", "lumi,jupiter,leonardo,marenostrum5"),
        MISFIT,
        plan("--nodes", "1-8", "--objective", "energy", "--top", "12", "--walltime", "12 h"),
        plan("--stage", "rl"),
        plan("--stage", "generate", "--what-if", "precision=fp16"),
        plan("--stage", "distill", "--teacher", "llama3-70b"),
        ["plan", "--help"],
        ["plan-show", "--help"],
    ],
    ids=lambda a: " ".join(a)[-60:],
)
def test_answer_fits_eighty_columns(here: Here, args: list[str]) -> None:
    done = here(*args)
    assert done.returncode in (0, 1), done.stderr
    assert max((len(line) for line in done.stdout.splitlines()), default=0) <= 80


def test_json_is_one_plan_with_units_in_its_keys(here: Here) -> None:
    done = here(*plan("--json"))
    document = json.loads(done.stdout)
    assert next(iter(document.items())) == ("schema", "scalewright.plan/1")
    for key in ("layout", "step_time_s", "step_time_interval_s", "memory_bytes", "mfu_frac", "time", "memory"):
        assert key in document["best"], key
    assert {
        "alternatives",
        "considered",
        "feasible",
        "costed",
        "rejected",
        "scaling",
        "recommended",
        "whole_run",
    } <= set(document)
    low, high = document["best"]["step_time_interval_s"]
    assert low <= document["best"]["step_time_s"] <= high


def test_best_is_what_predict_says_of_its_layout(here: Here) -> None:
    """Every figure that both print is the same; what choosing costs stands beside it."""
    document = json.loads(here(*plan("--json")).stdout)
    best, choice = document["best"], document["choice"]
    alone = here("predict", "--model", "gpt3-13b", "--system", "selene", "--layout", best["layout_text"],
                 "--checkpoint", "async", "--json")  # fmt: skip
    predicted = json.loads(alone.stdout)
    for key in (set(best) & set(predicted)) - {"input"}:
        assert best[key] == predicted[key], key
    assert 1.0 < choice["expected_step_time_s"] / best["step_time_s"] < 1.15


def test_plan_that_does_not_fit_is_a_no_with_the_change_that_would(here: Here) -> None:
    done = here(*MISFIT)
    assert (done.returncode, done.stderr) == (1, "")
    flat = " ".join(done.stdout.split())
    assert "does not fit" in flat
    change = re.search(r"smallest change that fits (\d+) nodes instead of 1", flat)
    assert change is not None
    again = here(*plan(model="gpt3-175b", nodes=change.group(1)))
    assert again.returncode == 0


@pytest.mark.parametrize("args", [plan(), MISFIT, plan("--emit", "megatron", "--what-if", "tp=1")], ids=str)
def test_stored_plan_reads_as_the_fresh_one_did(here: Here, args: list[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    fresh = here(*args, "--out", str(file))
    again = here("plan-show", str(file))
    assert again.stdout == fresh.stdout
    assert again.returncode == fresh.returncode
    assert json.loads(here("plan-show", str(file), "--json").stdout) == json.loads(file.read_text())


def test_a_machine_of_one_node_needs_no_count(here: Here) -> None:
    one = here("plan", "--model", "gpt2-124m", "--system", "laptop", "--global-batch", "8")
    assert one.stdout.startswith("gpt2 on 1 x laptop-2core")


def test_a_rival_that_changes_more_than_its_choice_says_what(here: Here) -> None:
    """The fastest layout with another value of one knob moves others too: the reasons are theirs as well."""
    document = json.loads(here(*EXAMPLE, "--json").stdout)
    best, rival = (
        parse_layout(text) for text in (document["best"]["layout_text"], loser_of(document, "mbs")["layout"])
    )
    knob = next(k for k in ("tp", "pp", "cp", "ep") if getattr(rival, k) != getattr(best, k))
    lines = here(*EXAMPLE).stdout.splitlines()
    assert any(re.match(rf"{knob}={getattr(rival, knob)}, mbs={rival.mbs} +[+-][\d.]+ m?s ", line) for line in lines)


def test_a_faster_rival_is_said_to_be_faster(here: Here, tmp_path: Path) -> None:
    """A rival may be faster where the winner was chosen for its safety: sign and word say the same."""
    file = tmp_path / "plan.json"
    here(*EXAMPLE, "--out", str(file))
    document = json.loads(file.read_text())
    rival = loser_of(document, "recompute")
    rival["loss_s"] = -1.5
    file.write_text(json.dumps(document))
    line = next(text for text in here("plan-show", str(file)).stdout.splitlines() if "not as safe" in text)
    assert re.search(r"recompute=\w+ +-1\.50 s +faster, not as safe; ", line), line


def test_a_term_above_its_total_fills_the_bar_and_no_more(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    here(*EXAMPLE, "--out", str(file))
    document = json.loads(file.read_text())
    document["best"]["time"]["total_s"] = 1e-12
    file.write_text(json.dumps(document))
    done = here("plan-show", str(file))
    assert (done.returncode, "100.0%" in done.stdout) == (0, True)
    assert len(done.stdout) < 20_000


def loser_of(document: dict[str, Any], knob: str) -> dict[str, Any]:
    return next(loser for loser in document["why_others_lost"] if loser["knob"] == knob and "loss_s" in loser)


def test_explanation_walks_from_the_total_to_equations_and_sources(here: Here) -> None:
    flat = " ".join(here(*plan("--explain-all")).stdout.split())
    marks = ["where the step goes", "why others lost", "rejected because", "what limits it", "equations", "inputs"]
    positions = [flat.index(mark) for mark in marks]
    assert positions == sorted(positions)


def test_flags_are_written_for_the_framework(here: Here) -> None:
    document = json.loads(here(*plan("--emit", "megatron", "--json")).stdout)
    emitted, best = document["emitted"], document["best"]
    assert emitted["framework"] == "megatron"
    tp = best["layout"]["tp"]
    assert f"--tensor-model-parallel-size {tp}" in emitted["text"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plan_is_drawn(here: Here, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"plan{suffix}"
    assert here(*plan("--plot", str(file))).returncode == 0
    start = file.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in start


def test_comparison_says_what_was_kept_equal(here: Here) -> None:
    by_nodes = json.loads(here(*plan("--compare", "lumi,jupiter", "--json")).stdout)["compared"]
    assert by_nodes["basis"] == "4 nodes of each"
    assert {row["num_nodes"] for row in by_nodes["systems"]} == {4}
    by_devices = json.loads(
        here("plan", "--model", "gpt3-13b", "--compare", "lumi,jupiter", "--gpus", "32", "--global-batch", "128",
             "--json").stdout
    )["compared"]  # fmt: skip
    assert by_devices["basis"] == "32 devices of each"
    assert {row["num_gpus"] for row in by_devices["systems"]} == {32}


def test_stage_needs_as_many_devices_as_its_mode(here: Here) -> None:
    enough, too_few = here(*plan("--stage", "rl")), here(*plan("--stage", "rl", model="llama3-70b", nodes="1"))
    assert (enough.returncode, too_few.returncode) == (0, 1)
    assert "32 devices: enough in mode full" in enough.stdout
    document = json.loads(here(*plan("--stage", "rl", "--json")).stdout)
    assert {row["mode"] for row in document["minimum_gpus"]} == {"full", "offload", "lora"}


STEP = ("--stage", "rl", "--rl", "prompts=32,samples=16,prompt=128,response=512,longest=1920")


def test_an_rl_plan_searches_both_layouts_and_the_split(here: Here) -> None:
    done = here(*plan(*STEP, "--what-if", "gen_tp=4", "--json"))
    document = json.loads(done.stdout)
    assert done.returncode == 0
    choices = document["choices"]
    paces = {"on policy", "1-step off", "asynchronous", "token budget", "1-step off, token budget"}
    assert {choice["name"] for choice in choices} == paces
    bounded = next(choice for choice in choices if choice["name"] == "token budget")
    assert bounded["token_budget"] == 32 * 16 * 512
    assert bounded["rollout_gain"] > bounded["step_gain"] > 1.0
    for choice in choices:
        low, high = choice["step_time_interval_s"]
        assert low < choice["step_time_s"] < high
        assert choice["fits"]
        assert choice["num_gpus"] == 32
        layout = choice["layout"]
        trainers = layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"]
        together = choice["generator"]["num_gpus"] == 32
        assert trainers + (0 if together else choice["generator"]["num_gpus"]) == 32
    assert document["what_if"]["change"] == "gen_tp=4"
    text = " ".join(here(*plan(*STEP, "--what-if", "gen_tp=4")).stdout.split())
    assert "fastest ways on 32 devices, most tokens/s first" in text
    for choice in (choice for choice in choices if "token_budget" in choice):
        effect = "gains time" if choice["step_gain"] >= 1.0 else "would cost time"
        named = f"{choice['name']} of {choice['token_budget']:,}, retention {choice['retention']}, {effect}: rollout"
        assert named in text
        assert choice["length_bias_frac"] > -0.02, "of the retentions, one that loses no long answers"
    assert re.search(r"what if gen_tp=4: .* -> .*, (fits|tight|does not fit); (as fast|.* \(.*%\))$", text)


@pytest.mark.parametrize(
    "more", ["staleness=1", "staleness=0", "budget=524288", "budget=524288,staleness=1", "gpus=16"]
)
def test_whatever_a_step_names_is_planned(here: Here, more: str) -> None:
    """Paces that contradict the step's own words are not tried, and a budget that trains nothing is no choice."""
    done = here(*plan(*STEP[:-1], f"{STEP[-1]},{more}", "--json"))
    choices = json.loads(done.stdout)["choices"]
    assert (done.returncode, done.stderr) == (0, "")
    assert choices
    if "budget" in more:
        assert {choice["token_budget"] for choice in choices} == {524288}
    if "staleness" in more:
        bound = int(more[-1])
        assert bound >= 1 or "asynchronous" not in {choice["name"] for choice in choices}
        ages = [int(age) for choice in choices for age in choice.get("trained_tokens_by_age", {})]
        assert max(ages, default=0) <= bound


def test_a_retention_that_is_given_is_kept_and_its_bias_named(here: Here) -> None:
    step = f"{STEP[-1]},budget=262144,retention=1"
    done = here(*plan(*STEP[:-1], step, "--json"))
    choices = json.loads(done.stdout)["choices"]
    assert {choice["retention"] for choice in choices} == {1}
    assert choices[0]["length_bias_frac"] < -0.02
    text = " ".join(here(*plan(*STEP[:-1], step)).stdout.split())
    assert "biased to short answers: trained ones have" in text


def test_a_pace_or_split_that_is_given_is_kept(here: Here) -> None:
    paced = (*STEP[:-1], f"{STEP[-1]},gpus=8,lag=2")
    document = json.loads(here(*plan(*paced, "--json")).stdout)
    assert {choice["name"].removesuffix(", token budget") for choice in document["choices"]} == {"2-step off"}
    assert {choice["generator"]["num_gpus"] for choice in document["choices"]} == {8}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--rl", STEP[-1]), "add --stage rl"),
        (("--stage", "generate", "--rl", STEP[-1]), "option rl means nothing in stage generate"),
        (("--stage", "rl", "--tokens", "1B"), "option tokens means nothing in stage rl"),
        (("--stage", "rl", "--rl", "prompts=3,samples=5,prompt=8,response=8"), "not whole mini-batches of 128"),
    ],
)
def test_a_stage_refuses_what_it_does_not_follow(here: Here, more: tuple[str, ...], message: str) -> None:
    done = here(*plan(*more))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_generation_plan_ranks_splits_by_their_rate(here: Here) -> None:
    document = json.loads(here(*plan("--stage", "generate", "--json")).stdout)
    rates = [choice["tokens_per_s"] for choice in document["choices"]]
    assert rates == sorted(rates, reverse=True)
    assert len(rates) >= 2


def test_beyond_the_critical_batch_there_is_a_warning(here: Here) -> None:
    args = ["plan", "--model", "gpt2", "--system", "selene", "--nodes", "4", "--global-batch"]
    assert "beyond the critical" in " ".join(here(*args, "65536", "--fix", "mbs=8").stdout.split())
    assert "beyond the critical" not in " ".join(here(*args, "512", "--fix", "mbs=8").stdout.split())


def test_predict_and_plan_agree_on_tensor_parallelism_across_nodes(here: Here) -> None:
    """plan excludes it unless it is fixed; predict answers, and says that plan excludes it."""
    model = ("--model", "llama3-8b", "--system", "leonardo")
    layout = ("--layout", "tp=8,dp=2,mbs=1,gbs=64")
    predicted = here("predict", *model, *layout, "--mode", "offload")
    text = " ".join(predicted.stdout.split())
    assert "note tp 8 spans two nodes of 4, so the sums of every layer cross the network: plan excludes such" in text
    planned = here("plan", *model, "--nodes", "4", "--global-batch", "64")
    assert "tp=8 excluded tp 8 spans two nodes of 4" in " ".join(planned.stdout.split())
    fixed = here("plan", *model, "--nodes", "4", "--global-batch", "64", "--fix", "tp=8")
    assert fixed.returncode == 0
    assert "plan --fix tp=8 includes them" in " ".join(fixed.stdout.split())


def test_the_recommendation_is_in_short_sentences(here: Here) -> None:
    text = " ".join(here(*plan()).stdout.split())
    advice = text.partition("recommended: ")[2].partition(" fewest devices")[0]
    assert re.match(r"\d+ nodes? \(\d+ devices\)\. [A-Z]", advice), advice
    assert max(len(sentence.split()) for sentence in advice.split(". ")) <= 16, advice


@pytest.mark.parametrize("gpus", [128, 256])
def test_a_plan_that_lists_layouts_says_that_the_devices_suffice(here: Here, gpus: int) -> None:
    """DeepSeek-V3 is trained by NeMo-RL on 256 H100, with experts over devices."""
    step = ("--stage", "rl", "--rl", "prompts=32,samples=16,prompt=128,response=512,longest=1920")
    done = here("plan", "--model", "deepseek-v3", "--system", "generic-h100", "--gpus", str(gpus), *step, "--json")
    document = json.loads(done.stdout)
    assert document["fits"] == bool(document["choices"])
    fewest = next(row["num_gpus"] for row in document["minimum_gpus"] if row["mode"] == "full")
    assert fewest <= 256
    assert (fewest <= gpus) == document["fits"]


def test_a_published_narrow_format_counts_where_no_precision_is_asked_for(here: Here) -> None:
    serve = ("plan", "--stage", "generate", "--model", "deepseek-v3", "--system", "generic-h100", "--json")
    native, wide = (json.loads(here(*serve, *more).stdout)["minimum_gpus"] for more in ((), ("--precision", "bf16")))
    assert native[0]["num_gpus"] < wide[0]["num_gpus"]
    assert native[0]["assumption"].startswith("fp8 weights as published")
    distilled = ("plan", "--stage", "distill", "--model", "qwen3-8b", "--teacher", "deepseek-v3", "--json")
    teacher = json.loads(here(*distilled, "--system", "generic-h100").stdout)["minimum_gpus"][0]
    assert (teacher["stage"], teacher["num_gpus"]) == ("distill: teacher", native[0]["num_gpus"])


def test_a_plan_of_generation_searches_pipelines(here: Here) -> None:
    """Tensor parallelism within a node and a pipeline between nodes, where links between nodes are slow."""
    done = here("plan", "--stage", "generate", "--model", "llama3-70b", "--system", "perlmutter", "--partition",
                "gpu-40", "--gpus", "8", "--json")  # fmt: skip
    choices = json.loads(done.stdout)["choices"]
    assert choices[0]["name"] == "tp=4,pp=2,dp=1"
    rates = [choice["tokens_per_s"] for choice in choices]
    assert rates == sorted(rates, reverse=True)
