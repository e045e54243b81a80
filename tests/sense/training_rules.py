"""Rules of training steps: scaling, splits, batches, memory policies and precision."""

from __future__ import annotations

import itertools
from dataclasses import replace

from scalewright.planner.answer import Answer
from sense.questions import CATALOG, Asked
from sense.rules import equal, first_of, never_above, rule

MORE = 0.01
"""What a rule on scaling leaves to rounding of shards and tiles."""


def without_update(prediction: Answer) -> float:
    """Time without the optimizer's work, which ZeRO and offloading divide among more devices."""
    return prediction.time_s - sum(
        float(prediction.time.part(name).total) for name in ("optimizer", "offload_transfer")
    )


def state_bytes(prediction: Answer) -> float:
    """Weights, gradients and optimizer state on a device."""
    return sum(float(prediction.memory.part(name).total) for name in ("weights", "gradients", "optimizer"))


def scaled_out(asked: Asked, times: int) -> Answer:
    """The same work per device on that many times the devices."""
    layout = asked.question.layout
    return asked.with_layout(dp=layout.dp * times, gbs=layout.gbs * times)


@rule("training", "vision")
def twice_the_nodes_are_never_faster(asked: Asked) -> str | None:
    """Twice the devices at the same work per device are never faster, the optimizer's divided work apart."""
    layout = asked.question.layout
    if asked.kind == "vision":
        other = asked.with_layout(dp=2 * layout.dp, gbs=2 * layout.gbs)
        return never_above(asked.answer.time_s, other.time_s, "time, and on twice the devices", slack=MORE)
    other = scaled_out(asked, 2)
    return never_above(
        without_update(asked.answer), without_update(other), "time, and on twice the devices", slack=MORE
    )


@rule("training")
def more_nodes_are_never_more_efficient(asked: Asked) -> str | None:
    """With one layout family and equal work per device, efficiency never rises by more than 1 % with the nodes."""
    machine, layout = asked.machine, asked.question.layout
    model = layout.tp * layout.pp * layout.cp
    per_node = max(machine.gpus_per_node // model, 1)
    most = (machine.num_nodes or 4096) * machine.gpus_per_node // model
    copies, each = [per_node], layout.gbs // layout.dp
    if machine.network_bytes_per_s_per_gpu is None:
        return None
    while copies[-1] * 2 <= most:
        copies.append(copies[-1] * 2)
    copies.append(most)
    times = [
        without_update(asked.with_layout(dp=dp, gbs=dp * each)) for dp in sorted(set(copies)) if dp % layout.ep == 0
    ]
    for place in range(len(times) - 1):
        if said := never_above(
            times[place], min(times[place + 1 :]), f"step on {copies[place]} copies, and the least on more", slack=MORE
        ):
            return said
    return ""


@rule("training")
def one_node_more_is_no_jump(asked: Asked) -> str | None:
    """One node more at the same work per device changes a step no more than its neighbours do, a new tier apart."""
    machine, layout = asked.machine, asked.question.layout
    model = layout.tp * layout.pp * layout.cp
    if machine.network is None or layout.ep > 1 or machine.gpus_per_node % model:
        return None
    copies, each = machine.gpus_per_node // model, layout.gbs // layout.dp
    most = min(machine.num_nodes or 512, 512)
    first = asked.chance.randint(4, max(most - 4, 4))  # a ring of few nodes sends (n - 1) / n, which grows fast
    times = [
        asked.with_layout(dp=n * copies, gbs=n * copies * each).time_s for n in range(first, min(first + 5, most + 1))
    ]
    ratios = [after / before for before, after in itertools.pairwise(times)]
    tiers = {machine.network.num_leaf_nodes, machine.network.num_group_nodes}
    for place, ratio in enumerate(ratios):
        if first + place in tiers:
            continue
        if ratio > 1.25 or ratio < 0.99:
            return f"from {first + place} to {first + place + 1} nodes: x {ratio:.4f}; steps {', '.join(f'{t:.4g}' for t in times)}"
    return ""


@rule("training")
def k_devices_are_at_most_k_times_as_fast(asked: Asked) -> str | None:
    """A step split over k times the devices is never more than k times as fast, the optimizer's divided work apart."""
    layout, machine = asked.question.layout, asked.machine
    name = asked.chance.choice([n for n in ("tp", "cp", "pp", "dp") if getattr(layout, n) > 1] or ["none"])
    if name == "none":
        return None
    k = getattr(layout, name)
    fewer = {name: 1}
    if name == "pp":
        fewer["vpp"] = 1
        if layout.zero >= 2:
            return None  # a pipeline reduces gradients once a step, without one they are reduced in each pass
    if name in ("tp", "cp", "dp") and layout.ep > 1:
        return None
    if name == "tp":
        fewer["sp"] = False
        if asked.question.spec.transformer.vocab % 64:
            return None  # shares of a vocabulary are padded to what products are fast with
    if layout.num_gpus // k < 1 or machine.num_nodes_for(layout.num_gpus) > (machine.num_nodes or 10**9):
        return None
    one = asked.with_layout(**fewer)
    return never_above(
        without_update(one),
        k * without_update(asked.answer),
        f"step with {name}=1, and {k} x that with {name}={k}",
        slack=0.05 if name == "dp" else MORE,  # one pass each accumulates nothing
    )


@rule("training")
def a_split_inside_a_node_is_not_free(asked: Asked) -> str | None:
    """Two devices that split each layer or each sequence take more device time for it than one device."""
    layout, shape = asked.question.layout, asked.question.spec.transformer
    name = asked.chance.choice(("tp", "cp"))
    if asked.machine.gpus_per_node < 2 or (name == "tp" and (shape.heads % 2 or shape.vocab % 64)):
        return None
    batch = 4 * layout.mbs
    plain = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": 1, "gbs": batch, "zero": 0, "sp": False}
    one, two = asked.with_layout(**plain), asked.with_layout(**{**plain, name: 2})
    alone, split = without_update(one), 2 * without_update(two)
    if split <= alone:
        return f"2 devices with {name}=2 take {split:.6g} device-seconds, one {alone:.6g}"
    return ""


@rule("training")
def at_equal_devices_context_parallel_is_not_free(asked: Asked) -> str | None:
    """On the devices of one node, splitting sequences takes longer than giving each device its own."""
    layout, machine = asked.question.layout, asked.machine
    each = asked.chance.choice([n for n in (2, 4, 8) if machine.gpus_per_node % n == 0] or [0])
    if not each:
        return None
    plain = {
        "tp": 1,
        "pp": 1,
        "vpp": 1,
        "ep": 1,
        "zero": layout.zero if layout.zero < 3 else 1,
        "sp": False,
        "gbs": machine.gpus_per_node * layout.mbs,
    }
    whole = asked.with_layout(**plain, cp=1, dp=machine.gpus_per_node)
    split = asked.with_layout(**plain, cp=each, dp=machine.gpus_per_node // each)
    if split.time_s <= whole.time_s:
        return f"cp={each} takes {split.time_s:.6g} s, cp=1 {whole.time_s:.6g} s at the same tokens for each device"
    return ""


@rule("training")
def accumulation_is_not_free(asked: Asked) -> str | None:
    """The same samples in larger micro-batches never take longer without a pipeline, and in smaller ones never less."""
    layout = asked.question.layout
    if layout.pp > 1:
        return None
    share = layout.gbs // layout.dp
    sizes = [n for n in (1, 2, 4, 8, 16, 32) if share % n == 0]
    times = [asked.with_layout(mbs=n).time_s for n in sizes]
    for place in range(len(times) - 1):
        if said := never_above(
            times[place + 1], times[place], f"micro-batches of {sizes[place + 1]}, and of {sizes[place]}"
        ):
            return said
    return ""


@rule("training")
def accumulated_passes_cost_alike(asked: Asked) -> str | None:
    """Each further micro-batch adds the same time as the one before, within a tenth."""
    layout = asked.question.layout
    share = layout.dp * layout.mbs
    first = layout.pp + asked.chance.randint(2, 6)
    times = [asked.with_layout(gbs=share * n, vpp=1).time_s for n in (first, first + 1, first + 2, first + 3)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    if min(steps) <= 0.0:
        return f"a further micro-batch takes {min(steps):.4g} s; steps {', '.join(f'{t:.6g}' for t in times)}"
    return never_above(max(steps), 1.1 * min(steps), f"longest and shortest further micro-batch after {first}")


@rule("training")
def larger_batches_never_cost_less(asked: Asked) -> str | None:
    """Twice the batch never takes less time or energy, and never more than two steps of the single batch."""
    layout, one = asked.question.layout, asked.answer
    other = asked.with_layout(gbs=2 * layout.gbs)
    return first_of(
        never_above(one.time_s, other.time_s, "time, and of twice the batch"),
        never_above(other.time_s, 2 * one.time_s, "time of twice the batch, and twice the time", slack=1e-3),
        "" if one.energy is None or other.energy is None
        else never_above(float(one.energy.total), float(other.energy.total), "energy, and of twice the batch"),
    )  # fmt: skip


@rule("training")
def larger_micro_batches_never_take_less_memory(asked: Asked) -> str | None:
    """Twice the micro-batch never takes less memory."""
    layout = asked.question.layout
    other = asked.with_layout(mbs=2 * layout.mbs, gbs=2 * layout.gbs)
    return never_above(asked.answer.memory_bytes, other.memory_bytes, "memory, and of twice the micro-batch")


@rule("training")
def more_devices_never_save_device_time(asked: Asked) -> str | None:
    """The same batch on twice the copies never takes fewer device-seconds, updates and sums of gradients apart."""
    layout = asked.question.layout
    if layout.gbs % (2 * layout.dp * layout.mbs):
        return None
    other = asked.with_layout(dp=2 * layout.dp)
    one, two = (without_update(each) - float(each.time.part("gradient_sums").total) for each in (asked.answer, other))
    return never_above(one, 2 * two, "device time, and of twice the copies", slack=MORE)


RECOMPUTED = ("none", "selective", "operators", "full")


@rule("training")
def recomputation_trades_time_for_memory(asked: Asked) -> str | None:
    """Recomputation never raises memory, and never lowers arithmetic or time."""
    kind = asked.chance.choice(RECOMPUTED[1:])
    plain, again = asked.with_layout(recompute="none"), asked.with_layout(recompute=kind)
    flop = [float(one.transformer.cost.hardware_flop) for one in (plain, again)]
    return first_of(
        never_above(again.memory_bytes, plain.memory_bytes, f"memory with recompute={kind}, and none"),
        never_above(flop[0], flop[1], f"arithmetic without, and with recompute={kind}"),
        never_above(plain.time_s, again.time_s, f"time without, and with recompute={kind}"),
    )


@rule("training")
def whole_layers_recomputed_take_least_memory(asked: Asked) -> str | None:
    """Of many layers, recomputing them whole takes no more memory than any other recomputation, and no less arithmetic."""
    kind = asked.chance.choice(("selective", "operators"))
    layout = asked.question.layout
    if asked.question.spec.transformer.layers < 8 * layout.pp:
        return None  # the layer that is computed again is much of what a rank has
    part, whole = asked.with_layout(recompute=kind), asked.with_layout(recompute="full")
    flop = [float(one.transformer.cost.hardware_flop) for one in (part, whole)]
    return first_of(
        never_above(whole.memory_bytes, part.memory_bytes, f"memory with full, and with {kind}", slack=0.02),
        never_above(flop[0], flop[1], f"arithmetic with {kind}, and with full"),
    )


@rule("training")
def useful_work_is_never_more_than_all_work(asked: Asked) -> str | None:
    """Model FLOP are at most hardware FLOP, equal without recomputation, and utilisation follows from them."""
    figures, question = asked.answer.transformer, asked.question
    flop, hardware = figures.model_flop, float(figures.cost.hardware_flop)
    peak = question.machine.peak_flop_per_s(question.recipe.matmul)
    return first_of(
        never_above(flop, hardware, "model FLOP and hardware FLOP") if not question.mode.is_lora else "",
        never_above(figures.mfu_frac, figures.hfu_frac, "MFU and HFU") if not question.mode.is_lora else "",
        equal(
            figures.mfu_frac,
            flop / asked.answer.time_s / question.num_gpus / peak,
            "MFU, and FLOP over time and peak",
            slack=1e-6,
        ),
    )


@rule("training")
def arithmetic_does_not_depend_on_the_split(asked: Asked) -> str | None:
    """The model FLOP of a batch are the same however it is split."""
    layout = asked.question.layout
    plain = asked.with_layout(tp=1, pp=1, vpp=1, cp=1, ep=1, dp=1, mbs=1, sp=False, gbs=layout.gbs)
    return equal(
        plain.transformer.model_flop, asked.answer.transformer.model_flop, "FLOP on one device, and split", slack=1e-6
    )


@rule("training")
def sharding_never_raises_memory(asked: Asked) -> str | None:
    """A higher ZeRO stage never takes more memory for weights, gradients and optimizer state."""
    state = [state_bytes(asked.with_layout(zero=zero)) for zero in range(4)]
    for zero in range(3):
        if said := never_above(state[zero + 1], state[zero], f"state with zero={zero + 1}, and zero={zero}"):
            return said
    return ""


@rule("training")
def sharded_weights_cost_traffic(asked: Asked) -> str | None:
    """Sharding the weights never moves data in less time than sharding the gradients alone."""
    layout = asked.question.layout
    if layout.dp == 1 or layout.tp * layout.pp * layout.cp > 1 or layout.ep > 1:
        return None
    two, three = (asked.with_layout(zero=zero, mbs=layout.mbs, gbs=layout.gbs) for zero in (2, 3))
    return never_above(without_update(two), without_update(three), "time with zero=2, and zero=3", slack=MORE)


@rule("training")
def more_copies_never_take_more_memory(asked: Asked) -> str | None:
    """Twice the copies at the same work per device never take more memory on a device."""
    other = scaled_out(asked, 2)
    return never_above(other.memory_bytes, asked.answer.memory_bytes, "memory on twice the copies, and before")


@rule("training")
def splitting_the_model_never_takes_more_memory(asked: Asked) -> str | None:
    """Tensor, pipeline and context parallelism never take more weights, and tensor parallelism never more memory."""
    layout = asked.question.layout
    name = asked.chance.choice(("tp", "pp"))
    if layout.ep > 1 or layout.zero:
        return None
    other = asked.with_layout(**{name: 2 * getattr(layout, name)})
    weights = [float(one.memory.part("weights").total) for one in (asked.answer, other)]
    return first_of(
        never_above(weights[1], weights[0], f"weights with twice the {name}, and before"),
        never_above(other.memory_bytes, asked.answer.memory_bytes, "memory with twice the tp, and before", slack=MORE)
        if name == "tp"
        else "",
    )


@rule("training")
def sequence_parallelism_never_takes_more_memory(asked: Asked) -> str | None:
    """Sequence parallelism never takes more memory than tensor parallelism alone."""
    if asked.question.layout.tp == 1:
        return None
    off, on = (asked.with_layout(sp=on) for on in (False, True))
    return never_above(on.memory_bytes, off.memory_bytes, "memory with sp=1, and sp=0")


@rule("training")
def wider_numbers_never_take_less(asked: Asked) -> str | None:
    """Training with products of 32 bit is never faster than with TF32, nor TF32 than bf16."""
    has = set(asked.machine.accelerator.peak)
    names = [name for name in ("fp32", "tf32", "bf16") if name in has]
    if len(names) < 2 or asked.machine.accelerator.kind == "cpu":
        return None
    wide, narrow = asked.chance.choice([(a, b) for i, a in enumerate(names) for b in names[i + 1 :]])
    one, other = (asked.with_words(precision=name) for name in (wide, narrow))
    return never_above(other.time_s, one.time_s, f"time in {narrow}, and in {wide}")


@rule("training")
def adapters_never_cost_more_than_all_weights(asked: Asked) -> str | None:
    """Training adapters never takes more arithmetic, unsharded state or checkpoint than training all weights."""
    plain = {**asked.words["layout"], "zero": 0}
    full, lora = (asked.with_words(mode=name, layout=plain) for name in ("full", "lora"))
    flop = [float(one.transformer.cost.hardware_flop) for one in (lora, full)]
    return first_of(
        never_above(*flop, "arithmetic of lora, and of full"),
        never_above(state_bytes(lora), state_bytes(full), "state of lora, and of full"),
        never_above(
            lora.transformer.checkpoint_bytes, full.transformer.checkpoint_bytes, "checkpoints of lora, and of full"
        ),
    )


@rule("training")
def offloading_trades_time_for_memory(asked: Asked) -> str | None:
    """Optimizer state on the hosts never takes more device memory, and never less time."""
    if asked.question.layout.zero == 0 and asked.question.layout.dp > 1:
        return None  # offloading shards the optimizer
    full, away = (asked.with_words(mode=name) for name in ("full", "offload"))
    timed = asked.machine.host_memory_bytes_per_s is not None and asked.machine.host_link_bytes_per_s is not None
    return first_of(
        never_above(away.memory_bytes, full.memory_bytes, "memory of offload, and of full"),
        never_above(full.time_s, away.time_s, "time of full, and of offload") if timed else "",
    )


@rule("training")
def a_simpler_optimizer_never_takes_more(asked: Asked) -> str | None:
    """SGD never takes more time, memory or checkpoint than Adam."""
    adam, sgd = (asked.with_words(optimizer=name) for name in ("adam", "sgd"))
    return first_of(
        never_above(sgd.time_s, adam.time_s, "time of SGD, and of Adam"),
        never_above(sgd.memory_bytes, adam.memory_bytes, "memory of SGD, and of Adam"),
        never_above(
            sgd.transformer.checkpoint_bytes, adam.transformer.checkpoint_bytes, "checkpoints of SGD, and of Adam"
        ),
    )


@rule("training")
def fewer_key_heads_never_cost_more(asked: Asked) -> str | None:
    """Attention with fewer key and value heads never takes more time or memory."""
    shape, tp = asked.question.spec.transformer, asked.question.layout.tp
    if shape.kv_heads % 2 or shape.mla is not None or (shape.kv_heads // 2) % tp:
        return None
    other = asked.with_shape(kv_heads=shape.kv_heads // 2)
    return first_of(
        never_above(other.time_s, asked.answer.time_s, "time with half the key heads, and before"),
        never_above(other.memory_bytes, asked.answer.memory_bytes, "memory with half the key heads, and before"),
    )


@rule("training")
def experts_that_rest_cost_memory(asked: Asked) -> str | None:
    """More experts of which as many are active never take less memory or less time."""
    shape, layout = asked.question.spec.transformer, asked.question.layout
    if shape.moe is None:
        return None
    other = asked.with_shape(moe=shape.moe.model_copy(update={"num_experts": 2 * shape.moe.num_experts}))
    return first_of(
        never_above(asked.answer.memory_bytes, other.memory_bytes, "memory, and with twice the experts"),
        never_above(asked.answer.time_s, other.time_s, "time, and with twice the experts") if layout.ep == 1 else "",
    )


@rule("training")
def pipelines_hold_their_fullest_rank(asked: Asked) -> str | None:
    """The memory of a step is that of the pipeline rank that holds the most."""
    return equal(
        max(asked.answer.transformer.memory_bytes_per_pipeline_rank),
        asked.answer.memory_bytes,
        "fullest rank, and memory",
        slack=1e-6,
    )


@rule("training")
def more_micro_batches_shrink_the_bubble(asked: Asked) -> str | None:
    """The share of a step that a pipeline waits in its bubble never grows with the number of micro-batches."""
    layout = asked.question.layout
    if layout.pp == 1:
        return None
    other = asked.with_layout(gbs=2 * layout.gbs)
    shares = [float(one.time.part("pipeline_bubble").total) / one.time_s for one in (asked.answer, other)]
    return never_above(shares[1], shares[0], "bubble of twice the micro-batches, and before", slack=MORE)


@rule("training")
def nobody_talks_to_himself(asked: Asked) -> str | None:
    """A dimension that is not split has no communication, and one device waits for nobody."""
    time, layout = asked.answer.time, asked.question.layout
    for name, degree in (
        ("tensor_parallel", layout.tp),
        ("context_parallel", layout.cp),
        ("expert_parallel", layout.ep),
        ("pipeline_transfer", layout.pp),
    ):
        if degree == 1 and float(time.part(name).total) > 0.0:
            return f"{name} takes {float(time.part(name).total):.4g} s at degree 1"
    if layout.num_gpus == 1:
        return never_above(
            float(time.part("communication").total) + float(time.part("stragglers").total),
            0.0,
            "communication of one device",
        )
    return ""


@rule("training")
def a_faster_storage_is_never_slower(asked: Asked) -> str | None:
    """A storage twice as fast never makes a step slower, and samples in shards are never slower than in files."""
    entry = CATALOG.storage(asked.words.get("storage") or "hdd-nfs")
    facts = {
        name: fact.model_copy(update={"value": 2 * fact.value})
        for name in ("read_bandwidth", "file_rate")
        if (fact := getattr(entry, name)) is not None
    }
    feed = asked.question.feed
    slow, fast = (asked.asked_with(feed=replace(feed, storage=one)) for one in (entry, entry.model_copy(update=facts)))
    files, shards = (asked.asked_with(feed=replace(feed, storage=entry, one_file_each=each)) for each in (True, False))
    return first_of(
        never_above(fast.time_s, slow.time_s, "time with storage twice as fast, and before"),
        never_above(shards.time_s, files.time_s, "time with shards, and with files"),
    )


@rule("training")
def a_little_more_is_a_little_more(asked: Asked) -> str | None:
    """A sequence longer by a few percent takes between nothing and twice those percent more time, whole tiles apart."""
    shape, layout = asked.question.spec.transformer, asked.question.layout
    unit = 128 * layout.cp * layout.tp
    if shape.seq < 16 * unit or shape.seq % unit:
        return None
    other = asked.with_shape(seq=shape.seq + unit)
    share = 1 + unit / shape.seq
    return first_of(
        never_above(asked.answer.time_s, other.time_s, "time, and of a longer sequence"),
        never_above(
            other.time_s,
            asked.answer.time_s * share**2,
            f"time of {share - 1:.1%} more tokens, and the square",
            slack=0.06,
        ),
        never_above(
            other.memory_bytes,
            asked.answer.memory_bytes * share**2,
            f"memory of {share - 1:.1%} more tokens, and the square",
            slack=MORE,
        ),
    )
