"""A plan with its extras: a what-if, a comparison with other systems, the stack of a framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scalewright.errors import ConfigError
from scalewright.planner.answer import Change
from scalewright.planner.engine_stack import engine_stack
from scalewright.planner.plan import Compared, Plan, compare, make_plan, what_if, what_if_body
from scalewright.planner.question import AUTO
from scalewright.planner.request import PlanOptions, PlanRequest, resolve_request

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog

STAGES_WITHOUT_LAYOUT = ("rl", "generate", "distill")
"""Stages that `plan_stage` plans: they are no single training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The plan for the first system, and the extras that the user chose."""

    plan: Plan
    basis: str
    """What systems are compared on: so many nodes or devices of each."""
    change: Change | None = None
    compared: tuple[Compared, ...] = ()
    emitted: dict[str, Any] | None = None
    """The best layout as a framework's file; `engines` adds it."""

    def document(self) -> dict[str, Any]:
        """The `plan/1` document."""
        body = self.plan.as_document()
        if self.change is not None:
            body["what_if"] = what_if_body(self.change)
        if self.compared:
            body["compared"] = {"basis": self.basis, "systems": [row.as_dict() for row in self.compared]}
        if self.emitted is not None:
            body["emitted"] = self.emitted
        return body


def plan_systems(
    catalog: Catalog, systems: Sequence[str], options: PlanOptions, *, what_if_text: str | None = None,
    framework: str | None = None, engine: str = "",
) -> PlanReport:  # fmt: skip
    """Plan for the first system and compare it with the others, with the stack of a framework where one is named.

    `engine` is the program that reads the framework's file: where it has factors of its own, they count.
    """
    requests = [resolve_request(catalog, name, options) for name in systems]
    if framework is not None:
        requests = [with_stack_to_emit(catalog, request, framework, engine=engine) for request in requests]
    plan = make_plan(catalog, requests[0])
    return PlanReport(
        plan=plan,
        basis=_basis(options),
        change=None if what_if_text is None else what_if(catalog, plan, what_if_text),
        compared=tuple(compare(catalog, requests)) if len(requests) > 1 else (),
    )


def with_stack_to_emit(catalog: Catalog, request: PlanRequest, framework: str, *, engine: str = "") -> PlanRequest:
    """The request with the stack that the framework runs with: what is emitted must fit as planned."""
    if request.stack == AUTO:
        stack = catalog.stack(framework).id
        if engine:
            stack = engine_stack(catalog, request.machine, engine=engine, stack=stack).id
        return replace(request, stack=stack, stack_origin=f"--emit {framework}: what it runs with")
    if framework in catalog.stack(request.stack).frameworks:
        return request
    own = [name for name in catalog.ids("stacks") if framework in catalog.stack(name).frameworks]
    raise ConfigError(
        f"stack {request.stack} and emit {framework} conflict: {framework} runs with {' or '.join(own)}, and a layout "
        "that fits another stack may not fit there; leave --stack out"
    )


def _basis(options: PlanOptions) -> str:
    if options.gpus is not None:
        return f"{options.gpus} devices of each"
    return "the recommended nodes of each" if options.nodes is None else f"{options.nodes} nodes of each"


def systems_of(system: str | None, compared: str | None) -> list[str]:
    """The system planned for first, then those it is compared with."""
    others = [name.strip() for name in (compared or "").split(",") if name.strip()]
    names = list(dict.fromkeys(([] if system is None else [system]) + others))
    if not names:
        raise ConfigError("which machine? name a system such as lumi (see: scalewright catalog systems)")
    return names


def check_unused(options: PlanOptions, *, teacher: str | None, **beside: object) -> None:
    """Refuse options that a plan of this stage would not follow. `beside` are those that are no part of the options."""
    if teacher is not None and options.stage != "distill":
        raise ConfigError(f"option teacher means nothing in stage {options.stage}: only distill has one; leave it out")
    if options.stage not in STAGES_WITHOUT_LAYOUT:
        for name in ("rl", "generate"):
            if getattr(options, name) is not None:
                raise ConfigError(f"option {name} describes stage {name}, not {options.stage}: add --stage {name}")
        return
    usual = PlanOptions(model=options.model)
    searched: tuple[str, ...] = ("objective", "tokens", "steps", "budget", "walltime", "site")
    if options.stage != "rl":
        searched = (*searched, "fix", "rl")
    if options.stage != "generate":
        searched = (*searched, "generate")
    if options.stage == "distill":
        searched = (*searched, "top")
    given = [name for name in searched if getattr(options, name) != getattr(usual, name)]
    unused = beside if options.stage == "distill" else {k: v for k, v in beside.items() if k != "what_if"}
    given += [name for name, value in unused.items() if value is not None]
    if given:
        raise ConfigError(f"option {given[0].replace('_', '-')} means nothing in stage {options.stage}; leave it out")
