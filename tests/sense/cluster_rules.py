"""Rules of whole runs, of networks and of storage."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

from scalewright.catalog.types import Storage
from scalewright.costs import campaign, failures, storage
from scalewright.costs.collectives import all_reduce_time_s, all_to_all_time_s, gather_time_s, send_time_s
from scalewright.costs.machine import Machine
from scalewright.planner.whole_run import step_work
from sense.prediction_rules import walked
from sense.questions import CATALOG, Asked
from sense.rules import SAME, equal, first_of, never_above, rule


def faster_storage(entry: Storage, times: float, *names: str) -> Storage:
    facts = {
        name: fact.model_copy(update={"value": times * fact.value})
        for name in names or ("read_bandwidth", "write_bandwidth", "file_rate")
        if (fact := getattr(entry, name)) is not None
    }
    return entry.model_copy(update=facts)


# Whole runs.


@rule("run")
def a_run_takes_at_least_its_steps(asked: Asked) -> str | None:
    """A run takes at least its steps, its tokens fill them, and its parts sum to it."""
    run = asked.run
    steps = run.num_steps * run.work.step_time_s
    tokens = asked.words["run"].get("num_tokens")
    parts = sum(float(part.total) for part in run.time.parts)
    return first_of(
        never_above(steps, run.time_s, "steps, and the run"),
        equal(steps, float(run.time.part("steps").total), "steps x time of a step, and the term"),
        equal(parts, run.time_s, "parts, and the run"),
        "" if tokens is None else never_above(tokens, run.num_tokens, "tokens asked for, and trained"),
        ""
        if tokens is None
        else never_above(
            run.num_tokens, tokens + run.work.num_tokens_per_step, "tokens trained, and asked for plus a step"
        ),
        next(
            (
                f"{p.name} is {float(p.total):.4g} s"
                for p in run.time.parts
                if float(p.total) < -SAME * run.time_s and p.name != "unexplained"
            ),
            "",
        ),
    )


@rule("run")
def the_interval_of_a_run_holds_it(asked: Asked) -> str | None:
    """The interval of a run holds its time and begins no earlier than its fastest steps."""
    run = asked.run
    low, high = run.interval_s
    return first_of(
        never_above(low, run.time_s, "lower end, and the run"),
        never_above(run.time_s, high, "the run, and upper end"),
        never_above(run.num_steps * run.work.interval_s[0], low, "fastest steps, and lower end"),
        never_above(run.num_steps * asked.answer.bound_s, low, "bound of the steps, and lower end"),
    )


@rule("run")
def more_steps_never_take_less_time(asked: Asked) -> str | None:
    """A run of more steps never takes less time, energy or money, and two halves never less than the whole by more than starts."""
    run = asked.run
    plain = {"num_tokens": None, "num_steps": run.num_steps}
    more = asked.run_with(**{**plain, "num_steps": run.num_steps + max(run.num_steps // 10, 1)})
    return first_of(
        never_above(run.time_s, more.time_s, "time, and of a tenth more steps"),
        never_above(run.num_gpu_hours, more.num_gpu_hours, "GPU-hours, and of a tenth more steps"),
        "" if run.energy is None or more.energy is None
        else never_above(float(run.energy.total), float(more.energy.total), "energy, and of a tenth more steps"),
    )  # fmt: skip


@rule("run")
def a_few_more_steps_are_no_jump(asked: Asked) -> str | None:
    """A hundredth more steps take no more than three hundredths more time, a further job of a queue apart."""
    run = asked.run
    if run.num_steps < 1000 or run.slices is not None:
        return None
    more = asked.run_with(num_tokens=None, num_steps=round(run.num_steps * 1.01))
    return never_above(more.time_s, 1.03 * run.time_s, "time of 1 % more steps, and 1.03 x the time")


@rule("run")
def goodput_is_a_share(asked: Asked) -> str | None:
    """Goodput lies above 0 and at most at 1, and equals steps over time."""
    run = asked.run
    if not 0.0 < run.goodput_frac <= 1.0:
        return f"goodput {run.goodput_frac}"
    return equal(run.goodput_frac, run.num_steps * run.work.step_time_s / run.time_s, "goodput, and steps over time")


@rule("run")
def failures_grow_with_device_hours(asked: Asked) -> str | None:
    """Failures are device-hours over the mean time of a device, so twice the devices for the same time fail twice as often."""
    run = asked.run
    devices = run.time_s * run.work.num_gpus / run.work.constants.device_mttf.value
    twice = replace(run.work, num_gpus=2 * run.work.num_gpus)
    more = asked.run_with(work=twice, num_tokens=None, num_steps=run.num_steps)
    return first_of(
        equal(run.num_failures, devices, "failures, and device-hours over their mean time", slack=1e-6),
        never_above(run.num_failures, more.num_failures, "failures, and on twice the devices"),
    )


@rule("run")
def slower_storage_is_never_cheaper(asked: Asked) -> str | None:
    """Storage that writes or reads half as fast never makes a run shorter."""
    entry = CATALOG.storage(asked.words["run"]["storage"])
    fast = asked.run_with(storage=entry)
    slow = asked.run_with(storage=faster_storage(entry, 0.5, "write_bandwidth", "read_bandwidth"))
    return never_above(fast.time_s, slow.time_s, "run, and with storage half as fast", slack=1e-6)


@rule("run")
def a_larger_checkpoint_is_never_cheaper(asked: Asked) -> str | None:
    """A run that saves twice the state never takes less time."""
    run = asked.run
    work = replace(run.work, checkpoint_bytes=2 * run.work.checkpoint_bytes)
    other = asked.run_with(work=work, num_tokens=None, num_steps=run.num_steps)
    return first_of(
        never_above(run.time_s, other.time_s, "run, and with twice the checkpoint", slack=1e-6),
        never_above(run.saving.write_s, other.saving.write_s, "write, and of twice the checkpoint"),
    )


@rule("run")
def saving_beside_training_never_stops_it_longer(asked: Asked) -> str | None:
    """Checkpoints written beside training never stop it longer, nor make a run longer, than those it waits for."""
    sync, beside = (asked.run_with(checkpoint=kind) for kind in ("sync", "async"))
    return first_of(
        never_above(beside.saving.stall_s, sync.saving.stall_s, "stall beside training, and waited for"),
        never_above(beside.time_s, sync.time_s, "run with checkpoints beside training, and waited for", slack=1e-3),
    )


@rule("run")
def the_advised_interval_is_near_the_best(asked: Asked) -> str | None:
    """Saving more or less often than advised never makes a run shorter by more than the advice says that saving costs."""
    run = asked.run
    if run.slices is not None:
        return None
    advice, step_s = run.save_range, run.work.step_time_s
    saved_s = advice.most_frac * run.time_s
    for times in (0.1, 1 / 3, 3.0, 10.0):
        other = asked.run_with(every_s=run.every_s * times)
        if said := never_above(
            run.time_s - saved_s, other.time_s, f"run less what saving costs, and saved every {times:.2g} x the advice"
        ):
            return said
    return first_of(
        never_above(advice.shortest_s, run.every_s + step_s, "shortest advised, and advised"),
        never_above(run.every_s, advice.longest_s + step_s, "advised, and longest advised"),
    )


@rule("run")
def device_time_is_nodes_times_time(asked: Asked) -> str | None:
    """A run is charged for whole nodes from start to end, in device time, money and the site's unit alike."""
    run, facility = asked.run, asked.run.work.facility
    whole = run.work.num_nodes * run.work.gpus_per_node * run.time_s
    return first_of(
        equal(run.device_time_s, whole, "device time, and nodes x devices x time"),
        never_above(run.work.num_gpus * run.time_s, run.device_time_s, "devices x time, and device time"),
        "" if run.cost_usd is None or facility is None
        else equal(run.cost_usd, run.device_time_s * (facility.usd_per_s_per_gpu or 0.0), "cost, and device time x price"),
        "" if run.num_billed_units is None or facility is None
        else equal(run.num_billed_units, run.work.num_nodes * run.time_s * (facility.billed_per_node_s or 0.0), "billed, and nodes x time x rate"),
    )  # fmt: skip


@rule("run")
def money_of_a_run_is_linear(asked: Asked) -> str | None:
    """At twice the price and twice the intensity a run costs and emits twice as much, and takes the same time."""
    run, facility = asked.run, asked.run.work.facility
    if facility is None:
        return None
    one = replace(facility, usd_per_s_per_gpu=1e-3, kgco2e_per_j=1e-7)
    two = replace(facility, usd_per_s_per_gpu=2e-3, kgco2e_per_j=2e-7)
    first, second = (
        asked.run_with(work=replace(run.work, facility=f), num_tokens=None, num_steps=run.num_steps) for f in (one, two)
    )
    return first_of(
        equal(2 * (first.cost_usd or 0), second.cost_usd or 0, "twice the cost, and at twice the price"),
        equal(
            2 * (first.carbon_kgco2e or 0), second.carbon_kgco2e or 0, "twice the carbon, and at twice the intensity"
        ),
        equal(first.time_s, second.time_s, "times at two prices"),
    )


@rule("run")
def energy_of_a_run_is_power_times_time(asked: Asked) -> str | None:
    """The energy of a run lies between idle and rated power over its time, and is at least that of its steps."""
    run, used = asked.run, asked.answer.footprint
    if run.energy is None or used is None or run.work.facility is None:
        return None
    c, tdp = run.work.constants, asked.machine.accelerator.tdp.value
    unit = run.time_s * run.work.num_gpus * tdp * run.work.facility.pue_frac
    joules, around = float(run.energy.total), c.node_power_share.value
    return first_of(
        never_above(unit * (c.idle_power_share.value + around), joules, "idle energy, and energy"),
        never_above(joules, unit * (1 + around), "energy, and at rated power"),
        never_above(
            run.num_steps * float(used.energy.total), joules, "energy of the steps, and of the run", slack=1e-6
        ),
        equal(sum(float(p.total) for p in run.energy.parts), joules, "parts of the energy, and all"),
    )


@rule("run")
def a_request_covers_the_run(asked: Asked) -> str | None:
    """The time to ask a queue for covers the run, and jobs of a time limit hold all its work."""
    run = asked.run
    cut = run.slices
    if cut is None:
        return never_above(run.time_s, run.request_s, "run, and the request")
    alone = asked.run_with(limit_s=None)
    return first_of(
        never_above(float(cut.one.total), cut.limit_s, "parts of a job, and its limit", slack=1e-6),
        never_above(cut.last_request_s, cut.limit_s, "last request, and the limit"),
        never_above(alone.time_s, run.time_s, "run in one job, and cut", slack=1e-6),
        never_above(run.num_steps * run.work.step_time_s, cut.num_jobs * cut.limit_s, "steps, and all jobs"),
    )


@rule("run")
def a_longer_limit_never_needs_more_jobs(asked: Asked) -> str | None:
    """A queue with a longer time limit never takes more jobs or more time."""
    run = asked.run
    if run.slices is None:
        return None
    longer = asked.run_with(limit_s=2 * run.slices.limit_s)
    assert longer.slices is not None
    return first_of(
        never_above(longer.slices.num_jobs, run.slices.num_jobs, "jobs of twice the limit, and before"),
        never_above(longer.time_s, run.time_s, "time with twice the limit, and before", slack=1e-6),
    )


@rule("run")
def a_slower_step_makes_a_longer_run(asked: Asked) -> str | None:
    """Steps that take a tenth longer make a run longer by at least that share of its steps."""
    run = asked.run
    slow = replace(
        run.work, step_time_s=1.1 * run.work.step_time_s, interval_s=tuple(1.1 * s for s in run.work.interval_s)
    )  # type: ignore[arg-type]
    steps = {"num_tokens": None, "num_steps": run.num_steps, "every_s": run.every_s}
    other = asked.run_with(work=slow, **steps)
    return never_above(
        asked.run_with(**steps).time_s + 0.1 * run.num_steps * run.work.step_time_s,
        other.time_s,
        "run plus a tenth of its steps, and the slower run",
        slack=1e-6,
    )


@rule("run")
def a_run_is_a_document(asked: Asked) -> str | None:
    """The document of a run holds finite numbers only, and survives JSON."""
    document = asked.run.as_document()
    for name, value in walked(document):
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}"
    return "" if json.loads(json.dumps(document, allow_nan=False)) == document else "read again it differs"


@rule("run")
def a_searched_layout_is_never_cheaper(asked: Asked) -> str | None:
    """A run that counts what teams lose to worse layouts never takes less time than one that does not."""
    plain, searched = (asked.run_with(searched=value) for value in (False, True))
    return never_above(plain.time_s, searched.time_s, "run, and with what a search leaves out", slack=SAME)


@rule("run")
def an_unfailing_machine_is_never_slower(asked: Asked) -> str | None:
    """Devices that fail half as often never make a run longer."""
    run = asked.run
    c = run.work.constants
    fact = c.device_mttf.model_copy(update={"value": 2 * c.device_mttf.value})
    steady = replace(run.work, constants=c.model_copy(update={"device_mttf": fact}))
    other = asked.run_with(work=steady, num_tokens=None, num_steps=run.num_steps)
    return never_above(other.time_s, run.time_s, "run with devices that fail half as often, and before", slack=1e-3)


@rule("run")
def a_run_repeats_its_prediction(asked: Asked) -> str | None:
    """What a run prints of its step is what the prediction of the step prints."""
    one, work = asked.answer, step_work(asked.answer)
    return first_of(
        equal(work.step_time_s, one.time_s, "step of the run, and predicted"),
        equal(work.num_gpus, one.question.num_gpus, "devices of the run, and predicted"),
        equal(work.checkpoint_bytes, one.transformer.checkpoint_bytes, "checkpoint of the run, and predicted"),
        ""
        if one.footprint is None
        else equal(work.busy_w or 0.0, one.footprint.board_w, "power of the run, and predicted"),
    )


# Networks.


OPERATIONS: dict[str, Any] = {
    "all-reduce": all_reduce_time_s, "half of a sum": gather_time_s, "all-to-all": all_to_all_time_s, "send": send_time_s,
}  # fmt: skip


def operation(asked: Asked) -> tuple[str, Any]:
    name = asked.chance.choice([name for name in OPERATIONS if name != "all-to-all"])
    return name, OPERATIONS[name]


def timed(
    asked: Asked, exchange: Any, machine: Machine | None = None, size: float | None = None, **group: Any
) -> float:
    return float(exchange(size_bytes=size or asked.words["size_bytes"], path=asked.path_with(machine, **group)))


@rule("network")
def more_bytes_never_take_less_time(asked: Asked) -> str | None:
    """More bytes never take less time, and twice the bytes never more than twice."""
    name, exchange = operation(asked)
    size = asked.words["size_bytes"]
    one, bit, two = (timed(asked, exchange, size=size * n) for n in (1.0, 1.01, 2.0))
    return first_of(
        never_above(one, bit, f"{name}, and of 1 % more"),
        never_above(one, two, f"{name}, and of twice the bytes"),
        never_above(two, 2 * one, f"{name} of twice the bytes, and twice the time"),
    )


@rule("network")
def a_little_more_bytes_is_no_jump(asked: Asked) -> str | None:
    """One percent more bytes takes at most five percent more time."""
    name, exchange = operation(asked)
    one, more = (timed(asked, exchange, size=asked.words["size_bytes"] * n) for n in (1.0, 1.01))
    return never_above(more, 1.05 * one, f"{name} of 1 % more, and 1.05 x the time")


@rule("network")
def no_exchange_beats_its_links(asked: Asked) -> str | None:
    """No sum moves data faster than the links of its nodes carry what each of them must send and receive."""
    path, size = asked.path, asked.words["size_bytes"]
    nodes, inside = float(path.num_nodes), path.inside_bytes_per_s
    rate = inside if nodes == 1 else float(path.num_here) * float(path.quiet_bytes_per_s)
    members = asked.words["group"]["num_ranks"] if nodes == 1 else nodes
    sums = 2.0 if path.reduces or path.in_switch_bytes_per_s else 1.0  # a switch that sums halves what is sent
    if path.in_switch_bytes_per_s and nodes == 1:
        return None
    return never_above(
        2 * (members - 1) / members * size / rate / sums,
        timed(asked, all_reduce_time_s),
        "the bytes of a node over its links, and the sum",
    )


@rule("network")
def a_sum_takes_at_least_its_half(asked: Asked) -> str | None:
    """Half of a large sum never takes longer than the sum, and the sum in pieces never less than the best whole one."""
    whole, half = timed(asked, all_reduce_time_s), timed(asked, gather_time_s)
    pieces = float(all_reduce_time_s(size_bytes=asked.words["size_bytes"], path=asked.path, in_pieces=True))
    switches = asked.path.reduces or asked.path.in_switch_bytes_per_s
    is_small = asked.words["size_bytes"] < 1e7 * asked.words["group"]["num_ranks"]  # only whole sums go up a tree
    return first_of(
        "" if switches or is_small else never_above(half, whole, "half of a sum, and the sum", slack=0.01),
        never_above(whole, pieces, "the sum, and in pieces"),
    )


@rule("network")
def more_ranks_never_exchange_faster(asked: Asked) -> str | None:
    """A group of twice the ranks never sums the same bytes in less time."""
    name = asked.chance.choice(("all-reduce", "half of a sum"))
    exchange = OPERATIONS[name]
    group = asked.words["group"]
    more = {
        "num_ranks": 2 * group["num_ranks"],
        "num_job_devices": max(group["num_job_devices"], 2 * group["num_ranks"] * group["stride"]),
    }
    if (asked.machine.num_nodes or 10**9) * asked.machine.gpus_per_node < more["num_job_devices"]:
        return None
    if asked.path.in_switch_bytes_per_s and name == "all-reduce":
        return None  # a switch sums once all devices of a node are in the group
    return never_above(
        timed(asked, exchange), timed(asked, exchange, **more), f"{name}, and on twice the ranks", slack=0.01
    )


@rule("network")
def a_larger_job_is_never_faster(asked: Asked) -> str | None:
    """The same group in a larger job never exchanges faster on a quiet network."""
    name, exchange = operation(asked)
    machine, group = asked.machine, asked.words["group"]
    most = (machine.num_nodes or 10**6) * machine.gpus_per_node
    if machine.network is None or 2 * group["num_job_devices"] > most:
        return None
    shared = asked.chance.random() < 0.5
    machine = replace(machine, network=replace(machine.network, is_shared=shared))
    one, two = (timed(asked, exchange, machine, num_job_devices=n * group["num_job_devices"]) for n in (1, 2))
    return never_above(one, two, f"{name} {'shared' if shared else 'quiet'}, and in twice the job", slack=0.01)


@rule("network")
def better_links_exchange_no_slower(asked: Asked) -> str | None:
    """Faster links, shorter latencies and a quiet network never make an exchange slower."""
    name, exchange = operation(asked)
    machine, times = asked.machine, asked.chance.uniform(1.01, 4.0)
    better = {
        "scale_up_bytes_per_s": machine.scale_up_bytes_per_s * times,
        "scale_up_latency_s": machine.scale_up_latency_s / times,
    }
    if machine.network_bytes_per_s_per_gpu is not None:
        better |= {
            "network_bytes_per_s_per_gpu": machine.network_bytes_per_s_per_gpu * times,
            "network_latency_s": machine.network_latency_s / times,
        }
    field = asked.chance.choice(list(better))
    quick = timed(asked, exchange, replace(machine, **{field: better[field]}))  # type: ignore[arg-type]
    now = timed(asked, exchange)
    if said := never_above(quick, now, f"{name} with better {field}, and before"):
        return said
    if machine.network is None:
        return ""
    quiet, shared = (
        timed(asked, exchange, replace(machine, network=replace(machine.network, is_shared=on))) for on in (False, True)
    )
    return never_above(quiet, shared, f"{name} quiet, and shared")


TRANSPORTS = ("rdma", "ipoib", "tcp")


@rule("network")
def simpler_transports_are_never_faster(asked: Asked) -> str | None:
    """IP over InfiniBand is never faster than RDMA, nor TCP over Ethernet than either, on one fabric."""
    from sense.questions import machine_of

    name, exchange = operation(asked)
    plain = {k: v for k, v in asked.words.items() if k != "transport"}
    partition = plain.get("partition")
    fabric = next(
        p for p in CATALOG.system(plain["system"]).partitions if (p.id == partition if partition else p.default)
    ).fabric
    if fabric is None:
        return None
    offered = [one for one in TRANSPORTS if one in CATALOG.fabric(fabric).transports]
    if len(offered) < 2:
        return None
    times = [timed(asked, exchange, machine_of({**plain, "transport": one})) for one in offered]
    return first_of(
        *(
            never_above(a, b, f"{name} by {offered[i]}, and by {offered[i + 1]}")
            for i, (a, b) in enumerate(itertools.pairwise(times))
        )
    )


@rule("network")
def a_neighbour_is_never_farther(asked: Asked) -> str | None:
    """Ranks that are farther apart never exchange large data faster than neighbours."""
    name, exchange = operation(asked)
    group, machine = asked.words["group"], asked.machine
    wide = 2 * group["stride"] * group["num_ranks"]
    if (
        machine.network is None
        or wide > (machine.num_nodes or 10**6) * machine.gpus_per_node
        or asked.path.in_switch_bytes_per_s
    ):
        return None
    if (
        machine.network_bytes_per_s_per_gpu is None
        or machine.network_bytes_per_s_per_gpu > machine.scale_up_bytes_per_s
    ):
        return None
    if asked.words["size_bytes"] < 1e7 * group["num_ranks"]:
        return None  # small data waits for the chain of a node's devices, which is longer than its part on two nodes
    if machine.gpus_per_node & (machine.gpus_per_node - 1):
        return None  # groups fill nodes of 72 unevenly
    if machine.accelerator.kind == "cpu":  # its processes talk through the loopback device, slower to start than RDMA
        return None
    job = max(group["num_job_devices"], wide)
    near, far = (timed(asked, exchange, num_job_devices=job, stride=n * group["stride"]) for n in (1, 2))
    return never_above(near, far, f"{name} of neighbours, and twice as far apart", slack=0.01)


# Storage and failures.


@rule("storage")
def more_nodes_never_write_more_slowly(asked: Asked) -> str | None:
    """More nodes never read or write more slowly together, and never faster than all of the storage."""
    entry, nodes = CATALOG.storage(asked.words["storage"]), asked.words["nodes"]
    constants = CATALOG.constants()
    for direction, fact in (("read", entry.read_bandwidth), ("write", entry.write_bandwidth)):
        few, many = (
            float(storage.job_bytes_per_s(storage=entry, direction=direction, num_nodes=n, constants=constants))
            for n in (nodes, 2 * nodes)
        )  # type: ignore[arg-type]
        whole = math.inf if fact is None else fact.value * (nodes if entry.kind in ("node-local", "memory") else 1)
        if said := first_of(
            never_above(few, many, f"{direction}, and of twice the nodes"),
            never_above(few, whole, f"{direction}, and the storage's rate"),
        ):
            return said
    return ""


@rule("storage")
def a_longer_write_is_never_cheaper(asked: Asked) -> str | None:
    """A checkpoint that takes longer to write never stops training for less time, nor costs a run less."""
    w = asked.words
    times = [10.0 ** asked.chance.uniform(-2, 3)]
    times.append(times[0] * asked.chance.uniform(1.0, 3.0))
    stalls = [
        storage.stall_time_s(kind=kind, write_s=s, state_bytes_per_device=w["size_bytes"] / w["devices"], host_bytes_per_s=w["host_bytes_per_s"])
        for kind in ("sync", "async") for s in times
    ]  # fmt: skip
    walls = [
        failures.wall_time(work_s=1e6, interval_s=failures.daly_interval_s(checkpoint_s=s, mttf_s=w["mttf_s"]), checkpoint_s=s, restart_s=60.0, mttf_s=w["mttf_s"]).total_s
        for s in times if s < w["mttf_s"]
    ]  # fmt: skip
    return first_of(
        never_above(stalls[0], stalls[1], "stall waited for, and of a longer write"),
        never_above(stalls[2], stalls[3], "stall beside, and of a longer write"),
        never_above(stalls[2], stalls[0], "stall beside, and waited for"),
        never_above(walls[0], walls[1], "run, and with a longer write", slack=1e-6) if len(walls) == 2 else "",
    )


@rule("storage")
def dalys_interval_is_near_the_best(asked: Asked) -> str | None:
    """No other interval between checkpoints makes a run shorter than Daly's by more than a percent."""
    m = asked.words["mttf_s"]
    save = m * 10.0 ** asked.chance.uniform(-6, -1)
    best = failures.daly_interval_s(checkpoint_s=save, mttf_s=m)

    def total(interval: float) -> float:
        return failures.wall_time(work_s=1e7, interval_s=interval, checkpoint_s=save, restart_s=0.0, mttf_s=m).total_s

    times = asked.chance.choice((0.3, 0.5, 0.8, 1.25, 2.0, 3.0))
    return never_above(total(best), total(best * times), f"run with Daly's interval, and {times} x it", slack=0.01)


@rule("storage")
def failing_more_often_is_never_cheaper(asked: Asked) -> str | None:
    """A job that fails more often never ends sooner, and no job ends before its work and its saving."""
    m = asked.words["mttf_s"]
    save, every = m * 1e-3, m * 10.0 ** asked.chance.uniform(-2, 0)
    seldom, often = (
        failures.wall_time(work_s=1e6, interval_s=every, checkpoint_s=save, restart_s=60.0, mttf_s=n)
        for n in (2 * m, m)
    )
    return first_of(
        never_above(seldom.total_s, often.total_s, "run, and with twice the failures"),
        never_above(often.work_s + often.saving_s, often.total_s, "work and saving, and the run"),
        never_above(seldom.num_failures, often.num_failures, "failures, and of a worse machine"),
    )


@rule("storage")
def devices_share_their_failures(asked: Asked) -> str | None:
    """A job on twice the devices fails twice as often."""
    one, two = (
        failures.job_mttf_s(device_mttf_s=asked.words["mttf_s"], num_devices=n * asked.words["devices"]) for n in (1, 2)
    )
    return equal(one, 2 * two, "mean time to failure, and twice that of twice the devices")


@rule("storage")
def waiting_for_data_shrinks_with_its_rate(asked: Asked) -> str | None:
    """A step never waits longer for data that are read faster, by more loaders, or in fewer files, and never less than nothing."""
    w, chance = asked.words, asked.chance
    usual: dict[str, Any] = {
        "step_s": w["step_s"], "step_bytes": w["size_bytes"] / 1e4, "read_bytes_per_s": 1e9, "loader_s_per_device": chance.uniform(0, 4),
        "num_loaders_per_device": chance.randint(1, 16), "num_files": chance.choice((0.0, 1e4)), "num_files_per_s": 1e4,
    }  # fmt: skip
    one = float(storage.data_wait_s(**usual))
    better = [
        {"read_bytes_per_s": 2e9},
        {"num_loaders_per_device": 2 * usual["num_loaders_per_device"]},
        {"num_files": 0.0},
        {"step_s": 2 * w["step_s"]},
    ]
    return first_of(
        never_above(0.0, one, "nothing, and the wait"),
        *(never_above(float(storage.data_wait_s(**{**usual, **b})), one, f"wait with {b}, and before") for b in better),
    )


@rule("storage")
def a_request_of_time_covers_what_is_expected(asked: Asked) -> str | None:
    """The time and the memory to ask for are never less than expected, and grow with it."""
    expected, margin = asked.words["mttf_s"], asked.chance.uniform(0.0, 0.3)
    one, more = (campaign.walltime_request_s(expected_s=expected * n, margin_frac=margin) for n in (1.0, 1.1))
    return first_of(
        never_above(expected, one, "expected, and asked for", slack=1e-6),
        never_above(one, more, "asked for, and for longer"),
        never_above(1e9, campaign.memory_request_bytes(peak_bytes=1e9, margin_frac=margin), "peak, and asked for"),
    )


@rule("storage")
def a_checkpoint_holds_the_state(asked: Asked) -> str | None:
    """A checkpoint of all weights is never smaller than the weights, and adapters alone are never larger."""
    params = asked.words["size_bytes"]
    few = params * asked.chance.uniform(0.001, 0.5)
    whole, part = (
        storage.checkpoint_bytes(num_params=params, num_trained=n, weight_bytes=2.0, optimizer_bytes=12.0)
        for n in (params, few)
    )
    return first_of(
        never_above(2.0 * params, whole, "weights, and the checkpoint"), never_above(part, whole, "adapters, and all")
    )
