"""What a run with rollouts came to: where each role's time went, what was carried and wasted, and findings about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalewright import units
from scalewright.observe.lanes import Axis, Key, add_to, axis_of, lane_of, on_axis, segments_of, slice_edges, window_of
from scalewright.records.hybrid import HybridRecord, RoleSpan, SpanKind, read_hybrid, read_timeline
from scalewright.records.hybrid_report import HybridShown, LaneShown, RestartShown, RoleUse, SyncUse
from scalewright.records.run_directory import RunDirectory

MAX_LANES = 4
"""Ranks of a role that are drawn."""
ROLES = ("controller", "trainer", "engine", "sandbox", "supervisor")
"""From top to bottom; others below."""
LEAST_IDLE_FRAC = 0.10
"""Less waiting is no finding."""
MOST_FRAC = 0.9
"""A reason with this share of the waiting is the only one that is named."""
MAX_REASONS = 2
LEAST_OTHER_FRAC = 0.01
"""Smaller parts of the waiting are not named."""
LEAST_WASTE_FRAC = 0.02


def hybrid_shown(directory: RunDirectory) -> HybridShown | None:
    """What the record and the timeline of a run say; None where it has none."""
    record = read_hybrid(directory)
    return None if record is None else summarized(record, read_timeline(directory))


def summarized(record: HybridRecord, spans: Sequence[RoleSpan]) -> HybridShown:
    outcomes: Counter[str] = Counter()
    staleness: Counter[int] = Counter()
    for step in record.steps:
        outcomes.update(step.sandbox_outcomes)
        staleness.update(step.num_trained_by_staleness)
    axis = axis_of(spans) if spans else Axis(pauses=(), begins_s=0.0)
    times = on_axis(spans, axis)
    total_s = max((span.end_s for span in times), default=sum(step.wall_s for step in record.steps))
    worked = [span for span in times if span.kind != "restart"]
    restarts = tuple(_restarts(times))
    window = window_of(worked, total_s=total_s, restarts=[one.at_s for one in restarts]) if worked else None
    edges = slice_edges(worked, total_s=total_s)
    lanes = [
        lane_of(role, rank, segments_of(own), edges=edges, window=window)
        for (role, rank), own in _by_rank(worked).items()
    ]
    drawn = [lane for lane in lanes if lane.rank in sorted(o.rank for o in lanes if o.role == lane.role)[:MAX_LANES]]
    shown = HybridShown(
        settings=record.settings, total_s=total_s, lanes=tuple(drawn), num_left_out=len(lanes) - len(drawn),
        roles=tuple(_roles(lanes)), window=window, pauses=axis.marks, restarts=restarts, slice_edges=edges,
        iterations=tuple(record.steps), syncs=tuple(_syncs(record)), gains=tuple(record.gains),
        sandbox_outcomes=dict(outcomes.most_common()), num_by_staleness=dict(sorted(staleness.items())),
    )  # fmt: skip
    return _with_findings(shown, lanes)


def _by_rank(spans: Sequence[RoleSpan]) -> dict[tuple[str, int], list[RoleSpan]]:
    by_rank: dict[tuple[str, int], list[RoleSpan]] = {}
    for span in spans:
        by_rank.setdefault((span.role, span.rank), []).append(span)
    order = {role: place for place, role in enumerate(ROLES)}
    return dict(sorted(by_rank.items(), key=lambda item: (order.get(item[0][0], len(ROLES)), item[0])))


def _roles(lanes: Sequence[LaneShown]) -> Iterator[RoleUse]:
    for role in dict.fromkeys(lane.role for lane in lanes):
        own = [lane for lane in lanes if lane.role == role]
        seconds: dict[SpanKind, float] = {}
        waits: dict[str, float] = {}
        for lane in own:
            for kind, value in lane.seconds_by_kind.items():
                add_to(seconds, kind, value)
            for reason, value in lane.waits_s.items():
                add_to(waits, reason, value)
        yield RoleUse(
            role=role, num_ranks=len(own), present_s=sum(lane.present_s for lane in own),
            seconds_by_kind=_largest_first(seconds), waits_s=_largest_first(waits),
        )  # fmt: skip


def _largest_first(values: dict[Key, float]) -> dict[Key, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _restarts(spans: Sequence[RoleSpan]) -> Iterator[RestartShown]:
    """Restarts that somebody recorded, and second attempts of ranks of which nobody did."""
    recorded = [span for span in spans if span.kind == "restart"]
    named = {span.of for span in recorded}
    restarts = [
        RestartShown(at_s=span.start_s, of=span.of, took_s=span.seconds, detail=span.detail) for span in recorded
    ]
    first: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    for span in spans:
        key = (span.lane, span.attempt)
        first[key] = min(first.get(key, span.start_s), span.start_s)
        ended[key] = max(ended.get(key, span.end_s), span.end_s)
    for (lane, attempt), start_s in first.items():
        role, _, rank = lane.rpartition("-")
        if role == "trainer" and rank != "0":
            continue  # the trainer's ranks are started together
        if attempt and not named & {lane, role}:
            before_s = ended.get((lane, attempt - 1))
            took_s = None if before_s is None else max(start_s - before_s, 0.0)
            restarts.append(RestartShown(at_s=start_s, of=role if role == "trainer" else lane, took_s=took_s))
    return iter(sorted(restarts, key=lambda one: one.at_s))


def _syncs(record: HybridRecord) -> Iterator[SyncUse]:
    for way in dict.fromkeys(sync.way for sync in record.syncs):
        own = [sync for sync in record.syncs if sync.way == way]
        yield SyncUse(
            way=way, count=len(own), bytes=sum(sync.bytes for sync in own), seconds=sum(sync.seconds for sync in own)
        )


def _with_findings(shown: HybridShown, lanes: Sequence[LaneShown]) -> HybridShown:
    findings = (
        *_idle_findings(lanes), *_rollout_findings(shown), *_staleness_findings(shown), *_gain_findings(shown),
        *_sync_findings(shown), *_restart_findings(shown), *_sandbox_findings(shown),
    )  # fmt: skip
    return replace(shown, findings=findings)


def _idle_findings(lanes: Sequence[LaneShown]) -> Iterator[str]:
    """Who waited longest of each role that computes, and for what."""
    for role in ("trainer", "engine"):
        own = [lane for lane in lanes if lane.role == role and lane.present_s]
        if not own:
            continue
        most = max(own, key=lambda lane: round(lane.idle_frac, 3))  # of equal ones the first
        if most.idle_frac < LEAST_IDLE_FRAC:
            continue
        text = f"{most.title} waited {_percent(most.idle_frac)} of the time"
        waits = sorted(((s / most.present_s, reason) for reason, s in most.waits_s.items() if reason), reverse=True)
        if waits and waits[0][0] >= MOST_FRAC * most.idle_frac:
            yield f"{text} for {waits[0][1]}"
            continue
        named = [(share, reason) for share, reason in waits[:MAX_REASONS] if share >= LEAST_OTHER_FRAC]
        reasons = [f"{_percent(share)} for {reason}" for share, reason in named]
        other_frac = most.waits_s.get("", 0.0) / most.present_s
        if other_frac >= LEAST_OTHER_FRAC:
            reasons.append(f"{_percent(other_frac)} for no recorded reason")
        yield f"{text}: {', '.join(reasons)}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _rollout_findings(shown: HybridShown) -> Iterator[str]:
    num_carried = [one.num_carried for one in shown.iterations]
    if any(num_carried):
        mean = sum(num_carried) / len(num_carried)
        yield f"{mean:.3g} rollouts of an iteration went on in the next one, in the mean; {max(num_carried)} at most"
    decoded, wasted = shown.num_decoded_tokens, shown.num_wasted_tokens
    if decoded and wasted / decoded >= LEAST_WASTE_FRAC:
        purged = sum(one.num_purged for one in shown.iterations)
        dropped = sum(one.num_dropped for one in shown.iterations)
        why = [f"{purged:,} rollouts reached the limit of {shown.settings.retention} cuts"] if purged else []
        why += [f"{dropped:,} were too stale"] if dropped else []
        yield f"{100.0 * wasted / decoded:.1f} % of the decoded tokens were not trained on" + (
            f": {', '.join(why)}" if why else ""
        )


def _staleness_findings(shown: HybridShown) -> Iterator[str]:
    num = sum(shown.num_by_staleness.values())
    most = max(shown.num_by_staleness, default=0)
    if not num or (not most and not shown.settings.staleness):
        return
    mean = sum(behind * count for behind, count in shown.num_by_staleness.items()) / num
    text = f"trained rollouts were {mean:.2g} versions old in the mean and {most} at most"
    bound = shown.settings.staleness
    if not bound:
        yield text
    elif most <= bound:
        yield f"{text}; the bound is {bound}"
    else:
        over = sum(count for behind, count in shown.num_by_staleness.items() if behind > bound)
        yield f"{text}: {over:,} of {num:,} were beyond the bound of {bound}"


def _gain_findings(shown: HybridShown) -> Iterator[str]:
    for gain in shown.gains:
        compared = f" ({gain.kind}{': ' + gain.detail if gain.detail else ''})"
        yield (
            f"rollouts were {gain.rollout_gain:.3g} times as fast as waiting for all answers, whole iterations "
            f"{gain.step_gain:.3g} times, at equal trained tokens{compared}"
        )


def _sync_findings(shown: HybridShown) -> Iterator[str]:
    for sync in shown.syncs:
        if sync.way == "copy" or not sync.seconds:
            continue
        size, each = (
            units.format(sync.bytes / sync.count, units.BYTES),
            units.format(sync.seconds / sync.count, units.SECONDS),
        )
        rate = units.format(sync.bytes_per_s, units.BYTES_PER_S)
        yield f"a weight sync by {sync.way} moved {size} in {each}, {rate} in the mean of {sync.count:,}"


def _restart_findings(shown: HybridShown) -> Iterator[str]:
    for of in dict.fromkeys(one.of for one in shown.restarts):
        own = [one for one in shown.restarts if one.of == of]
        known = [one.took_s for one in own if one.took_s is not None]
        times = "once" if len(own) == 1 else f"{len(own)} times"
        took = f" and was away for {units.format(sum(known), units.SECONDS)}" if sum(known) else ""
        yield f"{of.replace('-', ' ')} was restarted {times}{took}"


def _sandbox_findings(shown: HybridShown) -> Iterator[str]:
    num = sum(shown.sandbox_outcomes.values())
    bad = {name: count for name, count in shown.sandbox_outcomes.items() if name != "ok" and count}
    if bad:
        kinds = ", ".join(f"{count:,} by {name}" for name, count in bad.items())
        yield f"{sum(bad.values()):,} of {num:,} rewards ended in a limit of the sandbox or broke: {kinds}"
