"""Rules about where data lies. Each is a function of what was found that yields findings with evidence and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scalewright import units
from scalewright.data.contents import SetContents
from scalewright.data.scan import LARGE_BYTES, FolderScan
from scalewright.launch.placement.reading import ReadingCost
from scalewright.launch.placement.striping import ALL_TARGETS, Striping
from scalewright.records.types import Finding, Rule, Severity

GUIDE = "infrastructure guide, file systems and I/O"
MANY_FILES = 10_000
"""Below this, a set of small files is read into the cache in moments."""
SMALL_MEAN_BYTES = units.MIB
SMALL_SHARD_BYTES = 64 * int(units.MEGA)
CROWDED_FOLDER = 10_000
MAX_STRIPES = 8
"""More targets than this help one file little, and every open asks each of them."""
GOOD_STRIPE_BYTES = 8 * units.MIB
PROGRESSIVE = "lfs setstripe -E 4M -c 1 -E 256M -c 4 -E -1 -c 8 -S 8M"
NOTICEABLE_WAIT_FRAC = 0.02
SLOW_KINDS = ("nfs", "nfs4", "cifs", "fuse.sshfs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedData:
    """Everything that the rules look at."""

    scan: FolderScan
    contents: SetContents
    striping: Striping
    cost: ReadingCost
    num_epochs: int


Check = Callable[[PlacedData], Iterator[Finding]]
RULES: dict[str, tuple[Rule, Check]] = {}


def placement_findings(placed: PlacedData) -> list[Finding]:
    """What should change, most severe first."""
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    findings = [finding for _, check in RULES.values() for finding in check(placed)]
    return sorted(findings, key=lambda one: order[one.severity])


def _rule(rule_id: str, severity: Severity, title: str, why: str, source: str = GUIDE) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        RULES[rule_id] = (Rule(id=rule_id, severity=severity, title=title, why=why, source=source), check)
        return check

    return add


def _finding(rule_id: str, message: str, next_step: str, *, gain: float | None = None, **evidence: object) -> Finding:
    rule = RULES[rule_id][0]
    return Finding(
        rule=rule.id, severity=rule.severity, message=message, evidence=dict(evidence), next_step=next_step,
        expected_gain_frac=gain, source=rule.source,
    )  # fmt: skip


@_rule("small-files", "warning", "many small files on a shared file system",
       "Every file costs requests to a metadata server that all users share; large shards are streamed.")  # fmt: skip
def _small_files(placed: PlacedData) -> Iterator[Finding]:
    scan, cost = placed.scan, placed.cost
    if scan.num_files < MANY_FILES or scan.mean_bytes >= SMALL_MEAN_BYTES:
        return
    gain = 1 - cost.stream_s / cost.in_place_s if cost.in_place_s else None
    yield _finding(
        "small-files",
        f"{scan.num_files:,} files of {_bytes(scan.mean_bytes)} on average: an epoch makes {cost.num_operations:,} "
        f"metadata requests, at least {_time(cost.metadata_s)}",
        _packing_words(placed),
        gain=gain, num_files=scan.num_files, mean_bytes=scan.mean_bytes, num_operations=cost.num_operations,
        metadata_s=cost.metadata_s, stream_s=cost.stream_s,
    )  # fmt: skip


def _packing_words(placed: PlacedData) -> str:
    path = placed.scan.path
    if placed.contents.is_file_each:
        return f"pack them: scalewright data convert {path} SHARDS --to shards (see: scalewright data sizes {path})"
    return 'write fewer, larger files; of a text pipeline: [write] shard = "512 MiB"'


@_rule("small-shards", "info", "shards too small to stream well",
       "A shard is opened once; the larger it is, the longer storage streams before the next open.")  # fmt: skip
def _small_shards(placed: PlacedData) -> Iterator[Finding]:
    scan = placed.scan
    is_shard = scan.main_suffix in (".tar", ".parquet", ".bin", ".npy", ".zst")
    if not is_shard or scan.num_files < 100 or scan.mean_bytes >= SMALL_SHARD_BYTES:
        return
    yield _finding(
        "small-shards", f"{scan.num_files:,} shards of {_bytes(scan.mean_bytes)} on average",
        "make shards of 128 MB to 1 GB (64 MB to 256 MB for validation)",
        num_files=scan.num_files, mean_bytes=scan.mean_bytes,
    )  # fmt: skip


@_rule("few-shards", "warning", "fewer shards than readers",
       "A reader without a shard of its own is idle, or shares one and reads it twice.")  # fmt: skip
def _few_shards(placed: PlacedData) -> Iterator[Finding]:
    scan, cost = placed.scan, placed.cost
    readers = cost.num_ranks * cost.num_loaders
    num_shards = scan.suffixes[".tar"]
    if scan.main_suffix != ".tar" or not 0 < num_shards < readers:
        return
    yield _finding(
        "few-shards",
        f"{num_shards:,} shards for {readers:,} readers ({cost.num_ranks} ranks of {cost.num_loaders} loaders)",
        f"cut it into {2 * readers:,} or more shards: scalewright data convert {scan.path} NEW --to shards",
        num_shards=num_shards, num_readers=readers,
    )  # fmt: skip


@_rule("crowded-folder", "info", "one folder with very many entries",
       "Listing a large folder and creating files in it is served by one metadata server, under one lock.")  # fmt: skip
def _crowded_folder(placed: PlacedData) -> Iterator[Finding]:
    scan = placed.scan
    if scan.most_in_folder < CROWDED_FOLDER or placed.striping.technology == "other":
        return
    yield _finding(
        "crowded-folder", f"{scan.fullest_folder} holds {scan.most_in_folder:,} entries",
        "spread them over folders of a few thousand entries, such as part=0000/, or pack them into shards",
        num_entries=scan.most_in_folder,
    )  # fmt: skip


@_rule("stripes-small-files", "warning", "small files striped over several targets",
       "Opening, sizing and removing a striped file asks every target that it lies on.")  # fmt: skip
def _stripes_small_files(placed: PlacedData) -> Iterator[Finding]:
    scan, count = placed.scan, placed.striping.count_at(placed.scan.mean_bytes)
    if scan.mean_bytes >= 4 * units.MIB or not scan.num_files or count is None or count in (0, 1):
        return
    advice = {
        "lustre": f"lfs setstripe -c 1 {scan.path}",
        "beegfs": f"beegfs-ctl --setpattern --numtargets=1 {scan.path}",
    }
    yield _finding(
        "stripes-small-files",
        f"files of {_bytes(scan.mean_bytes)} on average lie on {_targets(count)} each",
        f"{advice.get(placed.striping.technology, 'set one target')}, then copy the files anew: old ones keep theirs",
        stripe_count=count, mean_bytes=scan.mean_bytes,
    )  # fmt: skip


@_rule("few-stripes", "warning", "large files on too few targets for this many readers",
       "A file on one target is read no faster than that target gives, however many nodes read it.")  # fmt: skip
def _few_stripes(placed: PlacedData) -> Iterator[Finding]:
    scan, striping, nodes = placed.scan, placed.striping, placed.cost.supply.num_nodes
    count = striping.count_at(scan.largest[0][0]) if scan.largest else None
    if count is None or count == ALL_TARGETS or not scan.num_large:
        return
    spread = scan.num_large * count  # files of their own spread over targets as well
    num_needed = min(nodes, striping.num_targets or nodes)
    if spread >= num_needed:
        return
    each = min(-(-num_needed // scan.num_large), MAX_STRIPES)
    if each <= count:
        return
    command = (
        f"{PROGRESSIVE} NEW" if striping.technology == "lustre" else f"beegfs-ctl --setpattern --numtargets={each} NEW"
    )
    yield _finding(
        "few-stripes",
        f"{scan.num_large:,} files of {_bytes(LARGE_BYTES)} or more on {_targets(count)} each, read by {nodes} nodes",
        f"make a folder NEW, {command}, and copy the files into it: striping is set when a file is created",
        stripe_count=count, num_large_files=scan.num_large, num_nodes=nodes, num_targets=striping.num_targets,
    )  # fmt: skip


@_rule("all-stripes", "warning", "files striped over all targets",
       "Every such file waits for the slowest target, and meets every other job there.")  # fmt: skip
def _all_stripes(placed: PlacedData) -> Iterator[Finding]:
    parts = placed.striping.components
    if placed.striping.technology != "lustre" or not parts or parts[0].stripe_count != ALL_TARGETS:
        return
    yield _finding(
        "all-stripes", f"new files in {placed.scan.path} lie on all targets (-c -1), small ones too",
        f"use a progressive layout: {PROGRESSIVE} {placed.scan.path}", stripe_count=ALL_TARGETS,
    )  # fmt: skip


@_rule("stripe-size", "info", "small stripes for large files",
       "A larger stripe lets one request stream longer from one target.")  # fmt: skip
def _stripe_size(placed: PlacedData) -> Iterator[Finding]:
    scan, parts = placed.scan, placed.striping.components
    if placed.striping.technology != "lustre" or not parts or not scan.num_large:
        return
    last = parts[-1]
    if last.stripe_bytes >= 4 * units.MIB or last.stripe_count == 1:
        return
    yield _finding(
        "stripe-size", f"stripes of {_bytes(last.stripe_bytes)} for files of {_bytes(LARGE_BYTES)} or more",
        f"lfs setstripe -S 8M -c {last.stripe_count} NEW, and copy the files into it", stripe_bytes=last.stripe_bytes,
    )  # fmt: skip


@_rule("block-waste", "info", "files smaller than a block",
       "GPFS stores and locks parts of a block: many files of less than a block waste cache and tokens.")  # fmt: skip
def _block_waste(placed: PlacedData) -> Iterator[Finding]:
    scan, block = placed.scan, placed.striping.block_bytes
    if placed.striping.technology != "gpfs" or block is None or scan.num_files < 1000 or scan.mean_bytes >= block:
        return
    yield _finding(
        "block-waste", f"{scan.num_files:,} files of {_bytes(scan.mean_bytes)} in blocks of {_bytes(block)}",
        f"pack them into shards of many blocks (128 MB or more), and read {_bytes(block)} at a time",
        block_bytes=block, mean_bytes=scan.mean_bytes,
    )  # fmt: skip


@_rule("copy-to-nodes", "info", "a copy on the nodes pays",
       "Every node reads the set over the network in each epoch; a copy is read once over the network.")  # fmt: skip
def _copy_to_nodes(placed: PlacedData) -> Iterator[Finding]:
    cost = placed.cost
    if cost.fits is False or cost.break_even_epochs > placed.num_epochs or cost.in_place_s < 60.0:
        return
    saved_s = placed.num_epochs * (cost.in_place_s - cost.local_s) - cost.copy_s
    yield _finding(
        "copy-to-nodes",
        f"copying takes {_time(cost.copy_s)} and pays after {cost.break_even_epochs:.1f} epochs; over "
        f"{placed.num_epochs} epochs it saves {_time(saved_s)} of reading",
        f"copy the set to {cost.supply.local_path} at the start of the job (bench vision: --copy-to)",
        gain=saved_s / (placed.num_epochs * cost.in_place_s), copy_s=cost.copy_s,
        break_even_epochs=cost.break_even_epochs, fits=cost.fits,
    )  # fmt: skip


@_rule("data-wait", "warning", "storage feeds training too slowly",
       "Loaders hide reading only while it is faster than the step.")  # fmt: skip
def _data_wait(placed: PlacedData) -> Iterator[Finding]:
    cost = placed.cost
    if cost.wait_frac is None or cost.wait_frac < NOTICEABLE_WAIT_FRAC:
        return
    limit = "metadata requests" if cost.metadata_s > cost.stream_s else "bandwidth"
    local = "" if cost.local_wait_frac is None else f"; from a copy on the nodes {cost.local_wait_frac:.0%}"
    yield _finding(
        "data-wait", f"{cost.wait_frac:.0%} of training would wait for data, by {limit}{local}",
        f"at most {cost.largest_rate:,.0f} samples/s a rank can be fed in place: pack the files, or copy the set",
        gain=cost.wait_frac - (cost.local_wait_frac or 0.0), wait_frac=cost.wait_frac, largest_rate=cost.largest_rate,
    )  # fmt: skip


@_rule("slow-file-system", "warning", "data on a file system that is not parallel",
       "One server answers all nodes of the job.")  # fmt: skip
def _slow_file_system(placed: PlacedData) -> Iterator[Finding]:
    if placed.striping.file_system in SLOW_KINDS:
        yield _finding(
            "slow-file-system", f"{placed.scan.path} is on {placed.striping.file_system}",
            "copy the set to the site's scratch first", file_system=placed.striping.file_system,
        )  # fmt: skip


def _targets(count: int) -> str:
    return "all targets" if count == ALL_TARGETS else f"{count} target{'s' if count != 1 else ''}"


def _bytes(size: float) -> str:
    return units.format(size, units.BYTES)


def _time(seconds: float) -> str:
    return units.format(seconds, units.SECONDS)
