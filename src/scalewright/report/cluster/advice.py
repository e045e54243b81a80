"""Advice about a queue, as text and as JSON documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.launch.advise.pending import PendingJob
from scalewright.launch.advise.ranking import Advice, Offer
from scalewright.launch.advise.run_times import PlannedRun
from scalewright.records.documents import document
from scalewright.report.console import plain_table
from scalewright.sites.pending import SOURCE
from scalewright.sites.walltime import format_walltime
from scalewright.units import SECONDS
from scalewright.units import format as shown


def print_advice(console: Console, advice: Advice, run: PlannedRun, *, top: int) -> None:
    best, original = advice.best, advice.original
    if advice.helps:
        console.print(f"[bold]request {_words(best)}[/]: {_why(best, original)}", soft_wrap=True)
    else:
        console.print("[bold]keep the request[/]: no other request gives the result sooner", soft_wrap=True)
    console.print(f"  {_flags(best, run)}", soft_wrap=True)
    right = ("wait", "run", "jobs", "done in", "nodes", "limit")
    table = plain_table("", "nodes", "partition", "limit", "wait", "run", "jobs", "done in", right=right)
    rows = list(advice.offers[:top])
    if original not in rows:
        rows.append(original)
    for offer in rows:
        mark = "original" if offer.request == original.request else ""
        table.add_row(
            mark, str(offer.request.num_nodes), escape(offer.request.partition), format_walltime(offer.request.limit_s),
            "refused" if offer.refusal else _time(offer.wait_s), _time(offer.count.run_s), str(offer.num_jobs),
            "-" if offer.refusal else _time(offer.total_s),
        )  # fmt: skip
    console.print()
    console.print(table)
    if original.refusal:
        console.print(f"\nthe original request is refused: {escape(original.refusal)}", soft_wrap=True)
    console.print()
    console.print(
        f"{advice.num_considered} requests compared, {advice.num_tested} of them tested with sbatch --test-only",
        soft_wrap=True,
    )  # fmt: skip
    for note in advice.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)


def _words(offer: Offer) -> str:
    nodes = f"{offer.request.num_nodes} node{'s' if offer.request.num_nodes > 1 else ''}"
    return f"{nodes} of {escape(offer.request.partition)} for {format_walltime(offer.request.limit_s)}"


def _why(best: Offer, original: Offer) -> str:
    if original.refusal:
        return "the original request is refused"
    earlier, longer = original.wait_s - best.wait_s, best.count.run_s - original.count.run_s
    parts = [f"starts {_time(abs(earlier))} {'sooner' if earlier >= 0 else 'later'}"]
    if abs(longer) >= 1.0:
        parts.append(f"runs {_time(abs(longer))} {'longer' if longer > 0 else 'shorter'}")
    if best.num_jobs > 1:
        parts.append(f"in {best.num_jobs} jobs that each wait")
    return f"{', '.join(parts)}: you get the result {_time(original.total_s - best.total_s)} sooner"


def _flags(offer: Offer, run: PlannedRun) -> str:
    """The options to write into the script."""
    flags = [
        f"--nodes={offer.request.num_nodes}",
        f"--partition={escape(offer.request.partition)}",
        f"--time={format_walltime(offer.request.limit_s)}",
        f"--time-min={format_walltime(min(run.least_s(offer.count), offer.request.limit_s))}",
    ]
    memory = run.memory_request_gib()
    return " ".join(flags + ([f"--mem={memory}G"] if memory is not None else []))


def advice_document(advice: Advice, run: PlannedRun, *, site: str) -> dict[str, Any]:
    return document(
        "advice",
        {
            "site": site,
            "plan": run.plan_id,
            "helps": advice.helps,
            "best": _offer_dict(advice.best, run),
            "original": _offer_dict(advice.original, run),
            "offers": [_offer_dict(offer, run) for offer in advice.offers],
            "refused": [_offer_dict(offer, run) for offer in advice.refused],
            "num_considered": advice.num_considered,
            "num_tested": advice.num_tested,
            "basis": run.basis,
            "notes": list(advice.notes),
        },
    )


def _offer_dict(offer: Offer, run: PlannedRun) -> dict[str, Any]:
    memory = run.memory_request_gib()
    return {
        "num_nodes": offer.request.num_nodes,
        "partition": offer.request.partition,
        "limit_s": offer.request.limit_s,
        "time_min_s": min(run.least_s(offer.count), offer.request.limit_s),
        "memory_per_node_bytes": None if memory is None else memory * units.GIB,
        "num_jobs": offer.num_jobs,
        "wait_s": offer.wait_s,
        "planned_wait_s": offer.planned_wait_s,
        "tested_wait_s": offer.tested_wait_s,
        "run_s": offer.count.run_s,
        "time_to_result_s": offer.total_s,
        "layout": offer.count.layout,
        "refusal": offer.refusal,
    }


def print_pending(console: Console, pending: PendingJob) -> None:
    job, reason = pending.job, pending.reason
    console.print(
        f"[bold]job {escape(job.id)} waits[/] ({escape(job.reason)}): {escape(reason.meaning)}", soft_wrap=True
    )
    console.print(
        f"{job.num_nodes} nodes of {escape(','.join(job.partitions))} for {format_walltime(int(job.limit_s))}, "
        f"priority {job.priority}: {pending.ahead} jobs with {pending.nodes_ahead} nodes are ahead", soft_wrap=True,
    )  # fmt: skip
    if pending.wait_s is not None:
        planned = f"; the scheduler plans {escape(job.start)}" if job.start not in ("N/A", "") else ""
        console.print(
            f"starts in {_time(pending.wait_s)} at the latest, if no job of higher priority arrives{planned}",
            soft_wrap=True,
        )
    if reason.remedy:
        console.print(f"what helps: {escape(reason.remedy.replace('ID', job.id))}", soft_wrap=True)
    if pending.change is not None:
        change = pending.change
        console.print(
            f"smallest change that helps: with {escape(change.text)} it starts {_time(change.saves_s)} sooner, "
            f"in {_time(change.wait_s)}", soft_wrap=True,
        )  # fmt: skip
        console.print(f"  {escape(change.command)}", soft_wrap=True)
    elif pending.wait_s is not None and not reason.remedy:
        console.print("a shorter limit, another partition or fewer nodes would not help: wait", soft_wrap=True)
    console.print(f"source of the reasons: {SOURCE}", soft_wrap=True)


def pending_document(pending: PendingJob) -> dict[str, Any]:
    return document("pending", {**asdict(pending), "source": SOURCE})


def _time(seconds: float) -> str:
    return shown(seconds, SECONDS) if seconds else "0 s"
