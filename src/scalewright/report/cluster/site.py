"""Site profiles as tables: their values, sources and confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape

from scalewright.records.types import Finding
from scalewright.report.console import plain_table
from scalewright.sites.types import Site, SiteSource
from scalewright.sites.walltime import format_walltime

VERIFIED = {
    "run": "run by a real scheduler in the tests",
    "golden": "untested: its script is only compared as text",
    "detected": "untested: made from the scheduler's output",
}


def print_sites(console: Console, sites: Sequence[Site]) -> None:
    table = plain_table("site", "GPUs/node", "selected by", "launcher", "low", right=("GPUs/node", "low"))
    for site in sites:
        gpus = "?" if site.gpus_per_node is None else str(site.gpus_per_node.value)
        by = [word for word in (site.select.partition, site.select.qos, site.select.constraint) if word]
        table.add_row(site.id, gpus, escape(", ".join(by)) or "-", site.launcher, str(len(site.low_confidence())))
    console.print(table)
    console.print("\nlow: values of low confidence. One profile: scalewright site show NAME")


def print_site(console: Console, site: Site) -> None:
    console.print(f"[bold]{escape(site.name)}[/]  {escape(site.operator)}")
    console.print(escape(f"{VERIFIED[site.verified]}; catalogue system {site.system or 'none'}"), style="dim")
    table = plain_table("", "", "from", header=False)
    for key, value, source in _rows(site):
        table.add_row(escape(key), escape(value), _mark(source, site))
    console.print(table)
    for title, lines in (("note", site.notes), ("conflict", site.conflicts), ("not verified", site.unverified)):
        for line in lines:
            console.print(escape(f"{title}: {line}"))
    console.print()
    for key, source in site.sources.items():
        dated = f", of {source.dated}" if source.dated else ""
        low = " [yellow]low confidence[/]" if source.confidence == "low" else ""
        console.print(f"{escape(key)} ({source.kind}{dated}, checked {source.checked}){low}: {escape(source.text)}")
    lows = site.low_confidence()
    if lows:
        console.print(f"\n[yellow]low confidence[/]: {escape(', '.join(key for key, _ in lows))}")


def _mark(source: SiteSource, site: Site) -> str:
    key = next((name for name, other in site.sources.items() if other == source), "")
    return escape(key) + (" [yellow]low[/]" if source.confidence == "low" else "")


def _rows(site: Site) -> Iterator[tuple[str, str, SiteSource]]:
    if site.billing is not None:
        words = f"{site.billing.per_node_hour:g} {site.billing.unit} for a node and hour"
        yield "billing", words, site.billing.source
    for name in ("gpu", "gpus_per_node", "cpus_per_gpu", "memory_gb_per_gpu", "arch", "slurm", "internet", "scratch"):
        fact = getattr(site, name)
        if fact is not None:
            yield name, _shown(fact.value) + _note(fact.note), fact.source
    account = site.account
    required = "required" if account.required else "not required"
    yield "account", f"{required}{', ' + account.form if account.form else ''}", account.source
    select = " ".join(f"{k}={v}" for k in ("partition", "qos", "constraint") if (v := getattr(site.select, k)))
    must = f"; mandatory: {', '.join(site.select.mandatory)}" if site.select.mandatory else ""
    yield "selection", f"{select or 'the default partition'}{must}", site.select.source
    for partition in site.partitions:
        yield f"partition {partition.name}", _limits(partition) + _note(partition.note), partition.source
    for qos in site.qos:
        yield f"qos {qos.name}", _limits(qos) + _note(qos.note), qos.source
    for size in site.size_bins:
        span = f"{size.min_nodes}-{size.max_nodes} nodes"
        yield span, f"at most {format_walltime(size.max_time)}", size.source
    for rule in site.forbidden:
        yield f"never {rule.flag}", rule.why, rule.source
    for launcher, layout in site.layouts.items():
        words = " ".join((*layout.sbatch, *(("; srun", *layout.srun) if layout.srun else ())))
        yield f"layout {launcher}", words.replace(" ;", ";") + _note(layout.note), layout.source
    for binding in site.bindings:
        where = f" in {', '.join(binding.partitions)}" if binding.partitions else ""
        yield f"binding {binding.launcher}", f"{binding.cpu_bind}{where}{_note(binding.note)}", binding.source
    for setting in site.env:
        yield setting.name, setting.value + _note(setting.note), setting.source
    for transport in site.transports:
        yield f"transport {transport.id}", ", ".join((*transport.modules, *transport.sbatch)), transport.source
    for runtime in site.runtimes:
        modules = f", modules {' '.join(runtime.modules)}" if runtime.modules else ""
        yield f"container {runtime.kind}", f"{runtime.command}{modules}{_note(runtime.note)}", runtime.source
    yield (
        "node-local",
        f"{site.node_local.path} ({site.node_local.kind}){_note(site.node_local.note)}",
        (site.node_local.source),
    )


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _note(text: str) -> str:
    return f" ({text})" if text else ""


def _limits(rule: object) -> str:
    words = []
    if (longest := getattr(rule, "max_time", None)) is not None:
        words.append(f"at most {format_walltime(longest)}")
    if (nodes := getattr(rule, "max_nodes", None)) is not None:
        words.append(f"{nodes} nodes")
    if getattr(rule, "min_nodes", 1) > 1:
        words.append(f"{getattr(rule, 'min_nodes', 1)} nodes or more")
    if (cpus := getattr(rule, "max_cpus", None)) is not None:
        words.append(f"{cpus} CPUs")
    if (jobs := getattr(rule, "max_jobs", None)) is not None:
        words.append(f"{jobs} jobs")
    if not getattr(rule, "has_gpus", True):
        words.append("no GPUs")
    if not getattr(rule, "whole_node", True):
        words.append("shared nodes")
    return ", ".join(words) or "-"


def print_differences(console: Console, site: Site, cluster: str, findings: Sequence[Finding]) -> None:
    if not findings:
        console.print(f"{site.id} agrees with cluster {escape(cluster)} in every value that both have")
    for finding in findings:
        console.print(f"[yellow]differs[/] {escape(finding.message)}: {escape(finding.next_step)}")
