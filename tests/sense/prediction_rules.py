"""Rules of every prediction: training, vision, generation and RL."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scalewright.catalog.types import Accelerator
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.energy import Facility
from scalewright.costs.machine import Machine
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import ask
from sense.questions import CATALOG, Asked, changed_words, layout_text, question_of
from sense.rules import SAME, equal, first_of, never_above, rule

EVERY = ("training", "vision", "generation", "rl")
LANGUAGE = ("training", "generation", "rl")


def breakdowns(prediction: Answer) -> list[Breakdown]:
    found = [
        prediction.time,
        prediction.memory,
        prediction.host_memory,
        prediction.energy,
        prediction.money,
        prediction.carbon,
    ]
    return [one for one in found if one is not None]


def walked(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a document with its key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walked(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from walked(inner, f"{name}[{place}]")
    else:
        yield name, value


def faster_memory(machine: Machine, times: float) -> Machine:
    device = machine.accelerator
    rate = device.memory_bandwidth
    device = device.model_copy(update={"memory_bandwidth": rate.model_copy(update={"value": rate.value * times})})
    return replace(machine, accelerator=device, hbm_bytes_per_s=machine.hbm_bytes_per_s * times)


def faster_products(device: Accelerator, times: float) -> Accelerator:
    """The device with units that much faster, at as much more power, so that power limits it no sooner."""
    rates = {
        table: {
            name: fact.model_copy(update={"value": fact.value * times}) for name, fact in getattr(device, table).items()
        }
        for table in ("peak", "best_matmul", "sustained_matmul")
    }
    power = {
        name: fact.model_copy(update={"value": fact.value * times})
        for name in ("tdp", "gpu_power")
        if (fact := getattr(device, name)) is not None
    }
    return device.model_copy(update={**rates, **power})


def other_machine(asked: Asked, machine: Machine) -> Answer:
    return asked.asked_with(machine=machine)


def no_slower(asked: Asked, machine: Machine, words: str) -> str:
    return never_above(other_machine(asked, machine).time_s, asked.answer.time_s, words)


@rule(*EVERY)
def a_part_never_exceeds_the_whole(asked: Asked) -> str | None:
    """A part of a time, a memory, an energy or a bill is never negative and never more than the whole."""
    for whole in breakdowns(asked.answer):
        for _, term in whole.walk():
            total = float(term.total)
            if not -SAME * float(whole.total) <= total <= float(whole.total) * (1 + SAME):
                return f"{term.name} is {total:.6g} {term.unit} of {float(whole.total):.6g} in {whole.name}"
    return ""


@rule(*EVERY)
def parts_sum_to_the_whole(asked: Asked) -> str | None:
    """The parts that a document lists sum to the total that it prints."""
    document = asked.answer.document()
    for name in ("time", "memory", "host_memory"):
        stack = [document[name]] if name in document else []
        while stack:
            body = stack.pop()
            total = next(value for key, value in body.items() if key.startswith("total_"))
            if parts := body.get("parts"):
                inner = sum(next(value for key, value in part.items() if key.startswith("total_")) for part in parts)
                if said := equal(inner, total, f"parts of {body['name']} and their whole", slack=1e-6):
                    return said
                stack += parts
    return equal(document["time"]["total_s"], document["step_time_s"], "time and step_time_s")


@rule(*EVERY)
def the_interval_holds_the_value_and_the_bound(asked: Asked) -> str | None:
    """The bound of physics is at most the interval's lower end, and the interval holds the value."""
    one = asked.answer
    low, high = one.interval_s
    return first_of(
        never_above(one.bound_s, low, "the bound lies above the interval's lower end"),
        never_above(low, one.time_s, "the interval begins above the value"),
        never_above(one.time_s, high, "the interval ends below the value"),
    )


@rule(*EVERY)
def nothing_is_faster_than_its_arithmetic(asked: Asked) -> str | None:
    """No step takes less time than its arithmetic at the fastest peak of its devices."""
    question = asked.question
    spec, peak = question.spec, max(fact.value for fact in question.machine.accelerator.peak.values())
    match asked.kind:
        case "training":
            flop = asked.answer.transformer.model_flop
        case "vision":
            flop = asked.answer.vision.model_flop
        case "generation":
            flop = 2.0 * (spec.num_active_params - _table_params(asked)) * asked.answer.num_units
        case _:
            if asked.answer.rl.budget is not None or question.mode.is_lora:
                return None
            flop = 6.0 * (spec.num_active_params - _table_params(asked)) * asked.answer.num_units
            return never_above(
                flop / question.layout.num_gpus / peak, asked.answer.time_s, "arithmetic of the updates and step"
            )
    return never_above(flop / question.num_gpus / peak, asked.answer.time_s, "arithmetic and step")


def _table_params(asked: Asked) -> float:
    """Parameters that are looked up and not multiplied."""
    parts = asked.question.spec.params_by_part()
    return sum(parts.get(name, 0) for name in ("embedding", "positions", "mtp"))


@rule(*EVERY)
def every_figure_is_finite(asked: Asked) -> str | None:
    """Every figure of a document is a finite number, and none with a unit is negative, biases apart."""
    for name, value in walked(asked.answer.document()):
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}"
        key = name.rpartition(".")[2].partition("[")[0]
        if (
            isinstance(value, int | float)
            and value < 0
            and "bias" not in key
            and key.endswith(("_s", "_bytes", "_j", "_usd", "_frac", "_flop"))
        ):
            return f"{name} is {value}"
    return ""


@rule(*EVERY)
def shares_lie_between_none_and_all(asked: Asked) -> str | None:
    """Utilisation, efficiency and other shares lie between 0 and 1, and utilisation is above 0."""
    document = asked.answer.document()
    for key in ("mfu_frac", "hfu_frac", "busy_frac", "memory_bandwidth_frac", "cache_frac", "efficiency_frac"):
        value = document.get(key)
        if value is not None and not 0.0 <= value <= 1.0 + 1e-6:
            return f"{key} is {value}"
    return "utilisation is 0" if document.get("mfu_frac") == 0.0 else ""


@rule(*EVERY)
def json_survives_a_round_trip(asked: Asked) -> str | None:
    """A document that is written as JSON and read again is the same document."""
    document = asked.answer.document()
    return "" if json.loads(json.dumps(document, allow_nan=False)) == document else "the document read again differs"


@rule(*EVERY)
def equal_questions_have_one_id_and_one_answer(asked: Asked) -> str | None:
    """The same words asked again, with the knobs of the layout in another order, give the same id and the same time."""
    knobs = list(asked.words["layout"].items())
    asked.chance.shuffle(knobs)
    other = asked.with_words(layout=dict(knobs))
    if other.id != asked.answer.id:
        return f"ids {other.id} and {asked.answer.id}"
    return equal(other.time_s, asked.answer.time_s, "times of the same question", slack=0.0)


@rule(*EVERY)
def different_answers_have_different_ids(asked: Asked) -> str | None:
    """Two questions with one id have one time and one memory."""
    changes = {
        "network": asked.chance.choice(("quiet", "shared")),
        "precision": asked.chance.choice(("bf16", "fp16", "fp32", "fp8")),
        "stack": asked.chance.choice(("eager", "compiled", "megatron-core")),
        "partition": asked.chance.choice([p.id for p in CATALOG.system(asked.words["system"]).partitions]),
        "seq": asked.chance.choice((256, 1024, 4096)),
        "model": asked.chance.choice(("llama2-7b", "llama3-8b")),
        "storage": asked.chance.choice(CATALOG.ids("storage")),
        "samples": "files", "optimizer": "sgd", "mode": "lora", "num_loaders": 1, "channels_last": True,
    }  # fmt: skip
    name = asked.chance.choice(list(changes))
    other = asked.with_words(**{name: changes[name]})
    if other.id != asked.answer.id:
        return ""
    return first_of(
        equal(other.time_s, asked.answer.time_s, f"times with one id, {name}={changes[name]}"),
        equal(other.memory_bytes, asked.answer.memory_bytes, f"memory with one id, {name}={changes[name]}"),
    )


@rule(*EVERY)
def energy_is_power_times_time(asked: Asked) -> str | None:
    """Energy lies between idle devices and devices at their rated power, with their nodes and their building."""
    used, question = asked.answer.footprint, asked.question
    if used is None or question.facility is None:
        return None
    c, tdp = question.machine.constants, question.machine.accelerator.tdp.value
    around = c.node_power_share.value
    unit = asked.answer.time_s * question.num_gpus * tdp * question.facility.pue_frac
    joules = float(used.energy.total)
    return first_of(
        never_above(unit * (c.idle_power_share.value + around), joules, "idle energy and energy"),
        never_above(joules, unit * (1.0 + around), "energy and energy at the rated power"),
        never_above(used.board_w, tdp, "board power and its rating"),
    )


def _priced(asked: Asked) -> Facility | None:
    facility = asked.question.facility
    if facility is None:
        return None
    return replace(
        facility, usd_per_s_per_gpu=facility.usd_per_s_per_gpu or 1e-3, kgco2e_per_j=facility.kgco2e_per_j or 1e-7
    )


@rule(*EVERY)
def money_and_carbon_are_linear(asked: Asked) -> str | None:
    """At twice the price a step costs twice as much, and on a grid of twice the intensity it emits twice as much."""
    facility = _priced(asked)
    if facility is None or facility.usd_per_s_per_gpu is None or facility.kgco2e_per_j is None:
        return None
    dear = replace(facility, usd_per_s_per_gpu=2 * facility.usd_per_s_per_gpu, kgco2e_per_j=2 * facility.kgco2e_per_j)
    one, two = (asked.asked_with(facility=f).footprint for f in (facility, dear))
    assert one is not None
    assert two is not None
    return first_of(
        equal(2.0 * (one.cost_usd or 0), two.cost_usd or 0, "twice the cost, and the cost at twice the price"),
        equal(2.0 * (one.carbon_kgco2e or 0), two.carbon_kgco2e or 0, "twice the carbon, and that of twice the intensity"),
        equal(float(one.energy.total), float(two.energy.total), "energy at another price"),
        equal(
            one.cost_usd or 0, asked.answer.time_s * asked.question.num_gpus * facility.usd_per_s_per_gpu,
            "cost, and time x devices x price",
        ),
    )  # fmt: skip


@rule(*EVERY)
def a_better_building_saves_its_share(asked: Asked) -> str | None:
    """Energy is proportional to the building's PUE, and time does not depend on it."""
    facility = asked.question.facility
    if facility is None:
        return None
    plain, costly = (asked.asked_with(facility=replace(facility, pue_frac=pue)) for pue in (1.0, 1.5))
    assert plain.energy is not None
    assert costly.energy is not None
    return first_of(
        equal(1.5 * float(plain.energy.total), float(costly.energy.total), "1.5 x energy, and energy at PUE 1.5"),
        equal(plain.time_s, costly.time_s, "times at two PUEs"),
    )


@rule(*EVERY)
def faster_memory_is_never_slower(asked: Asked) -> str | None:
    """Devices with faster memory are never slower."""
    times = asked.chance.uniform(1.01, 3.0)
    return no_slower(asked, faster_memory(asked.machine, times), f"memory {times:.2f} x as fast")


@rule(*EVERY)
def faster_products_are_never_slower(asked: Asked) -> str | None:
    """Devices with faster arithmetic, and the power for it, are never slower."""
    times = asked.chance.uniform(1.01, 3.0)
    device = faster_products(asked.machine.accelerator, times)
    return no_slower(asked, replace(asked.machine, accelerator=device), f"arithmetic {times:.2f} x as fast")


@rule(*EVERY)
def faster_links_are_never_slower(asked: Asked) -> str | None:
    """Faster links inside a node, between nodes or to the host are never slower."""
    times = asked.chance.uniform(1.01, 4.0)
    names = (
        "scale_up_bytes_per_s", "network_bytes_per_s_per_gpu", "host_link_bytes_per_s", "host_memory_bytes_per_s",
        "in_switch_bytes_per_s",
    )  # fmt: skip
    machine = asked.machine
    name = asked.chance.choice([name for name in names if getattr(machine, name) is not None])
    return no_slower(asked, replace(machine, **{name: getattr(machine, name) * times}), f"{name} x {times:.2f}")


@rule(*EVERY)
def shorter_latencies_are_never_slower(asked: Asked) -> str | None:
    """Links and switches with a shorter latency are never slower."""
    machine, share = asked.machine, asked.chance.uniform(0.1, 0.95)
    quick = replace(
        machine, scale_up_latency_s=machine.scale_up_latency_s * share,
        network_latency_s=machine.network_latency_s * share,
        network=machine.network and replace(machine.network, hop_latency_s=machine.network.hop_latency_s * share),
    )  # fmt: skip
    return no_slower(asked, quick, f"latencies x {share:.2f}")


@rule(*EVERY)
def a_quiet_network_is_never_slower(asked: Asked) -> str | None:
    """A network that other jobs share is never faster than a quiet one, and the interval's upper end is never lower."""
    network = asked.machine.network
    if network is None:
        return None
    quiet, shared = (
        other_machine(asked, replace(asked.machine, network=replace(network, is_shared=is_shared)))
        for is_shared in (False, True)
    )
    return first_of(
        never_above(quiet.time_s, shared.time_s, "quiet and shared"),
        never_above(quiet.interval_s[1], shared.interval_s[1], "upper ends, quiet and shared"),
    )


@rule(*EVERY)
def smaller_nodes_are_never_faster(asked: Asked) -> str | None:
    """The same devices in nodes half as large, with the same network for each device, are never faster."""
    machine = asked.machine
    if asked.kind != "vision" and int(asked.question.layout.tp) * int(asked.question.layout.cp) > 2:
        return None  # short sums wait for the chain of a node's devices, which is longer than its part on two nodes
    if machine.gpus_per_node % 2 or machine.network_bytes_per_s_per_gpu is None or machine.network is None:
        return None
    if machine.network_bytes_per_s_per_gpu > machine.scale_up_bytes_per_s or machine.host_gpus is not None:
        return None
    wide = replace(machine, network=replace(machine.network, is_shared=False))
    nodes = None if machine.num_nodes is None else 2 * machine.num_nodes
    network = replace(
        wide.network, num_leaf_nodes=wide.network.num_leaf_nodes * 2, num_group_nodes=wide.network.num_group_nodes * 2,
        num_nodes=wide.network.num_nodes * 2,
    )  # fmt: skip
    small = replace(wide, gpus_per_node=machine.gpus_per_node // 2, num_nodes=nodes, network=network)
    feed = replace(asked.question.feed, storage=None, epoch_storage=None)  # each node has its own way to the storage
    large_s, small_s = (asked.asked_with(machine=one, feed=feed).time_s for one in (wide, small))
    return never_above(large_s, small_s, "nodes twice as large", slack=0.01)


@rule(*EVERY)
def more_memory_never_makes_it_unfit(asked: Asked) -> str | None:
    """What fits on a device fits on one with more memory, and takes no longer there."""
    times = asked.chance.uniform(1.01, 4.0)
    large = replace(asked.machine, memory_bytes=asked.machine.memory_bytes * times)
    other = other_machine(asked, large)
    if asked.answer.fits and not other.fits:
        return f"fits in {asked.machine.memory_bytes:.4g} bytes and not in {large.memory_bytes:.4g}"
    return never_above(other.time_s, asked.answer.time_s, f"memory x {times:.2f}")


@rule(*EVERY)
def what_fits_needs_no_more_than_there_is(asked: Asked) -> str | None:
    """A layout that fits needs at most the device's memory, and what it allocates is at most what the device shows."""
    one = asked.answer
    return first_of(
        never_above(one.memory_bytes, one.device_bytes, "allocated, and shown by the device")
        if asked.kind != "rl"
        else "",
        never_above(one.needed_bytes, asked.machine.memory_bytes, "needed, and there") if one.fits else "",
    )


@rule(*EVERY)
def rates_are_units_over_time(asked: Asked) -> str | None:
    """Tokens or images per second, times the time, are the tokens or images; per device, times the devices, as well."""
    one, document = asked.answer, asked.answer.document()
    rate = document.get("tokens_per_s_per_gpu", one.rate_per_s / one.question.num_gpus) * one.question.num_gpus
    joules = document.get(f"energy_j_per_{one.figures.unit}")
    return first_of(
        equal(rate * one.time_s, one.num_units, "rate x time, and units"),
        "" if joules is None else equal(joules * one.num_units, document["energy_j"], "energy per unit x units"),
        never_above(one.question.num_gpus, one.question.num_nodes * asked.machine.gpus_per_node, "devices, and nodes'"),
    )


@rule(*EVERY)
def a_what_if_is_the_question_asked_directly(asked: Asked) -> str | None:
    """What a what-if says of a knob is what the question with that knob says."""
    layout = asked.words["layout"]
    choices: list[dict[str, Any]] = [{"mbs": layout.get("mbs", 1)}]
    if asked.kind in ("training", "rl"):
        choices += [{"recompute": "full"}, {"recompute": "none"}, {"zero": 1}, {"sp": 0}]
    knob = asked.chance.choice(choices)
    if asked.kind == "generation":
        knob = {"tp": layout["tp"]}
    if "zero" in knob and asked.words.get("stack", "auto") == "auto":
        return None
    direct = asked.with_words(layout={**layout, **knob})
    changed = asked.answer.what_if(layout_text(knob)).after
    return equal(direct.time_s, changed.time_s, f"directly, and as what-if {knob}")


@rule("training", "vision", "generation")
def many_predictions_are_single_ones(asked: Asked) -> str | None:
    """What a table of many predictions says of a row is what the single prediction says."""
    from scalewright.planner.many import answer_columns

    layout = dict(asked.words["layout"])
    twice = {**layout, "gbs": 2 * layout["gbs"], **({"mbs": 2 * layout["mbs"]} if asked.kind == "vision" else {})}
    others = [question_of(changed_words(asked.words, {"layout": knobs})) for knobs in (layout, twice)]
    columns = answer_columns([others[1], others[0]])
    alone = answer(others[0])
    pairs: dict[str, float | None] = {
        "step_time_s": alone.time_s, "step_time_low_s": alone.interval_s[0], "step_time_high_s": alone.interval_s[1],
        "memory_bytes": alone.memory_bytes, "device_bytes": alone.device_bytes, "step_time_bound_s": alone.bound_s,
        "energy_j": None if alone.energy is None else float(alone.energy.total),
        "cost_usd": None if alone.footprint is None else alone.footprint.cost_usd,
        "mfu_frac": getattr(alone.figures, "mfu_frac", None) if asked.kind == "training" else None,
    }  # fmt: skip
    for name, value in pairs.items():
        if value is not None and (
            said := equal(float(columns[name][1]), value, f"{name} of many, and of one", slack=1e-6)
        ):
            return said
    return "" if bool(columns["fits"][1]) == alone.fits else "fits of many, and of one"


@rule("training", "vision", "generation", "rl")
def a_whole_stack_of_words_is_refused_or_answered_alike(asked: Asked) -> str | None:
    """A question asked by the name of its system says the same as one asked by its resolved place."""
    words = dict(asked.words)
    if words.get("network") is not None:
        return None
    options = {k: v for k, v in words.items() if k not in ("layout", "generate", "rl")}
    for name in ("generate", "rl"):
        if name in words:
            options[name] = layout_text(words[name])
    by_name = answer(ask(CATALOG, layout=layout_text(words["layout"]), **options))
    return equal(by_name.time_s, asked.answer.time_s, "by name, and by place")


def grown_shape(asked: Asked) -> tuple[str, dict[str, Any]]:
    """One size of the model that is made larger."""
    shape = asked.question.spec.transformer
    layout = asked.question.layout
    step = int(layout.pp) * int(layout.vpp)
    larger: dict[str, dict[str, Any]] = {
        "layers": {"layers": shape.layers + step * asked.chance.choice((1, 2, max(shape.layers // step, 1)))},
        "ffn_hidden": {"ffn_hidden": 2 * shape.ffn_hidden},
        "vocab": {"vocab": 2 * shape.vocab},
        "hidden": {"hidden": 2 * shape.hidden},
        "heads": {"heads": 2 * shape.heads, "kv_heads": 2 * shape.kv_heads},
    }
    if shape.moe is not None:
        larger["expert_ffn"] = {"moe": shape.moe.model_copy(update={"expert_ffn": 2 * shape.moe.expert_ffn})}
        larger["top_k"] = {
            "moe": shape.moe.model_copy(update={"top_k": min(shape.moe.top_k + 1, shape.moe.num_experts)})
        }
    if asked.question.stack.id == "eager-unfused":
        del larger["heads"]  # its softmax has a fast kernel for some numbers of heads
    name = asked.chance.choice(list(larger))
    return name, larger[name]


@rule(*LANGUAGE)
def a_bigger_model_never_costs_less(asked: Asked) -> str | None:
    """A model with more layers, width, vocabulary or active experts never takes less time, memory or energy."""
    name, sizes = grown_shape(asked)
    other, one = asked.with_shape(**sizes), asked.answer
    if asked.kind == "generation":  # the cache fills what the weights leave
        return never_above(one.time_s, other.time_s, f"time, and with more {name}")
    return first_of(
        never_above(one.time_s, other.time_s, f"time, and with more {name}"),
        never_above(one.memory_bytes, other.memory_bytes, f"memory, and with more {name}"),
        "" if one.energy is None or other.energy is None
        else never_above(float(one.energy.total), float(other.energy.total), f"energy, and with more {name}"),
    )  # fmt: skip


@rule("training")
def longer_sequences_never_cost_less(asked: Asked) -> str | None:
    """Longer sequences never take less time, memory or energy, and never less time than their share."""
    shape = asked.question.spec.transformer
    unit = 2 * int(asked.question.layout.cp) * int(asked.question.layout.tp)
    more = asked.chance.choice((unit, 128 * unit, shape.seq))
    other, one = asked.with_shape(seq=shape.seq + more), asked.answer
    return first_of(
        never_above(one.time_s, other.time_s, f"time, and with {more} tokens more"),
        never_above(one.memory_bytes, other.memory_bytes, f"memory, and with {more} tokens more"),
        "" if one.energy is None or other.energy is None
        else never_above(float(one.energy.total), float(other.energy.total), f"energy, and with {more} tokens more"),
    )  # fmt: skip
