"""The post-mortem of a run: what was expected and seen, the story of its end, its cause, and what to do about it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalewright import units
from scalewright.observe.causes import CAUSES
from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.evidence.facts import JobFact
from scalewright.observe.evidence.series import StepSeries, num_ranks, setting, step_series
from scalewright.observe.findings.order import explain, missing
from scalewright.observe.findings.rule import Explained, FindingContext
from scalewright.observe.timeline import Timeline, build_timeline
from scalewright.records.redaction import redacted, visible_variables

UNKNOWN = "unknown"
MOST_CAUSES = 5
"""Findings that become countermeasures; the page of `explain` has all."""
_CATEGORY_OF_ROLE = {"slowed": "performance", "wasted": "sizing", "suspect": "code"}
_CATEGORIES = {
    "configuration": "configuration: an option, a path, a version or the environment",
    "sizing": "sizing: memory, time or devices that were requested",
    "topology": "topology: how ranks, devices and network are put together",
    "code": "code: the training program or its numbers",
    "external": "external: hardware, file system, scheduler or people",
    "performance": "performance: nothing failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """A figure about the run, in words, and how it was made."""

    name: str
    value: str
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What was requested of something, and what was used."""

    name: str
    requested: str
    used: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    """Everything that the template has. All texts are free of secrets; none is safe as HTML."""

    name: str
    verdict: str
    """One sentence: what ended or limits the run, or that the evidence is not enough."""
    certainty: str
    category: str
    """Where the source is, in the template's words; empty if unknown."""
    symptoms: tuple[NamedValue, ...]
    timeline: Timeline
    environment: tuple[NamedValue, ...]
    resources: tuple[Resource, ...]
    bottleneck: tuple[NamedValue, ...]
    findings: tuple[Explained, ...]
    sources: tuple[SourceFact, ...]
    last_checkpoint: str
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def has_cause(self) -> bool:
        return bool(self.category)

    @property
    def is_answered(self) -> bool:
        """Whether the evidence says how the run ended, well or not."""
        return self.certainty != UNKNOWN


def build_postmortem(evidence: Evidence, *, name: str, context: FindingContext | None = None) -> Postmortem:
    """Fill the template from evidence."""
    findings = explain(evidence, context)
    timeline = build_timeline(evidence)
    series = step_series(evidence)
    top = next((one for one in findings if one.severity != "info"), None)
    verdict, certainty, category = _root_cause(evidence, timeline, top)
    return Postmortem(
        name=name, verdict=redacted(verdict), certainty=certainty, category=category,
        symptoms=tuple(_symptoms(evidence, top, series)), timeline=timeline,
        environment=tuple(_environment(evidence)), resources=tuple(_resources(evidence)),
        bottleneck=tuple(_bottleneck(evidence, series)), findings=tuple(findings), sources=tuple(evidence.sources),
        last_checkpoint=_last_checkpoint(evidence), missing=tuple(missing(evidence)),
        notes=tuple(redacted(note) for note in (*timeline.notes, *evidence.notes)),
    )  # fmt: skip


def _root_cause(evidence: Evidence, timeline: Timeline, top: Explained | None) -> tuple[str, str, str]:
    if top is not None and top.rule.id == "cause-not-shown":
        return f"Not enough evidence: {top.seen.message[0].lower()}{top.seen.message[1:]}.", UNKNOWN, ""
    if top is not None:
        cause = CAUSES.get(top.rule.id)
        category = cause.category if cause else _CATEGORY_OF_ROLE.get(top.rule.role, "code")
        return top.seen.message, top.seen.certainty, _CATEGORIES[category]
    if _is_finished(evidence):
        return "The run finished, and nothing that was read explains a loss of time.", "likely", ""
    if timeline.cause:
        cause = CAUSES[timeline.cause]
        return f"The run ended by {cause.words}.", "likely", _CATEGORIES[cause.category]
    return "Not enough evidence: nothing that was read says why the run ended.", UNKNOWN, ""


def _is_finished(evidence: Evidence) -> bool:
    states = [job.state for job in evidence.jobs if job.state]
    return any(one.kind == "finished" for one in evidence.happenings) or (bool(states) and set(states) == {"COMPLETED"})


def _symptoms(evidence: Evidence, top: Explained | None, series: StepSeries) -> Iterator[NamedValue]:
    planned = setting(evidence, "steps") or setting(evidence, "num_steps")
    last = series.numbers[-1] if series.numbers else None
    expected = f"{planned} steps" if planned else "all steps"
    yield NamedValue(name="expected", value=f"{expected}, then a clean end (exit code 0)")
    seen = "no step was read" if last is None else f"last step read: {last}"
    codes = sorted({
        str(one.values.get("exit_code", one.values.get("code")))
        for one in evidence.happenings if one.kind == "exited" and {"exit_code", "code"} & set(one.values)
    })  # fmt: skip
    states = sorted({job.state for job in evidence.jobs if job.state})
    ends = [f"state {', '.join(states)}"] if states else []
    ends += [f"exit code {', '.join(code.removesuffix('.0') for code in codes)}"] if codes else []
    if _is_finished(evidence) and not ends:
        ends = ["finished"]
    yield NamedValue(name="observed", value="; ".join([seen, *ends]))
    predicted_s, median_s = _predicted_step_s(evidence), series.median_s
    if median_s is not None:
        compared = "" if predicted_s is None else f" (predicted: {units.format(predicted_s, units.SECONDS)})"
        yield NamedValue(name="step time", value=f"{units.format(median_s, units.SECONDS)}{compared}", how="median")
    if top is not None and top.rule.role == "ended" and top.seen.ranks:
        shown = ", ".join(map(str, top.seen.ranks[:8])) + (", ..." if len(top.seen.ranks) > 8 else "")
        yield NamedValue(name="first rank", value=shown, how="where the end began")


def _predicted_step_s(evidence: Evidence) -> float | None:
    document: Any = evidence.prediction or {}
    for name in ("step_time_s", "step_s"):
        value = document.get(name)
        if isinstance(value, int | float):
            return float(value)
    return None


def _environment(evidence: Evidence) -> Iterator[NamedValue]:
    for name, value in sorted(evidence.versions.items()):
        yield NamedValue(name=name, value=redacted(value), how="version")
    for name in ("model", "system", "accelerator", "num_ranks", "num_nodes", "precision", "mbs", "gbs", "seq"):
        entry = setting(evidence, name)
        if entry:
            yield NamedValue(name=name, value=redacted(entry), how="setting")
    for name, value in visible_variables(evidence.environment).items():
        yield NamedValue(name=name, value=value, how="variable")


def _main_job(evidence: Evidence) -> JobFact | None:
    return next((job for job in evidence.jobs if "." not in job.job_id), evidence.jobs[0] if evidence.jobs else None)


def _resources(evidence: Evidence) -> Iterator[Resource]:
    job = _main_job(evidence)
    reported = len({one.rank for one in evidence.steps if one.rank is not None})
    total = num_ranks(evidence)
    if reported or setting(evidence, "num_ranks"):
        yield Resource(name="ranks", requested=str(total), used=f"{reported} reported steps")
    if job is not None:
        yield from _job_resources(job, evidence)
    memory = [one.memory_bytes for one in evidence.steps if one.memory_bytes is not None]
    totals = [one.memory_total_bytes for one in evidence.device_samples if one.memory_total_bytes]
    if memory:
        of = units.format(max(totals), units.BYTES) if totals else UNKNOWN
        yield Resource(name="device memory", requested=of, used=units.format(max(memory), units.BYTES), note="peak")


def _job_resources(job: JobFact, evidence: Evidence) -> Iterator[Resource]:
    peaks = [one.peak_memory_bytes for one in evidence.jobs if one.peak_memory_bytes is not None]
    cpu_times = [one.cpu_time_s for one in evidence.jobs if one.cpu_time_s is not None]
    if job.num_nodes is not None:
        names = f" ({', '.join(job.nodes[:4])}{', ...' if len(job.nodes) > 4 else ''})" if job.nodes else ""
        yield Resource(name="nodes", requested=str(job.num_nodes), used=f"{len(job.nodes) or UNKNOWN}{names}")
    if job.num_gpus is not None:
        use = [one.use_frac for one in evidence.device_samples if one.use_frac is not None and one.device != "host"]
        used = f"{statistics.fmean(use):.0%} busy on average" if use else UNKNOWN
        yield Resource(name="GPUs", requested=str(job.num_gpus), used=used)
    if job.num_cpus is not None:
        used = UNKNOWN
        if cpu_times and job.elapsed_s:
            used = f"{max(cpu_times) / job.elapsed_s:.1f} cores on average"
        yield Resource(name="CPU cores", requested=str(job.num_cpus), used=used)
    if job.requested_memory_bytes is not None or peaks:
        requested = (
            UNKNOWN if job.requested_memory_bytes is None else units.format(job.requested_memory_bytes, units.BYTES)
        )
        used = units.format(max(peaks), units.BYTES) if peaks else UNKNOWN
        yield Resource(
            name="host memory", requested=requested, used=used, note="largest task, sampled" if peaks else ""
        )
    if job.limit_s is not None or job.elapsed_s is not None:
        limit = UNKNOWN if job.limit_s is None else units.format(job.limit_s, units.SECONDS)
        used = UNKNOWN if job.elapsed_s is None else units.format(job.elapsed_s, units.SECONDS)
        share = f"{job.elapsed_s / job.limit_s:.0%} of the limit" if job.limit_s and job.elapsed_s is not None else ""
        yield Resource(name="time", requested=limit, used=used, note=share)
    if job.submitted_at_s is not None and job.started_at_s is not None:
        waited_s = job.started_at_s - job.submitted_at_s
        yield Resource(name="queue", requested="–", used=f"{units.format(max(waited_s, 0.0), units.SECONDS)} waited")


def _bottleneck(evidence: Evidence, series: StepSeries) -> Iterator[NamedValue]:
    times = series.times_s
    if times:
        spread = f"{units.format(min(times), units.SECONDS)} to {units.format(max(times), units.SECONDS)}"
        yield NamedValue(name="steady steps", value=f"{len(times)}, {spread}")
    rates = [one.tokens_per_s for one in series.job_steps if one.tokens_per_s is not None]
    if rates:
        per = " per device" if series.job_steps[0].is_per_device else ""
        yield NamedValue(
            name="throughput", value=f"{statistics.median(rates):,.0f} tokens/s{per}", how="median, as reported"
        )
    yield from _shares(evidence, series)
    use = [one.use_frac for one in evidence.device_samples if one.use_frac is not None and one.device != "host"]
    if use:
        yield NamedValue(name="device use", value=f"{statistics.fmean(use):.0%}", how=f"mean of {len(use)} samples")
    power = [one.power_w for one in evidence.device_samples if one.power_w is not None]
    if power:
        yield NamedValue(name="device power", value=units.format(statistics.fmean(power), units.WATTS), how="mean")
    routes = sorted({f"{one.way} between {'nodes' if one.between == 'nodes' else 'devices of a node'}"
                   for one in evidence.transports})  # fmt: skip
    if routes:
        yield NamedValue(name="transport", value=", ".join(routes), how="NCCL's log")


def _shares(evidence: Evidence, series: StepSeries) -> Iterator[NamedValue]:
    whole_s = sum(one.step_s for one in evidence.rank_times)
    if whole_s > 0:
        for name, field in (
            ("compute", "compute_s"), ("exposed communication", "exposed_communication_s"), ("data", "data_s"),
            ("idle", "idle_s"),
        ):  # fmt: skip
            part_s = sum(getattr(one, field) for one in evidence.rank_times)
            yield NamedValue(name=name, value=f"{part_s / whole_s:.0%} of the step", how="profiled steps of all ranks")
        return
    for name in ("data", "communication", "checkpoint", "validation", "optimizer", "generation", "training"):
        pairs = [(one.parts_s[name], one.time_s) for one in series.job_steps if name in one.parts_s and one.time_s]
        if pairs:
            frac = sum(part for part, _ in pairs) / sum(time_s for _, time_s in pairs)
            yield NamedValue(name=name, value=f"{frac:.0%} of the step", how=f"{len(pairs)} steps")


def _last_checkpoint(evidence: Evidence) -> str:
    named = [str(one.values["last_checkpoint"]) for one in evidence.happenings if one.values.get("last_checkpoint")]
    saved = evidence.of_kind("checkpoint_saved")
    if named:
        return named[-1]
    if saved:
        step = f"step {saved[-1].step}" if saved[-1].step is not None else redacted(saved[-1].message[:120])
        return f"{step} ({saved[-1].spot.file})"
    return ""


def countermeasures(postmortem: Postmortem) -> Sequence[Explained]:
    """Findings that call for a change, most valuable first."""
    return [one for one in postmortem.findings if one.severity != "info"][:MOST_CAUSES]
