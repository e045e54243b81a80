"""A whole run: steps to days and money, published runs, and slices of a queue."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.energy import Facility, billed_units
from scalewright.costs.machine import machine_from_system
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.energy_use import facility_of
from scalewright.planner.question import Question
from scalewright.planner.whole_run import (
    StepWork,
    WholeRun,
    step_work,
    storage_of,
    whole_run,
)
from scalewright.records.types import WARNING
from scalewright.report.planner.whole_run import print_run_details
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import RECIPES
from scalewright.workload.training import FULL, TrainingMode

CATALOG = Catalog((packaged_data(),))
CONSTANTS = CATALOG.constants()
HOUR_S, DAY_S = 3600.0, 86400.0
SITE = Facility(pue_frac=1.2, kgco2e_per_j=57e-3 / 3.6e6, usd_per_s_per_gpu=2.0 / 3600)
WORK = StepWork(
    name="a measured step", machine="somewhere", step_time_s=10.0, interval_s=(9.0, 12.0), num_gpus=64,
    gpus_per_node=8, num_tokens_per_step=4e6, checkpoint_bytes=1e12, constants=CONSTANTS, host_link_bytes_per_s=25e9,
    busy_w=400.0, idle_w=70.0, overhead_w=64 * 168.0, facility=SITE,
)  # fmt: skip


def run(work: StepWork = WORK, **changed: Any) -> WholeRun:
    arguments: dict[str, Any] = {"num_steps": 10_000, "storage_entry": CATALOG.storage("lumi-f")}
    return whole_run(work=work, **(arguments | changed))


def predicted(layout: str = "tp=4,dp=16,mbs=1,gbs=256,zero=1,sp=1", *, mode: TrainingMode = FULL) -> Answer:
    machine = machine_from_system(CATALOG, "leonardo")
    return answer(Question(
        spec=from_catalog(CATALOG.model("llama3-8b")), machine=machine, layout=parse_layout(layout),
        recipe=RECIPES["bf16"], stack=CATALOG.stack("megatron-core"), facility=SITE, mode=mode,
    ))  # fmt: skip


def test_tokens_are_whole_steps() -> None:
    whole = run(num_steps=None, num_tokens=10e6)
    assert whole.num_steps == 3
    assert whole.num_tokens == 12e6


def test_time_money_energy_and_carbon_follow_from_each_other() -> None:
    whole = run()
    assert whole.time_s > 1e5
    assert whole.num_gpu_hours == pytest.approx(64 * whole.time_s / HOUR_S)
    assert whole.cost_usd == pytest.approx(2.0 * whole.num_gpu_hours)
    assert whole.energy is not None
    least = 1e5 * (64 * 400.0 + 64 * 168.0) * 1.2
    assert least <= float(whole.energy.total) <= least * whole.time_s / 1e5
    assert whole.carbon_kgco2e == pytest.approx(float(whole.energy.total) * 57e-3 / 3.6e6)
    assert whole.interval_s[0] < whole.time_s < whole.interval_s[1]
    assert whole.goodput_frac == pytest.approx(1e5 / whole.time_s)


def test_gpu_hours_have_an_interval_and_never_less_than_the_fastest_steps() -> None:
    whole = run(num_steps=200_000)
    low, high = whole.gpu_hours_interval
    assert low < whole.num_gpu_hours < high
    assert low >= 64 * 200_000 * WORK.interval_s[0] / HOUR_S
    assert high / low > 2.0
    assert sum(float(part.total) for part in whole.time.parts) == pytest.approx(whole.time_s)


def test_a_wide_step_makes_a_wide_campaign() -> None:
    wide = run(replace(WORK, interval_s=(5.0, 40.0)), num_steps=200_000)
    assert wide.interval_s[1] > run(num_steps=200_000).interval_s[1]


def test_money_is_in_euros_and_in_units_of_the_site() -> None:
    """LUMI bills four GPU-hours, one for each card, for a node of eight devices and an hour."""
    site = replace(SITE, usd_per_eur=1.25, billed_unit="GPU-hours", billed_per_node_s=4 / HOUR_S)
    whole = run(replace(WORK, num_gpus=80, facility=site))
    assert whole.cost_usd is not None
    assert whole.cost_eur == pytest.approx(whole.cost_usd / 1.25)
    assert whole.num_billed_units == pytest.approx(10 * 4 * whole.time_s / HOUR_S)
    body = whole.as_dict()
    assert body["billed"]["unit"] == "GPU-hours"
    assert body["cost_eur_interval"][0] < body["cost_eur"] < body["cost_eur_interval"][1]


def test_ten_nodes_of_lumi_for_six_hours_are_240_hours_of_cards() -> None:
    per_node_s = facility_of(CATALOG, "lumi", "mi250x-gcd").billed_per_node_s
    assert per_node_s is not None
    assert billed_units(time_s=6 * HOUR_S, num_nodes=10, billed_per_node_s=per_node_s) == pytest.approx(240)


def test_without_a_site_there_is_no_energy_and_no_money() -> None:
    whole = run(replace(WORK, facility=None))
    assert whole.energy is None
    assert whole.cost_usd is None
    assert "energy_j" not in whole.as_dict()


def test_llama_3_keeps_nine_tenths_of_its_time() -> None:
    """Llama 3 405B (arXiv:2407.21783), section 3.3.4: above 90 % effective training time in spite of 419
    interruptions; storage of 2 TB/s sustained, which one job has to itself there."""
    storage = CATALOG.storage("lumi-f")
    bandwidth = storage.write_bandwidth
    assert bandwidth is not None
    own = bandwidth.model_copy(update={"value": 2e12 / CONSTANTS.shared_storage_share.value})
    big = replace(WORK, num_gpus=16384, checkpoint_bytes=405e9 * 14, step_time_s=15.0, interval_s=(14.0, 16.0))
    whole = run(
        big, num_steps=round(54 * DAY_S / 15), storage_entry=storage.model_copy(update={"write_bandwidth": own}),
        is_campaign=False,
    )  # fmt: skip
    assert 0.90 <= whole.goodput_frac <= 0.97
    assert whole.num_failures == pytest.approx(419 / whole.goodput_frac, rel=0.02)


def test_bloom_takes_about_what_it_took() -> None:
    """Kind: measured. 1,082,990 GPU-hours and 433 MWh with PUE 1.2 for 366e9 tokens, at the published 105 s a step of
    2048 x 2048 tokens on 384 A100; the hours hold restarts and tests as well."""
    bloom = replace(
        WORK, num_gpus=384, num_tokens_per_step=2048 * 2048, checkpoint_bytes=2.47e12, step_time_s=105.0,
        interval_s=(105.0, 105.0), busy_w=285.0, idle_w=68.0, overhead_w=384 * 0.42 * 400.0,
    )  # fmt: skip
    whole = run(bloom, num_steps=None, num_tokens=366e9, storage_entry=CATALOG.storage("jean-zay-scratch"))
    assert whole.num_gpu_hours == pytest.approx(1_082_990, rel=0.15)


def test_slices_hold_the_whole_run() -> None:
    whole = run(limit_s=12 * HOUR_S)
    cut = whole.slices
    assert cut is not None
    assert float(cut.one.total) == pytest.approx(12 * HOUR_S)
    work_s = float(cut.one.part("work").total)
    starts_s = float(whole.time.part("job_starts").total) + float(whole.time.part("last_checkpoints").total)
    assert (cut.num_jobs - 1) * work_s < whole.time_s - starts_s <= cut.num_jobs * work_s
    assert cut.last_request_s <= 12 * HOUR_S
    assert whole.time_s > run().time_s


def test_a_short_run_is_one_job_of_a_shorter_request() -> None:
    cut = run(num_steps=100, limit_s=12 * HOUR_S).slices
    assert cut is not None
    assert cut.num_jobs == 1
    assert cut.last_request_s < HOUR_S


def test_given_epochs_and_checkpoint_interval_are_used() -> None:
    whole = run(num_epochs=90, epoch_fixed_s=30.0, every_s=3600.0)
    assert float(whole.time.part("epoch_ends").total) == 2700.0
    assert whole.steps_between_checkpoints == 360
    assert whole.time_s > run().time_s


def test_adapters_are_small_to_save() -> None:
    full, lora = predicted(), predicted(mode=TrainingMode(name="lora"))
    assert full.transformer.checkpoint_bytes == pytest.approx(14 * full.question.spec.num_params)
    assert lora.transformer.checkpoint_bytes == 41_943_040 * 14


def test_a_predicted_step_makes_a_run() -> None:
    prediction = predicted()
    work = step_work(prediction)
    assert work.num_nodes == 16
    whole = whole_run(work=work, num_tokens=1e12, storage_entry=storage_of(CATALOG, "leonardo"))
    assert whole.num_tokens == pytest.approx(1e12, rel=1e-5)
    assert whole.energy is not None
    assert whole.time_s > whole.num_steps * prediction.time_s


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_tokens": 1e9}, "give one of them"),
        ({"num_steps": None}, "give one of them"),
        ({"num_steps": 0}, "at least one step"),
        ({"limit_s": 200.0}, "leaves no time to work"),
        ({"every_s": 0.0}, "leave it to the advised range"),
    ],
)
def test_impossible_runs_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**changed)


def test_a_machine_without_storage_asks_for_one() -> None:
    with pytest.raises(ConfigError, match="pinnacles has no storage"):
        storage_of(CATALOG, "pinnacles")
    assert storage_of(CATALOG, "pinnacles", "hdd-nfs").id == "hdd-nfs"


def test_document_has_units_in_its_keys_and_adds_up() -> None:
    body = json.loads(json.dumps(run(limit_s=24 * HOUR_S).as_document(), allow_nan=False))
    assert body["schema"] == "scalewright.whole-run/1"
    assert body["time_s"] == pytest.approx(body["time"]["total_s"])
    assert body["time_s"] == pytest.approx(sum(p["total_s"] for p in body["time"]["parts"]))
    assert {"device_time_s", "num_gpu_hours", "energy_j", "cost_usd", "carbon_kgco2e", "goodput_frac"} <= set(body)
    assert body["checkpoint"]["every_num_steps"] * body["step_time_s"] == pytest.approx(body["checkpoint"]["every_s"])


def test_large_runs_and_lost_storage_are_said() -> None:
    notes = " ".join(run(storage_entry=CATALOG.storage("nvme-gen4")).notes)
    assert "512 GPU-hours" in notes
    assert "lost with its node" in notes
    assert run(storage_entry=CATALOG.storage("nvme-gen4")).as_dict()["checkpoint"]["is_lost_with_node"]
    assert not run(storage_entry=CATALOG.storage("lumi-p")).as_dict()["checkpoint"]["is_lost_with_node"]
    assert "512" not in " ".join(run(num_steps=1).notes)


def test_details_are_80_columns_and_come_from_the_document() -> None:
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        print_run_details(console, json.loads(json.dumps(run(limit_s=12 * HOUR_S).as_document())))
    text = captured.get()
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("save every", "jobs of 12.0 h", "lost work", "margin", "each costs"):
        assert word in text


def test_less_than_one_step_is_warned_of_and_more_is_not() -> None:
    step = int(WORK.num_tokens_per_step)
    for num_tokens in (1, 100, step - 1, step, step + 1, 100 * step):
        warned = [note for note in run(num_steps=None, num_tokens=num_tokens).notes if note.startswith(WARNING)]
        assert len(warned) == (num_tokens < step)
        assert all(f"{num_tokens:,} tokens are less than one step of {step:,}" in note for note in warned)
        assert all(f"--tokens {num_tokens}B" in note for note in warned)
