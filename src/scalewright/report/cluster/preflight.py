"""The result of a pre-flight check as tables: verdict, map of ranks, transports, all-reduce times and findings."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright.here.topology import cpu_list
from scalewright.report.console import plain_table
from scalewright.units import SECONDS
from scalewright.units import format as shown

COLOUR = {"error": "red", "warning": "yellow", "info": "dim"}
VERDICT = {0: "ready", 1: "wrong request", 75: "bad nodes"}
FAST = ("infiniband", "roce", "slingshot")
MAX_ROWS = 16


def print_preflight(console: Console, result: dict[str, Any], *, where: str) -> None:
    word = VERDICT.get(int(result["code"]), "unknown")
    console.print(f"[bold]{word}[/]: {escape(result['reason'])} ({shown(result['elapsed_s'], SECONDS)})")
    if result["spare"] and result["code"] == 0:
        console.print(f"spare: {escape(', '.join(result['spare']))}")
    _print_map(console, result["ranks"])
    _print_transports(console, result["transports"])
    _print_warm_up(console, result["warm_up"])
    for finding in result["findings"]:
        colour = COLOUR[finding["severity"]]
        console.print(f"\n[{colour}]{finding['severity']}[/] {escape(finding['rule'])}: {escape(finding['message'])}")
        if finding["next_step"]:
            console.print(f"  {escape(finding['next_step'])}")
    for path in result["untested"]:
        console.print(f"\nuntested: {escape(path)}")
    console.print(f"\nwritten to {escape(where)}", soft_wrap=True)


def _print_map(console: Console, ranks: list[dict[str, Any]]) -> None:
    if not ranks:
        return
    table = plain_table("rank", "node", "device", "numa", "cpus", "ports", title="map", right=("rank",))
    for rank in ranks[:MAX_ROWS]:
        gpu = rank["gpu"]
        near = [n["name"] for n in rank["nics"] if n["kind"] in FAST and n["is_up"]]
        mine = [n["name"] for n in rank["nics"] if gpu and n["numa"] == gpu["numa"] and n["name"] in near]
        table.add_row(
            str(rank["rank"]),
            escape(rank["host"]),
            escape("CPU" if gpu is None else f"{gpu['name']} {gpu['bus']}"),
            _numa_text(rank),
            escape(cpu_list(rank["cpus"])),
            escape(", ".join(mine or near) or ", ".join(n["name"] for n in rank["nics"] if n["is_up"]) or "none"),
        )
    console.print()
    console.print(table)
    if len(ranks) > MAX_ROWS:
        console.print(f"... and {len(ranks) - MAX_ROWS} more in the result")


def _numa_text(rank: dict[str, Any]) -> str:
    mine = set(rank["cpus"])
    nodes = sorted(int(node) for node, cpus in rank["cpus_of_numa"].items() if mine & set(cpus))
    cpus = ",".join(map(str, nodes)) or "?"
    gpu = rank["gpu"]
    return cpus if gpu is None or gpu["numa"] < 0 else f"{gpu['numa']} / {cpus}"


def _print_transports(console: Console, transports: list[dict[str, Any]]) -> None:
    num_ranks: dict[tuple[str, ...], int] = {}
    for transport in transports:
        routes = ", ".join(transport["routes"]) or "no other rank"
        key = (transport["library"], transport["version"], transport["provider"], routes)
        num_ranks[key] = num_ranks.get(key, 0) + 1
    for (library, version, provider, routes), count in num_ranks.items():
        by = f", provider {provider}" if provider else ""
        console.print(f"\ntransport: {library} {escape(version)}{by}: {escape(routes)} ({count} ranks)")


def _print_warm_up(console: Console, warm_up: dict[str, Any]) -> None:
    nodes, pairs = warm_up["node_s"], [p["time_s"] for p in warm_up["pairs"]]
    rows = [
        ("inside a node", min(nodes.values(), default=None), max(nodes.values(), default=None), "expected_node_s"),
        ("two nodes", min(pairs, default=None), max(pairs, default=None), "expected_pair_s"),
        ("all ranks", warm_up["world_s"], warm_up["world_s"], "expected_world_s"),
    ]
    if all(row[2] is None for row in rows):
        return
    right = ("fastest", "slowest", "expected")
    table = plain_table("warm-up", *right, title="all-reduce", right=right)
    for name, fastest, slowest, key in rows:
        if slowest is not None and fastest is not None:
            expected = warm_up[key]
            table.add_row(
                name, shown(fastest, SECONDS), shown(slowest, SECONDS),
                "unknown" if expected is None else shown(expected, SECONDS),
            )  # fmt: skip
    console.print()
    console.print(table)
