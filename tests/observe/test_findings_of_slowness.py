"""Rules of slowness and waste: each fires on its cause, names what it costs, and is silent on a near miss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.observe.evidence_maker import START_S, fired, loud, made, spot, with_parts

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import DeviceSample, Happening, JobFact, TransportFact

GIB = 2.0**30


def bound(rank: int, *, cpus: str, threads: int = 1, cores: int = 4, **more: str) -> Happening:
    values = {"event": "binding", "threads": str(threads), "cpus": cpus, "cores": str(cores), **more}
    return Happening(kind="configured", spot=spot(), message="", rank=rank, host="n1", values=values)


def data_event(**words: str) -> Happening:
    return Happening(kind="configured", spot=spot(), message="", rank=0, values={"event": "data", **words})


def test_a_healthy_run_has_no_finding() -> None:
    evidence = made(
        parts=lambda step, rank: {"data": 0.01, "own": 0.8 + 0.01 * rank, "core_wait": 0.01},
        memory_bytes=lambda step: 1e9 + (5e7 if step > 3 else 0.0),
        settings={
            "num_ranks": 2,
            "dp": 2,
            "mbs": 4,
            "gbs": 8,
            "precision": "bf16",
            "others_cores": 0.1,
            "num_cores": 4,
        },
    )
    with_parts(evidence, (0, 0.1, 0.01), (1, 0.08, 0.01))
    assert not loud(evidence)


def test_communication_is_judged_by_the_rank_that_waits_least() -> None:
    slow_link = with_parts(made(), (0, 0.5, 0.0), (1, 0.6, 0.0))
    assert fired(slow_link)["communication-bound"].severity == "warning"
    assert fired(slow_link)["communication-bound"].seen.score == pytest.approx(0.5)
    waits_for_a_rank = with_parts(made(), (0, 0.6, 0.0), (1, 0.05, 0.0))
    assert "communication-bound" not in fired(waits_for_a_rank)


def test_communication_as_predicted_is_no_warning() -> None:
    evidence = with_parts(made(), (0, 0.45, 0.0), (1, 0.5, 0.0))
    evidence.prediction = {"time": {"parts": [{"name": "communication", "total_s": 0.4}]}}
    assert fired(evidence)["communication-bound"].severity == "info"
    evidence.prediction = {"time": {"parts": [{"name": "communication", "total_s": 0.05}]}}
    finding = fired(evidence)["communication-bound"]
    assert finding.severity == "warning"
    assert finding.seen.gain is not None
    assert finding.seen.gain.step_time_frac == pytest.approx(0.40)


def test_the_slowest_loader_sets_the_pace() -> None:
    evidence = made(parts=lambda step, rank: {"data": 0.3 if rank == 1 else 0.0})
    finding = fired(evidence)["data-loader-bound"]
    assert finding.seen.ranks == (1,)
    assert finding.seen.gain is not None
    assert finding.seen.gain.step_time_frac == pytest.approx(0.3)
    assert "data-loader-bound" not in fired(made(parts=lambda step, rank: {"data": 0.08}))
    wakes_up = made(step_s=lambda step: 0.02, parts=lambda step, rank: {"data": 0.004})
    assert "data-loader-bound" not in fired(wakes_up)


def test_first_batches_are_compared_with_later_ones() -> None:
    def step_s(step: int) -> float:
        return 8.0 if step < 4 else 1.0

    evidence = made(step_s=step_s, parts=lambda step, rank: {"data": 7.0 if step < 4 else 0.01})
    assert fired(evidence)["slow-first-batches"].seen.numbers["extra_s"] == pytest.approx(28.0, rel=0.01)
    compiles = made(step_s=step_s, parts=lambda step, rank: {"data": 0.01})
    assert "slow-first-batches" not in fired(compiles)


def test_small_files_are_the_cause_if_workers_wait_for_them() -> None:
    evidence = made(parts=lambda step, rank: {"data": 0.4})
    evidence.happenings += [data_event(files="200", bytes="20000000"), data_event(workers_s="50", computing_s="5")]
    assert loud(evidence)[0] == "many-small-files"
    decodes = made(parts=lambda step, rank: {"data": 0.4})
    decodes.happenings += [data_event(files="200", bytes="20000000"), data_event(workers_s="50", computing_s="45")]
    assert loud(decodes) == ["data-loader-bound"]


def test_a_straggler_on_a_busy_machine_is_not_the_rank_without_a_core() -> None:
    # As measured with a quota on rank 1 while other people used both cores: rank 0 waits for a core, rank 1 computes.
    parts = ({"own": 0.80, "core_wait": 0.70}, {"own": 0.70, "core_wait": 0.30})
    finding = fired(made(num_ranks=2, parts=lambda step, rank: parts[rank]))["straggler-rank"]
    assert finding.seen.ranks == (1,)


def test_a_straggler_is_slow_in_its_own_part() -> None:
    evidence = made(num_ranks=4, parts=lambda step, rank: {"own": 0.9 if rank == 2 else 0.5})
    finding = fired(evidence)["straggler-rank"]
    assert finding.seen.ranks == (2,)
    assert finding.seen.gain is not None
    # 0.4 s in its own part, and of the 0.1 s after it what the same slowness costs: 0.1 x (1 - 0.5 / 0.9).
    assert finding.seen.gain.step_time_frac == pytest.approx(0.4 + 0.1 * (1 - 0.5 / 0.9))
    takes_turns = made(num_ranks=4, parts=lambda step, rank: {"own": 0.9 if rank == step % 4 else 0.5})
    assert "straggler-rank" not in fired(takes_turns)


def test_stalls_at_regular_times_are_told_from_a_tail() -> None:
    regular = made(num_steps=80, step_s=lambda step: 5.0 if step % 10 == 5 else 1.0)
    finding = fired(regular)["periodic-stall"]
    assert finding.seen.numbers["period"] == pytest.approx(14.0)
    assert finding.seen.gain is not None
    assert finding.seen.gain.step_time_frac == pytest.approx(4.0 / 14.0, rel=0.05)
    irregular = made(num_steps=80, step_s=lambda step: 9.0 if step in (7, 11, 40, 43, 79) else 1.0)
    assert "periodic-stall" not in fired(irregular)
    assert "slow-steps" in loud(irregular)
    saves = made(
        num_steps=80, step_s=lambda step: 5.0 if step % 10 == 5 else 1.0,
        parts=lambda step, rank: {"data": 4.0 if step % 10 == 5 else 0.0},
    )  # fmt: skip
    assert "periodic-stall" not in fired(saves)


def test_saving_too_often_costs_what_was_waited() -> None:
    settings = {"device_mttf_s": 1.8e8, "checkpoint_every": 2, "checkpoint_async": "false", "num_ranks": 2}
    evidence = made(parts=lambda step, rank: {"checkpoint": 1.0} if step % 2 else {}, settings=settings)
    findings = fired(evidence)
    assert findings["checkpoint-stall"].seen.gain is not None
    assert findings["checkpoint-stall"].seen.gain.step_time_frac == pytest.approx(1.0 / 3.0, rel=0.05)
    assert "too often" in findings["checkpoint-interval"].seen.message
    once = made(parts=lambda step, rank: {"checkpoint": 1.0} if step == 39 else {}, settings=settings)
    assert not loud(once)


def test_memory_that_settles_does_not_grow() -> None:
    leaks = made(memory_bytes=lambda step: 1e9 + 2e7 * step)
    assert fired(leaks)["memory-growing"].seen.numbers["bytes_per_step"] == pytest.approx(2e7)
    settles = made(memory_bytes=lambda step: 1e9 + 5e8 * min(step, 8) / 8)
    assert "memory-growing" not in fired(settles)


def test_ranks_on_the_same_core_take_turns() -> None:
    evidence = made(parts=lambda step, rank: {"core_wait": 0.5})
    evidence.happenings += [bound(0, cpus="0"), bound(1, cpus="0")]
    finding = fired(evidence)["wrong-binding"]
    assert finding.seen.gain is not None
    assert finding.seen.gain.step_time_frac == pytest.approx(0.5)
    own_cores = made()
    own_cores.happenings += [bound(0, cpus="0-1"), bound(1, cpus="2-3")]
    assert "wrong-binding" not in fired(own_cores)


def test_a_rank_that_is_bound_anew_counts_as_it_is_last() -> None:
    evidence = made()
    evidence.happenings += [bound(0, cpus="0-3"), bound(1, cpus="0-3"), bound(0, cpus="1"), bound(1, cpus="1")]
    assert "wrong-binding" in fired(evidence)


def test_threads_beyond_the_cores() -> None:
    evidence = made(parts=lambda step, rank: {"core_wait": 0.3})
    evidence.happenings += [bound(0, cpus="0-3", threads=8), bound(1, cpus="0-3", threads=8)]
    assert "OMP_NUM_THREADS=2" in fired(evidence)["oversubscribed-threads"].seen.next_step
    fits = made()
    fits.happenings += [bound(0, cpus="0-3", threads=2), bound(1, cpus="0-3", threads=2)]
    assert "oversubscribed-threads" not in fired(fits)


def test_a_gpu_on_another_numa_node() -> None:
    evidence = made()
    evidence.happenings += [
        bound(0, cpus="0-1", numa="0", device_numa="1"),
        bound(1, cpus="2-3", numa="1", device_numa="1"),
    ]
    assert fired(evidence)["wrong-numa-node"].seen.ranks == (0,)


def test_other_work_matters_if_ranks_wait_for_cores() -> None:
    settings = {"others_cores": 2.0, "num_cores": 4}
    assert "busy-machine" in loud(made(parts=lambda step, rank: {"core_wait": 0.3}, settings=settings))
    assert "busy-machine" not in loud(made(parts=lambda step, rank: {"core_wait": 0.02}, settings=settings))


def channels(*ways: str) -> Evidence:
    evidence = made(settings={"num_nodes": 2})
    evidence.transports += [
        TransportFact(between="nodes", way=way, spot=spot(), interfaces=(f"mlx5_{number}",))
        for number, way in enumerate(ways)
    ]
    return evidence


def test_sockets_between_nodes_are_a_fallback() -> None:
    assert "tcp-fallback" in loud(channels("NET/Socket", "NET/Socket"))
    assert "tcp-fallback" not in fired(channels("NET/IB", "NET/IB"))
    one_node = made(settings={"num_nodes": 1})
    one_node.transports.append(TransportFact(between="node", way="SHM", spot=spot()))
    assert "tcp-fallback" not in fired(one_node)


def test_a_card_that_is_not_used() -> None:
    evidence = channels("NET/IB")
    evidence.settings["nics_per_node"] = ("4", spot())
    assert "few-channels" in loud(evidence)
    evidence = channels("NET/IB", "NET/IB", "NET/IB", "NET/IB")
    evidence.settings["nics_per_node"] = ("4", spot())
    assert "few-channels" not in fired(evidence)


def test_tensor_parallelism_between_nodes() -> None:
    assert "tensor-parallel-across-nodes" in loud(made(settings={"tp": 16, "gpus_per_node": 8}))
    assert "tensor-parallel-across-nodes" not in fired(made(settings={"tp": 8, "gpus_per_node": 8}))


def test_the_bubble_follows_from_the_micro_batches() -> None:
    few = fired(made(settings={"pp": 8, "dp": 1, "mbs": 1, "gbs": 4}))
    assert few["too-few-micro-batches"].seen.numbers["bubble_frac"] == pytest.approx(7 / 11)
    assert few["pipeline-bubble"].because_of == "too-few-micro-batches"
    some = fired(made(settings={"pp": 8, "dp": 1, "mbs": 1, "gbs": 16}))
    assert some["pipeline-bubble"].seen.numbers["bubble_frac"] == pytest.approx(7 / 23)
    assert "too-few-micro-batches" not in some
    many = fired(made(settings={"pp": 8, "dp": 1, "mbs": 1, "gbs": 128}))
    assert "pipeline-bubble" not in many


def test_a_larger_micro_batch_is_predicted() -> None:
    settings = {
        "model": "gpt3-1.3b", "system": "leonardo", "dp": 4, "mbs": 1, "gbs": 256, "precision": "bf16",
        "num_ranks": 4, "kind": "language",
    }  # fmt: skip
    gain = fired(made(settings=settings))["small-micro-batch"].seen.gain
    assert gain is not None
    assert "--what-if mbs=" in gain.command
    assert "small-micro-batch" not in fired(made(settings=settings | {"gbs": 4}))


def test_full_precision_on_a_gpu() -> None:
    settings = {
        "model": "gpt3-1.3b",
        "system": "leonardo",
        "dp": 4,
        "mbs": 1,
        "gbs": 4,
        "precision": "fp32",
        "kind": "language",
    }
    finding = fired(made(settings=settings))["amp-off"]
    assert finding.seen.gain is not None
    assert finding.seen.gain.step_time_frac > 0.3
    assert "amp-off" not in fired(made(settings=settings | {"precision": "bf16"}))
    assert "amp-off" not in fired(made(settings={"precision": "fp32", "device": "cpu"}))


def test_recomputation_that_is_not_needed() -> None:
    settings = {"recompute": "full", "device_memory_bytes": 80e9}
    assert "recompute-not-needed" in fired(made(memory_bytes=lambda step: 20e9, settings=settings))
    assert "recompute-not-needed" not in fired(made(memory_bytes=lambda step: 70e9, settings=settings))
    plain = settings | {"recompute": "none"}
    assert "recompute-not-needed" not in fired(made(memory_bytes=lambda step: 20e9, settings=plain))


def test_offload_and_headroom() -> None:
    settings = {"offload": "optimizer", "device_memory_bytes": 80e9, "mbs": 1}
    findings = fired(made(memory_bytes=lambda step: 20e9, settings=settings))
    assert "offload-not-needed" in findings
    assert findings["memory-headroom"].severity == "info"
    assert "memory-headroom" not in fired(made(memory_bytes=lambda step: 60e9, settings=settings))


def test_gaps_of_the_allocator() -> None:
    limit = {"device_memory_bytes": 80e9}
    gaps = {"max_memory_allocated": 40e9, "max_memory_reserved": 75e9}
    assert "memory-fragmented" in loud(made(memory_bytes=lambda step: 40e9, values=gaps, settings=limit))
    usual = {"max_memory_allocated": 66e9, "max_memory_reserved": 70e9}
    assert "memory-fragmented" not in fired(made(memory_bytes=lambda step: 66e9, values=usual, settings=limit))


def test_sizes_that_do_not_fill_tiles() -> None:
    assert "misaligned-sizes" in fired(made(settings={"hidden": 2560, "heads": 32, "vocab": 50257}))
    assert "misaligned-sizes" not in fired(made(settings={"hidden": 4096, "heads": 32, "vocab": 50304}))


def sampled(*reasons: str, clock_hz: float = 1.9e9) -> Evidence:
    evidence = made()
    sample = DeviceSample(
        device="0", spot=spot(), host="n1", use_frac=0.9, clock_hz=clock_hz, clock_high_hz=1.98e9, temperature_c=80.0
    )
    evidence.device_samples += [replace(sample, at_s=START_S + n, slowed_by=reasons) for n in range(20)]
    return evidence


def test_clocks_that_heat_lowers() -> None:
    hot = fired(sampled("hw_thermal", clock_hz=0.99e9))["throttled-clocks"]
    assert hot.seen.gain is not None
    assert hot.seen.gain.step_time_frac == pytest.approx(0.5)
    assert "throttled-clocks" not in fired(sampled("power_cap", clock_hz=1.9e9)), "a busy GPU is at its power cap"
    assert "throttled-clocks" not in fired(sampled(clock_hz=0.6e9)), "no reason is given"


def test_jobs_that_wait_longer_than_they_run() -> None:
    job = JobFact(
        job_id="7",
        spot=spot(),
        state="COMPLETED",
        submitted_at_s=0.0,
        started_at_s=7200.0,
        elapsed_s=1800.0,
        limit_s=86400.0,
    )
    evidence = made()
    evidence.jobs.append(job)
    assert fired(evidence)["queue-wait"].seen.numbers["queued_s"] == 7200.0
    assert "walltime-padded" in fired(evidence)
    quick = made()
    quick.jobs.append(replace(job, started_at_s=30.0, limit_s=2400.0))
    assert not {"queue-wait", "walltime-padded"} & set(fired(quick))
