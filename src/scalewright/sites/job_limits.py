"""What a site allows one job: its longest time and its most nodes."""

from __future__ import annotations

from scalewright.sites.types import Site


def longest_s(site: Site, *, partition: str, qos: str, num_nodes: int) -> tuple[int, str] | None:
    """The time limit for a job of that size, and the rule that sets it; None if the profile has no limit."""
    limits: list[tuple[int, str]] = []
    chosen = site.each_partition(partition)
    limits += [(rules.max_time, f"partition {rules.name}") for rules in chosen if rules.max_time is not None]
    if not qos and (normal := site.find_qos("normal")) is not None:
        limits += [] if normal.max_time is None else [(normal.max_time, "QOS normal")]
    if (named := site.find_qos(qos)) is not None and named.max_time is not None:
        limits.append((named.max_time, f"QOS {named.name}"))
    for size in site.size_bins:
        if size.partition in ("", *partition.split(",")) and size.min_nodes <= num_nodes <= size.max_nodes:
            limits.append((size.max_time, f"{size.min_nodes} to {size.max_nodes} nodes"))
    return min(limits, default=None)


def most_nodes(site: Site) -> int | None:
    """The most nodes of a job in the site's usual partition and QOS; None if the profile has no limit.

    Where the profile names no usual partition, it is what the largest one allows.
    """
    usual, qos = site.select.partition, site.find_qos(site.select.qos or "normal")
    sizes = [size.max_nodes for size in site.size_bins if not usual or size.partition in ("", *usual.split(","))]
    limits = [max(sizes)] if sizes else []
    named = [rule.max_nodes for rule in (site.each_partition(usual) if usual else site.partitions)]
    known = [limit for limit in named if limit is not None]
    if usual:
        limits += known
    elif known and len(known) == len(named):
        limits.append(max(known))
    if qos is not None and qos.max_nodes is not None:
        limits.append(qos.max_nodes)
    return min(limits, default=None)
