"""A pre-flight check for people: the verdict, who sits where, how they talk, how fast, and what is wrong."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright.report.console import plain_table
from scalewright.units import SECONDS
from scalewright.units import format as shown

COLOUR = {"error": "red", "warning": "yellow", "info": "dim"}
VERDICT = {0: "ready", 1: "asked for wrongly", 75: "not on these nodes"}
FAST = ("infiniband", "roce", "slingshot")
MAX_ROWS = 16


def print_preflight(console: Console, result: dict[str, Any], *, where: str) -> None:
    word = VERDICT.get(int(result["code"]), "unknown")
    console.print(f"[bold]{word}[/]: {escape(result['reason'])} ({shown(result['elapsed_s'], SECONDS)})")
    if result["spare"] and result["code"] == 0:
        console.print(f"spare: {escape(', '.join(result['spare']))}")
    _print_map(console, result["ranks"])
    _print_ways(console, result["transports"])
    _print_warm_up(console, result["warm_up"])
    for found in result["findings"]:
        colour = COLOUR[found["severity"]]
        console.print(f"\n[{colour}]{found['severity']}[/] {escape(found['rule'])}: {escape(found['message'])}")
        if found["next_step"]:
            console.print(f"  {escape(found['next_step'])}")
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
            escape(_cpu_text(rank["cpus"])),
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


def _cpu_text(cpus: list[int]) -> str:
    """Ranges, as the kernel writes them."""
    pieces: list[list[int]] = []
    for cpu in sorted(cpus):
        if pieces and cpu == pieces[-1][1] + 1:
            pieces[-1][1] = cpu
        else:
            pieces.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces)


def _print_ways(console: Console, transports: list[dict[str, Any]]) -> None:
    seen: dict[tuple[str, ...], int] = {}
    for told in transports:
        key = (told["library"], told["version"], told["provider"], ", ".join(told["routes"]) or "nobody to talk to")
        seen[key] = seen.get(key, 0) + 1
    for (library, version, provider, ways), count in seen.items():
        by = f", provider {provider}" if provider else ""
        console.print(f"\ntransport: {library} {escape(version)}{by}: {escape(ways)} ({count} ranks)")


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
                "not known" if expected is None else shown(expected, SECONDS),
            )  # fmt: skip
    console.print()
    console.print(table)
