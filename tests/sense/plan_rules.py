"""Rules of plans: choice, objectives, budgets, node counts; and of vision models."""

from __future__ import annotations

import itertools
import json
from typing import Any

from scalewright.planner.answer import Answer, answer
from scalewright.planner.plan import Plan, make_plan, what_if
from scalewright.planner.search.search import objective_value
from sense.questions import CATALOG, Asked, changed_words, question_of
from sense.rules import SAME, equal, first_of, never_above, rule

# Plans.


def figure(plan: Plan) -> float:
    """What the plan's objective makes least, of the layout that the plan names as having the least."""
    assert plan.choice is not None
    return objective_value(plan.choice.fastest, plan.request.objective)


@rule("plan")
def more_choice_is_never_worse(asked: Asked) -> str | None:
    """A plan with more choice is never worse by its objective."""
    best = asked.plan.best
    assert best is not None
    free = asked.planned_with(fix=None) if "fix" in asked.words else asked.plan
    fix = asked.chance.choice(("tp=1", "pp=1", "zero=1", "recompute=full", "mbs=1", "cp=1"))
    bound = asked.planned_with(fix=asked.words.get("fix", fix))
    if bound.best is None or free.best is None:
        return None if free.best is not None else "nothing fits with more choice"
    return never_above(figure(free), figure(bound), f"free, and with {asked.words.get('fix', fix)}", slack=1e-6)


@rule("plan")
def more_precisions_are_never_worse(asked: Asked) -> str | None:
    """A plan that may choose among precisions is never worse than one that may not."""
    has = asked.request.machine.accelerator.peak
    if "bf16" not in has or "fp8" not in has:
        return None
    one, both = (asked.planned_with(precision=names) for names in ("bf16", "bf16,fp8"))
    return never_above(figure(both), figure(one), "with two precisions, and one", slack=1e-6)


@rule("plan")
def more_memory_never_makes_a_plan_worse(asked: Asked) -> str | None:
    """On devices with more memory a plan is never worse."""
    from dataclasses import replace

    request = asked.request
    large = replace(request, machine=replace(request.machine, memory_bytes=1.5 * request.machine.memory_bytes))
    return never_above(
        figure(make_plan(CATALOG, large)), figure(asked.plan), "with 1.5 x the memory, and before", slack=1e-6
    )


@rule("plan")
def the_best_comes_first(asked: Asked) -> str | None:
    """No alternative of a plan is better than its best by more than the plan says, and all of them fit."""
    plan = asked.plan
    assert plan.best is not None
    for other in (plan.best, *plan.alternatives):
        if not other.fits:
            return f"{other.question.layout.brief} does not fit"
    values = [objective_value(one, plan.request.objective) for one in plan.alternatives]
    return first_of(
        *(never_above(a, b, "an alternative, and the next", slack=1e-6) for a, b in itertools.pairwise(values))
    )


@rule("plan")
def a_plan_is_its_prediction(asked: Asked) -> str | None:
    """What a plan says of a layout is what its prediction says."""
    plan = asked.plan
    assert plan.best is not None
    for one in (plan.best, *plan.alternatives[:2]):
        alone = answer(one.question)
        if said := first_of(
            equal(
                one.time_s,
                alone.time_s,
                f"time of {one.question.layout.brief} in the plan, and alone",
                slack=1e-6,
            ),
            equal(
                one.memory_bytes,
                alone.memory_bytes,
                f"memory of {one.question.layout.brief} in the plan, and alone",
                slack=1e-6,
            ),
        ):
            return said
    return ""


@rule("plan")
def a_plan_keeps_to_its_machine_and_its_batch(asked: Asked) -> str | None:
    """A layout of a plan uses the devices and the batch that were asked for, and what was fixed."""
    plan = asked.plan
    assert plan.best is not None
    nodes, batch = int(asked.words["nodes"]), asked.words["global_batch"]
    for one in (plan.best, *plan.alternatives):
        layout = one.question.layout
        if layout.num_gpus != nodes * asked.request.machine.gpus_per_node or layout.gbs != batch:
            return f"{layout.brief} on {nodes} nodes with batch {batch}"
        fixed = dict(part.split("=") for part in asked.words.get("fix", "").split(",") if part)
        for name, value in fixed.items():
            if str(getattr(layout, name)) != value:
                return f"{layout.brief} although {name}={value} is fixed"
    return ""


@rule("plan")
def efficiency_never_exceeds_one(asked: Asked) -> str | None:
    """The weak and strong efficiency of a plan never exceed 101 %, and never rise by more than 1 % with the nodes."""
    rows = [row for row in asked.plan.rows if row.strong is not None]
    for name in ("weak_frac", "strong_frac"):
        values = [(row.num_nodes, getattr(row, name)) for row in rows if getattr(row, name) is not None]
        for nodes, value in values:
            if value > 1.01:
                return f"{name} is {value:.3f} on {nodes} nodes"
        if name == "weak_frac" and (
            said := first_of(
                *(
                    never_above(b[1], a[1], f"{name} on {b[0]} nodes, and on {a[0]}", slack=0.01)
                    for a, b in itertools.pairwise(values)
                )
            )
        ):
            return said
    return ""


@rule("plan")
def a_recommendation_keeps_to_the_objective(asked: Asked) -> str | None:
    """Of the node counts asked for, the one that a plan takes has the least of its objective."""
    nodes = int(asked.words["nodes"])
    objective = asked.chance.choice(("time", "gpu-hours", "energy"))
    several = asked.planned_with(nodes=f"{nodes},{2 * nodes}", objective=objective, tokens="100B")
    if several.best is None:
        return None
    singles = [asked.planned_with(nodes=str(n), objective=objective, tokens="100B") for n in (nodes, 2 * nodes)]
    values = [_of_run(one, objective) for one in singles if one.best is not None]
    return never_above(_of_run(several, objective), min(values), f"{objective} of the plan, and the least", slack=1e-3)


def _of_run(plan: Plan, objective: str) -> float:
    """The objective over the whole run."""
    assert plan.best is not None
    if plan.run is None:
        return objective_value(plan.best, plan.request.objective)
    if objective == "time":
        return plan.run.time_s
    if objective == "energy":
        return float(plan.run.energy.total) if plan.run.energy is not None else 0.0
    return plan.run.num_gpu_hours


@rule("plan")
def a_budget_that_suffices_changes_nothing(asked: Asked) -> str | None:
    """A budget above what the best layout needs leaves the plan as it is, and one below is kept or refused."""
    plan = asked.planned_with(tokens="10B")
    if plan.run is None or plan.best is None:
        return None
    ample = asked.planned_with(tokens="10B", budget=f"gpu-hours={plan.run.num_gpu_hours * 1.01:.6f}")
    assert ample.best is not None
    if ample.best.question.layout != plan.best.question.layout:
        return f"{plan.best.question.layout.brief} became {ample.best.question.layout.brief}"
    nodes = int(asked.words["nodes"])
    tight = asked.planned_with(
        tokens="10B", nodes=f"{nodes},{2 * nodes}", budget=f"gpu-hours={plan.run.num_gpu_hours * 1.01:.6f}"
    )
    assert tight.run is not None
    return never_above(
        tight.run.num_gpu_hours, plan.run.num_gpu_hours * 1.01, "GPU-hours of the plan, and its budget", slack=1e-6
    )


@rule("plan")
def a_longer_list_begins_alike(asked: Asked) -> str | None:
    """A plan that lists more layouts lists the same ones first."""
    few, many = (asked.planned_with(top=n) for n in (3, 8))
    names = [
        [one.question.layout.brief for one in (plan.best, *plan.alternatives) if one is not None]
        for plan in (few, many)
    ]
    return "" if names[1][: len(names[0])] == names[0] else f"{names[0]} and {names[1]}"


@rule("plan")
def a_plan_is_a_document(asked: Asked) -> str | None:
    """A plan asked twice is one document with one id, which survives JSON."""
    first, second = asked.plan.as_document(), asked.planned_with().as_document()
    read = json.loads(json.dumps(first, allow_nan=False))
    return first_of(
        "" if first == second else "asked twice, the documents differ",
        "" if read == first else "read again, it differs",
    )


@rule("plan")
def the_fewest_devices_suffice(asked: Asked) -> str | None:
    """On the fewest devices that a plan names for training all weights, a layout fits, and never on more than asked for."""
    full = next((row for row in asked.plan.minimum if row.mode.name == "full"), None)
    if full is None or full.num_gpus is None:
        return "something fits, and no number of devices suffices" if full is not None else None
    return never_above(
        full.num_gpus, asked.plan.result.space.num_gpus, "fewest devices, and those on which something fits"
    )


@rule("plan")
def a_what_if_of_a_plan_searches_as_a_plan(asked: Asked) -> str | None:
    """A what-if of a plan that fixes a knob finds what the plan with this knob finds."""
    fix = asked.chance.choice(("tp=1", "zero=1", "recompute=full"))
    if "fix" in asked.words:
        return None
    other, direct = what_if(CATALOG, asked.plan, fix).after, asked.planned_with(fix=fix)
    assert direct.best is not None
    return equal(other.time_s, direct.best.time_s, f"what-if {fix}, and the plan with it", slack=1e-6)


# Vision.


def with_batch(asked: Asked, *, dp: int = 1, mbs: int = 1) -> Answer:
    """The same question on so many times the devices, with so many times the images each."""
    layout = asked.question.layout
    return asked.with_layout(dp=dp * layout.dp, mbs=mbs * layout.mbs, gbs=dp * mbs * layout.gbs)


@rule("vision")
def more_images_never_cost_less(asked: Asked) -> str | None:
    """Twice the images for each device never take less time, memory or energy, and never more than two steps."""
    one, two = asked.answer, with_batch(asked, mbs=2)
    return first_of(
        never_above(one.time_s, two.time_s, "time, and of twice the images"), never_above(two.time_s, 2 * one.time_s, "time of twice the images, and twice the time"),
        never_above(one.memory_bytes, two.memory_bytes, "memory, and of twice the images"),
        "" if one.energy is None or two.energy is None else never_above(float(one.energy.total), float(two.energy.total), "energy, and of twice the images"),
    )  # fmt: skip


@rule("vision")
def deeper_networks_never_cost_less(asked: Asked) -> str | None:
    """A deeper residual network of the same blocks never takes less time, memory or arithmetic."""
    pairs = [("resnet-18", "resnet-34"), ("resnet-50", "resnet-101"), ("resnet-101", "resnet-152")]
    less, more = (question_of(changed_words(asked.words, {"model": name})) for name in asked.chance.choice(pairs))
    one, two = answer(less), answer(more)
    return first_of(
        never_above(one.time_s, two.time_s, f"time of {less.spec.id}, and of {more.spec.id}"),
        never_above(one.memory_bytes, two.memory_bytes, "memory, and of the deeper one"),
        never_above(one.vision.model_flop, two.vision.model_flop, "arithmetic, and of the deeper one"),
    )


@rule("vision")
def an_epoch_takes_at_least_its_images(asked: Asked) -> str | None:
    """An epoch takes at least its images at the slower rate of devices and loaders, and no rate exceeds the loader's."""
    one, figures = asked.answer, asked.answer.vision
    return first_of(
        never_above(
            figures.epoch_images_per_s, one.rate_per_s, "images per second of the epoch, and of steps", slack=1e-6
        ),
        never_above(
            figures.epoch_images_per_s,
            float(figures.loader.num_images_per_s),
            "images per second of the epoch, and of the loader",
            slack=1e-6,
        ),
        never_above(
            1_281_167 / figures.epoch_images_per_s, figures.epoch_s, "images over their rate, and the epoch", slack=0.01
        ),
    )


@rule("vision")
def efficiency_of_vision_is_against_one_node(asked: Asked) -> str | None:
    """Efficiency is 1 on one node, never above 1, and the time on one node over the time."""
    figures, machine = asked.answer.vision, asked.machine
    if not 0.0 < figures.efficiency_frac <= 1.0 + 1e-6:
        return f"efficiency is {figures.efficiency_frac}"
    if machine.num_nodes_for(asked.question.num_gpus) == 1 and asked.question.num_gpus == machine.gpus_per_node:
        return equal(figures.efficiency_frac, 1.0, "efficiency on one node, and 1")
    return ""


@rule("vision")
def images_load_no_slower_with_more(asked: Asked) -> str | None:
    """More loaders, or storage twice as fast, never make a step or an epoch slower."""
    from sense.cluster_rules import faster_storage

    slow, fast = (asked.with_words(num_loaders=n) for n in (2, 4))
    checks = [
        never_above(fast.time_s, slow.time_s, "4 loaders, and 2"),
        never_above(fast.vision.epoch_s, slow.vision.epoch_s, "epoch with 4 loaders, and with 2"),
    ]
    feed = asked.question.feed
    if feed.storage is not None:
        from dataclasses import replace

        quick = faster_storage(feed.storage, 2.0)
        other = asked.asked_with(feed=replace(feed, storage=quick, epoch_storage=quick))
        checks += [
            never_above(other.time_s, asked.answer.time_s, "storage twice as fast, and before"),
            never_above(
                other.vision.epoch_s, asked.answer.vision.epoch_s, "epoch with storage twice as fast, and before"
            ),
        ]
    return first_of(*checks)


@rule("vision")
def wide_images_are_never_faster(asked: Asked) -> str | None:
    """Training images in 32 bit is never faster than in TF32 or in mixed precision, nor takes less memory."""
    has: Any = asked.machine.accelerator.peak
    if asked.machine.accelerator.kind == "cpu":
        return None
    wide = asked.with_words(precision="fp32")
    narrow = asked.with_words(precision=asked.chance.choice([n for n in ("tf32", "fp16", "bf16") if n in has]))
    name = narrow.question.recipe.name
    return first_of(
        never_above(narrow.time_s, wide.time_s, f"time in {name}, and in fp32", slack=SAME),
        never_above(narrow.memory_bytes, wide.memory_bytes, f"memory in {name}, and in fp32", slack=0.05),
    )
