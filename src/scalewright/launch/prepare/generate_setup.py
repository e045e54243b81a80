"""Prepare a run of the generation benchmark: resolve who answers what, and predict it. Nothing is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs.machine import Machine
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.here.devices import GPU_START_S, Here, device_here
from scalewright.here.place import Place, place_of
from scalewright.launch.prepare.language_setup import default_ranks, machine_of
from scalewright.launch.prepare.outlook import RunTooLargeError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import GenerateRequest
from scalewright.planner.question import ask
from scalewright.workload.generate_run import EngineTarget, GenerateRun, ServerTarget
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.request_plan import (
    PlannedRequest,
    RequestPlan,
    file_digest,
    length_distributions,
    planned_loads,
    read_requests,
)
from scalewright.workload.run_options import AUTO

DEFAULT_REQUESTS = 64
FILE_TIMES = "file"
SPLITS = ("tp", "dp")
OWN_ENGINE = "scalewright"
"""Our engine in the catalogue of engines."""
CALIBRATED = "calibration "
"""How the basis of a calibrated machine begins."""
COMPARED_KEYS = ("tokens_per_s", "tokens_per_s_interval", "itl_s", "itl_interval_s", "step_time_s", "load_frac")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOutlook:
    """What is predicted of each load."""

    answers: tuple[Answer, ...]
    duration_s: float
    here: Here | Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGeneration:
    """A run that can start, and its prediction."""

    config: GenerateRun
    outlook: GenerateOutlook | None
    note: str = ""
    """Why there is no prediction."""


def request_plan(
    *, prompt_lengths: str, answer_lengths: str, file: str, num: int, rate: str, **others: Any
) -> RequestPlan:
    """The plan of requests as people give it. A file is read once, so that a wrong line is refused before anything."""
    rates, uses_file_times = _rates(rate)
    if not file:
        if uses_file_times:
            raise ConfigError("--rate file needs the times of a file: give one with --requests")
        return RequestPlan(
            prompt_lengths=prompt_lengths, answer_lengths=answer_lengths, num_requests=num or DEFAULT_REQUESTS,
            num_requests_per_s=rates, **others,
        )  # fmt: skip
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"--requests {file!r}: no such file: give a JSON-lines file of lengths or prompts")
    rows = read_requests(path)
    return RequestPlan(
        prompt_lengths=prompt_lengths, answer_lengths=answer_lengths, file=str(path.resolve()),
        file_digest=file_digest(path), num_requests=num or len(rows), num_requests_per_s=rates,
        uses_file_times=uses_file_times, **others,
    )  # fmt: skip


def _rates(text: str) -> tuple[tuple[float, ...], bool]:
    if text.strip() == FILE_TIMES:
        return (), True
    rates = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            rates.append(float(part.removesuffix("/s")))
        except ValueError as error:
            raise ConfigError(
                f"--rate {part!r} is no rate of arrivals: write requests a second, such as 1,2,4, or file"
            ) from error
    return tuple(rates), False


def resolve_split(ranks: int | None, layout: str, *, device: str, has_server: bool) -> tuple[int, int]:
    """Tensor parallelism of a copy, and copies; either follows from the number of ranks."""
    split = parse_layout(layout) if layout else Layout(dp=1 if has_server else ranks or default_ranks(device))
    odd = [name for name in ("pp", "cp", "ep") if int(getattr(split, name)) > 1]
    if odd:
        raise ConfigError(f"{odd[0]}={getattr(split, odd[0])}: the engine is split by {' and '.join(SPLITS)} only")
    needed = int(split.num_gpus)
    if ranks is not None and ranks != needed:
        raise ConfigError(
            f"--ranks {ranks} does not match layout {split.brief}, which takes {needed}: give one of them"
        )
    return int(split.tp), int(split.dp)


def resolved_context(requests: Sequence[Sequence[PlannedRequest]], *, context: int) -> int:
    """The engine's context: as given, else the longest request. One that does not fit is refused by its number."""
    longest = 0
    for request in (request for load in requests for request in load):
        # A text has at most as many tokens as bytes.
        needed = (request.num_prompt or len(request.text.encode())) + request.num_answer
        longest = max(longest, needed)
        if context and request.num_prompt and needed > context:
            raise ConfigError(
                f"request {request.number + 1} has {request.num_prompt} tokens of prompt and {request.num_answer} of "
                f"answer, more than the context of {context}: give --context {needed} or more, or shorter lengths"
            )
    return context or longest


def device_of(config_device: str, *, num_ranks: int, has_server: bool) -> str:
    return "cpu" if has_server else device_here(config_device, num_ranks=num_ranks)


def precision_of(precision: str, device: str) -> str:
    return ("bf16" if device == "cuda" else "fp32") if precision == AUTO else precision


def prepare_generate(
    catalog: Catalog, config: GenerateRun, spec: ModelSpec | None, layout: Layout, *, precision: str,
    system: str | None, budget_s: float,
) -> ReadyGeneration:  # fmt: skip
    """Predict every load of a run before it starts."""
    if spec is None:
        return ReadyGeneration(config=config, outlook=None, note="no prediction: name the server's model with --model")
    if isinstance(config.target, ServerTarget) and system is None:
        note = "no prediction: name the machine of the server with --system"
        return ReadyGeneration(config=config, outlook=None, note=note)
    here: Here | Place | None
    if system is not None:
        here = place_of(catalog, system, num_ranks=int(layout.num_gpus), device=config.device)
    else:
        here = machine_of(catalog, None, config, config.num_ranks)
    if here is None:
        note = "no prediction: name this machine with --system to have one"
        return ReadyGeneration(config=config, outlook=None, note=note)
    try:
        outlook = predict_loads(catalog, config.requests, spec, layout, here, precision=precision, target=config.target)
    except NotExpressedError as error:
        return ReadyGeneration(config=config, outlook=None, note=f"no prediction: {error}")
    if isinstance(config.target, EngineTarget):
        _check_fits(spec, outlook, here, budget_s=budget_s)
    return ReadyGeneration(config=config, outlook=outlook)


def predict_loads(
    catalog: Catalog, plan: RequestPlan, spec: ModelSpec, layout: Layout, here: Here | Place | Machine, *,
    precision: str, target: EngineTarget | ServerTarget | None = None,
) -> GenerateOutlook:  # fmt: skip
    """The prediction of each load, and how long all of them take."""
    prompts, lengths = length_distributions(plan)
    machine = here if isinstance(here, Place | Machine) else here.machine
    num, copies = plan.num_requests * plan.num_answers, int(layout.dp)
    limits = [-(-plan.most_at_once * plan.num_answers // copies)] if plan.most_at_once else []
    if isinstance(target, EngineTarget) and target.max_running:
        limits.append(target.max_running)
    answers, duration_s = [], 0.0
    for load, requests in enumerate(planned_loads(plan)):
        request = GenerateRequest(
            prompt=prompts, response=lengths, answers=plan.num_answers, rate=_answers_per_s(plan, load, requests),
            running=min(limits, default=None), engine=None if isinstance(target, ServerTarget) else OWN_ENGINE,
        )  # fmt: skip
        question = ask(
            catalog, model=spec, system=machine, layout=replace(layout, gbs=num), precision=precision, generate=request
        )
        prediction = answer(question)
        answers.append(prediction)
        duration_s += max(prediction.time_s, requests[-1].arrival_s)
    place = here if isinstance(here, Here | Place) else Place(machine=here, system="", basis="")
    return GenerateOutlook(answers=tuple(answers), duration_s=duration_s, here=_with_decode_words(place))


def _with_decode_words(place: Here | Place) -> Here | Place:
    """The same place; a calibration without decode steps says so, since GPUs' rates of generation stand in for them."""
    if place.machine.generation is not None or not place.basis.startswith(CALIBRATED):
        return place
    return replace(place, basis=f"{place.basis} without decode steps, so rates of GPUs: calibrate with a longer budget")


def _answers_per_s(plan: RequestPlan, load: int, requests: Sequence[PlannedRequest]) -> float | None:
    """Answers that are due in a second, on average; None where all are due at once."""
    if plan.num_requests_per_s:
        return plan.num_requests_per_s[load] * plan.num_answers
    if plan.uses_file_times and requests[-1].arrival_s > 0.0:
        return len(requests) * plan.num_answers / requests[-1].arrival_s
    return None


def start_s(here: Here | Place) -> float:
    return here.start_s if isinstance(here, Here) else GPU_START_S


def _check_fits(spec: ModelSpec, outlook: GenerateOutlook, here: Here | Place, *, budget_s: float) -> None:
    first = outlook.answers[0]
    if not first.fits:
        raise RunTooLargeError(f"{spec.id} does not fit ({here.basis}): {first.why_not}")
    duration_s = outlook.duration_s + start_s(here)
    if duration_s > budget_s:
        took, limit = (units.format(value, units.SECONDS) for value in (duration_s, budget_s))
        raise RunTooLargeError(
            f"{spec.id} would take {took}, over the budget of {limit} ({here.basis}): give fewer requests with --num, "
            "shorter lengths, or a larger --budget"
        )


def loads_document(plan: RequestPlan, outlook: GenerateOutlook) -> dict[str, Any]:
    """The prediction of the first load as a document, with the figures of every load."""
    loads = [_load_figures(plan, load, prediction.document()) for load, prediction in enumerate(outlook.answers)]
    return {**outlook.answers[0].document(), "loads": loads}


def _load_figures(plan: RequestPlan, load: int, doc: dict[str, Any]) -> dict[str, Any]:
    """Figures to hold against measured ones. The first token of one prompt is none of many that are due at once."""
    figures = {key: doc[key] for key in COMPARED_KEYS if doc.get(key) is not None}
    alone_s, loaded_s = doc["ttft_s"], doc.get("loaded_ttft_s")
    at_once = min(plan.most_at_once or plan.num_requests, plan.num_requests)
    if "load_frac" in doc:
        if doc["load_frac"] < 1.0:  # arrivals set the rate: how they fell is no error of the prediction
            figures.pop("tokens_per_s_interval", None)
        if loaded_s is not None:
            ends = [end * loaded_s / alone_s for end in doc["ttft_interval_s"]]
            figures |= {"ttft_s": loaded_s, "ttft_interval_s": ends}
    elif at_once == 1:
        figures |= {"ttft_s": alone_s, "ttft_interval_s": doc["ttft_interval_s"]}
    return {"load": plan.load_words(load), **figures}


def machine_document(outlook: GenerateOutlook) -> dict[str, Any]:
    """The devices of the run: the roof of their memory and what an hour of them costs, for the figures."""
    here, question = outlook.here, outlook.answers[0].question
    machine = here.machine
    named = here if isinstance(here, Here) else Here(machine=machine, device="", start_s=0.0, basis=here.basis)
    facility = question.facility
    price = None if facility is None else facility.usd_per_s_per_gpu
    return named.as_document(question.recipe.name) | {
        "memory_bytes_per_s": machine.hbm_bytes_per_s,
        "usd_per_s": None if price is None else price * question.num_gpus,
        "num_gpus": question.num_gpus,
    }
