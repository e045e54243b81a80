"""Plan and what follows from it agree: what is emitted fits, limits and budgets are kept, choices are explained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from planner_cases import CATALOG
from scalewright import units
from scalewright.engines.emit import EMITTERS
from scalewright.sites.loader import packaged_sites
from scalewright.workload.layout import parse_layout

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli, Refused

DAY_S = 86400.0


def planned(cli: Cli, *args: str, code: int = 0) -> dict[str, Any]:
    done = cli("plan", *args, "--json")
    assert done.returncode == code, done.stderr[-500:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("framework", sorted(EMITTERS))
def test_an_emitted_layout_fits_the_stack_of_its_framework(cli: Cli, framework: str) -> None:
    """Karolina's 40 GB are tight for a 13B model: what Megatron-Core holds there is not what torchtitan holds."""
    question = ("--model", "llama3-8b", "--system", "karolina", "--seq", "8192")
    emitted = planned(cli, *question, "--nodes", "2", "--global-batch", "64", "--emit", framework)["emitted"]
    assert framework in CATALOG.stack(emitted["stack"]).frameworks
    alone = cli(
        "predict",
        *question,
        "--layout",
        emitted["layout_text"],
        "--stack",
        framework,
        "--checkpoint",
        "async",
        "--json",
    )
    assert alone.returncode == 0, alone.stderr
    prediction = json.loads(alone.stdout)
    assert prediction["fits"]
    assert prediction["reserved_bytes"] == pytest.approx(emitted["reserved_bytes"])


def test_the_recommended_layout_is_never_faster_than_the_one_named_fastest(cli: Cli) -> None:
    """All layouts that are near the fastest have little memory left here. A slower one with room is not the fastest."""
    question = ("--model", "llama3-8b", "--system", "leonardo", "--nodes", "8", "--global-batch", "256")
    choice = planned(cli, *question, "--steps", "1000", "--fix", "tp=1,pp=1,cp=1,zero=3")
    text = json.dumps(choice)
    assert "It is the fastest and the safest of 2 layouts" in text
    assert ": ." not in text


def test_another_stack_than_the_frameworks_is_refused(cli: Cli, refused: Refused) -> None:
    question = ("--model", "llama3-8b", "--system", "karolina", "--nodes", "2", "--global-batch", "64")
    message = refused(cli("plan", *question, "--emit", "torchtitan", "--stack", "megatron-core"))
    assert "stack megatron-core and emit torchtitan conflict" in message
    assert "compiled" in message


def test_auto_says_which_stack_it_takes_and_why(cli: Cli) -> None:
    """At 131,072 tokens the layouts that fit best shard the weights, which Megatron-Core does not do."""
    question = ("--model", "llama3-8b", "--system", "leonardo", "--seq", "131072")
    document = planned(cli, *question, "--nodes", "8", "--global-batch", "8")
    best = document["best"]
    zero = parse_layout(best["layout_text"]).zero
    assert best["input"]["stack"] == ("eager" if zero == 3 else "megatron-core")
    assert best["stack_origin"].startswith("auto")
    if zero == 3:
        (note,) = [note for note in document["warnings"] if note.startswith("stack auto takes eager, because zero=3")]
        assert "the fastest with megatron-core is tp=" in note
    for layout, stack in (("zero=3", "eager"), ("zero=1", "megatron-core")):
        text = cli("predict", *question, "--layout", f"tp=4,cp=8,dp=1,gbs=8,sp=1,{layout}").stdout
        assert f"stack {stack} (auto" in " ".join(text.split())
    named = cli("predict", *question, "--layout", "tp=4,cp=8,dp=1,gbs=8,sp=1,zero=3", "--stack", "eager").stdout
    assert "(auto" not in named


def test_the_recommended_count_keeps_to_the_budget_and_the_cheapest_is_named(cli: Cli) -> None:
    question = ("--model", "llama2-13b", "--system", "selene", "--global-batch", "1024", "--tokens", "10B")
    free = planned(cli, *question, "--nodes", "32")
    hours = {row["num_nodes"]: row["num_gpu_hours"] for row in free["scaling"] if row["fits"]}
    assert free["recommended"]["num_nodes"] == max(hours)
    limit = (hours[32] + hours[max(hours)]) / 2  # between the asked count and the one that pays by time alone
    held = planned(cli, *question, "--nodes", "32", "--budget", f"gpu-hours={limit:.0f}")
    advice = held["recommended"]
    assert hours[advice["num_nodes"]] <= limit
    assert advice["cheapest_num_nodes"] == min(hours, key=lambda n: hours[n])
    assert f"{max(hours)} nodes need less time, but their run exceeds the budget (gpu-hours)" in advice["reason"]
    over = {row["num_nodes"] for row in held["scaling"] if row["over_budget"]}
    assert over == {n for n, needed in hours.items() if needed > limit}
    text = " ".join(cli("plan", *question, "--nodes", "32", "--budget", f"gpu-hours={limit:.0f}").stdout.split())
    assert "over budget" in text
    assert "cheapest" in text


def test_a_run_is_cut_into_jobs_of_the_sites_limit(cli: Cli) -> None:
    question = ("--model", "llama3-8b", "--system", "leonardo", "--nodes", "16", "--global-batch", "512")
    document = planned(cli, *question, "--tokens", "100B")
    run, limit = document["whole_run"], document["time_limit"]
    assert limit["limit_s"] == DAY_S
    assert "Leonardo" in limit["rule"]
    jobs = run["slices"]["num_jobs"]
    assert jobs >= run["time_s"] / DAY_S
    text = " ".join(cli("plan", *question, "--tokens", "100B").stdout.split())
    assert f"jobs {jobs} of at most 24.0 h; limit of Leonardo" in text
    assert "in all to start, restore and save" in text
    assert planned(cli, *question, "--tokens", "100B", "--walltime", "48 h")["whole_run"]["slices"]["num_jobs"] < jobs
    generic = ("--model", "llama3-8b", "--system", "generic-a100", "--nodes", "8", "--global-batch", "512")
    assert planned(cli, *generic)["time_limit"] is None
    assert "slices" in planned(cli, *generic, "--site", "lumi")["whole_run"]


@pytest.mark.parametrize("stage", ["pretrain", "sft"])
def test_without_nodes_and_batch_the_plan_chooses_both_and_says_why(cli: Cli, stage: str) -> None:
    document = planned(cli, "--model", "llama3-8b", "--system", "leonardo", "--stage", stage)
    rows = [row for row in document["scaling"] if row["fits"]]
    assert len(rows) >= 4
    assert all({"run_time_s", "num_gpu_hours", "strong_efficiency_frac"} <= set(row) for row in rows)
    assert document["num_nodes"] == document["recommended"]["num_nodes"]
    assert document["recommended"]["cheapest_num_nodes"] == min(rows, key=lambda row: row["num_gpu_hours"])["num_nodes"]
    batch = document["request"]["global_batch"]
    (note,) = [note for note in document["warnings"] if note.startswith(f"batch chosen: {batch} samples")]
    if stage == "pretrain":
        tokens, critical = batch * 8192, document["batch"]["critical_batch_tokens"]
        assert critical / 2 < tokens <= critical
        assert "critical batch" in note
    else:
        assert batch == 128


def test_a_budget_or_a_deadline_takes_the_nodes_that_meet_it(cli: Cli) -> None:
    question = ("--model", "llama3-8b", "--system", "leonardo", "--tokens", "100B", "--global-batch", "512")
    document = planned(cli, *question, "--budget", "gpu-hours=14000")
    assert document["whole_run"]["num_gpu_hours"] <= 14000
    times = {row["num_nodes"]: row["run_time_s"] for row in document["scaling"] if not row["over_budget"]}
    assert document["num_nodes"] == max(times)
    soon = planned(cli, *question, "--budget", "time=5 d")
    assert soon["whole_run"]["time_s"] <= 5 * DAY_S


def test_of_layouts_that_cannot_be_told_apart_the_safest_is_recommended(cli: Cli) -> None:
    question = ("--model", "llama3-70b", "--system", "leonardo", "--nodes", "64", "--global-batch", "1024")
    document = planned(cli, *question)
    choice, best = document["choice"], document["best"]
    resolution = CATALOG.constants().layout_resolution.value
    assert choice["resolution_frac"] == resolution
    assert choice["num_layouts_within_resolution"] > 1
    assert choice["fastest_step_time_s"] <= best["step_time_s"] <= (1 + resolution) * choice["fastest_step_time_s"]
    ours, fastest = parse_layout(best["layout_text"]), parse_layout(choice["fastest_layout"])
    assert int(ours.pp) * int(ours.vpp) * int(ours.cp) <= int(fastest.pp) * int(fastest.vpp) * int(fastest.cp)
    assert f"the model cannot tell apart (within {resolution:.1%})" in choice["sentence"]
    if ours != fastest:
        assert f"The fastest is {choice['fastest_layout']}" in choice["sentence"]


def test_a_layout_that_is_fixed_altogether_is_not_chosen(cli: Cli) -> None:
    """Without a choice nothing is added for one."""
    question = ("--model", "gpt3-13b", "--system", "selene", "--nodes", "4", "--global-batch", "128")
    fix = "tp=8,pp=1,cp=1,dp=4,vpp=1,mbs=1,zero=1,sp=1,recompute=full"
    document = planned(cli, *question, "--fix", fix)
    assert document["choice"]["selection_frac"] == pytest.approx(0.0, abs=1e-3)
    assert all(part["name"] != "selection" or part["total_s"] < 0.01 for part in document["best"]["time"]["parts"])


def test_no_count_above_the_sites_limit_is_recommended(cli: Cli, tmp_path: Path) -> None:
    """The profile allows 48 nodes in one job: more stand in the table, marked, and no sentence advises them."""
    profile = (packaged_sites() / "generic.toml").read_text().replace('id = "generic"', 'id = "small"')
    profile += '\n[[partitions]]\nname = "gpu"\nmax_nodes = 48\nsource = "slurm"\n'
    home = tmp_path / "home" / "sites"
    home.mkdir(parents=True)
    (home / "small.toml").write_text(profile)
    question = ("--model", "llama2-7b", "--system", "generic-a100", "--nodes", "32", "--global-batch", "1024")
    done = cli("plan", *question, "--site", "small", "--json", env={"SCALEWRIGHT_HOME": str(tmp_path / "home")})
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    advice = document["recommended"]
    assert {row["num_nodes"] for row in document["scaling"] if row.get("is_over_site")} == {64, 128}
    assert advice["num_nodes"] == 32
    assert advice["most_num_nodes"] <= 48
    assert "the site allows fewer in one job" in advice["reason"]
    assert "Twice as many are above 48 nodes" in advice["sentence"] or "save" in advice["sentence"]


def test_a_budget_that_suffices_is_shown_with_what_it_leaves(cli: Cli) -> None:
    question = ("--model", "llama2-7b", "--system", "lumi", "--nodes", "16", "--tokens", "10B", "--global-batch", "512")
    document = planned(cli, *question, "--budget", "billed=20000,time=5 d")
    run = document["whole_run"]
    needs = {line["name"]: line["needs"] for line in document["budget"]}
    assert needs == {"billed": run["billed"]["num_units"], "time": run["time_s"]}
    text = " ".join(cli("plan", *question, "--budget", "billed=20000,time=5 d").stdout.split())
    for line in document["budget"]:
        assert f"budget {line['name']}: {line['words'][1]}, {line['needs'] / line['limit']:.0%} of" in text


def test_a_comparison_bills_and_prices_each_system(cli: Cli) -> None:
    """LUMI bills half a GPU-hour for a device; a system over the budget says so and hides no other."""
    question = ("--model", "llama2-7b", "--system", "jupiter", "--nodes", "16", "--tokens", "10B", "--compare", "lumi")
    text = " ".join(cli("plan", *question).stdout.split())
    rows = {row["system"]: row for row in planned(cli, *question)["compared"]["systems"]}
    billed = rows["lumi"]["whole_run"]["billed"]
    assert billed["num_units"] == pytest.approx(rows["lumi"]["whole_run"]["num_gpu_hours"] / 2)
    assert f"billed {units.format(billed['num_units'], units.COUNT)} {billed['unit']}" in text
    assert f"cost {units.format(rows['jupiter']['whole_run']['cost_eur'], units.EUR)}" in text
    hours = rows["jupiter"]["whole_run"]["num_gpu_hours"]
    held = planned(cli, *question, "--budget", f"gpu-hours={2 * hours:.0f}")["compared"]["systems"]
    assert [row["fits"] for row in held] == [True, False]
    assert "budget gpu-hours" in held[1]["reason"]
