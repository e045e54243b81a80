"""Advice on placement: real striping from stand-in programs, and findings for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scalewright.launch.placement.rules import RULES
from scalewright.launch.placement.striping import parse_getstripe, read_striping

if TYPE_CHECKING:
    from conftest import Cli, Refused

PLAIN = "stripe_count:  {count} stripe_size:   {size} pattern:       raid0 stripe_offset: -1\n"
PROGRESSIVE = """  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   4194304
      stripe_count:  1       stripe_size:   1048576       pattern:       raid0       stripe_offset: -1
    lcme_extent.e_start: 4194304
    lcme_extent.e_end:   268435456
      stripe_count:  4       stripe_size:   1048576       pattern:       raid0       stripe_offset: -1
    lcme_extent.e_start: 268435456
    lcme_extent.e_end:   EOF
      stripe_count:  -1       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1
"""
OF_FILE = """/lustre/me/shard.tar
lmm_stripe_count:  2
lmm_stripe_size:   1048576
lmm_pattern:       raid0
lmm_stripe_offset: 3
\tobdidx\t\t objid\t\t objid\t\t group
\t     3\t       12\t    0xc\t\t 0
"""
BEEGFS = """Entry type: directory
EntryID: 0-65C0-1
Metadata node: meta01 [ID: 1]
Stripe pattern details:
+ Type: RAID0
+ Chunksize: 512K
+ Number of storage targets: desired: {count}
+ Storage Pool: 1 (Default)
"""
MMLSATTR = """file name:            data
metadata replication: 2 max 2
data replication:     1 max 2
storage pool name:    system
"""
MMLSFS = """flag                value                    description
------------------- ------------------------ -----------------------------------
 -B                 16777216                 Block size
"""


def stand_in(folder: Path, name: str, text: str, *, code: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    (folder / name).write_text(f'#!/bin/sh\ncat "{folder}/{name}.txt"\nexit {code}\n')
    (folder / name).chmod(0o755)


def lustre(folder: Path, getstripe: str, *, num_targets: int = 16) -> None:
    """A `lfs` that answers getstripe and df."""
    stand_in(folder, "lfs", getstripe)
    df = "".join(f"fs-OST{n:04x}_UUID 1 1 1 1% /lustre[OST:{n}]\n" for n in range(num_targets))
    (folder / "df.txt").write_text("fs-MDT0000_UUID 1 1 1 1% /lustre[MDT:0]\n" + df)
    (folder / "lfs").write_text(
        f'#!/bin/sh\ncase "$1" in df) cat "{folder}/df.txt";; getstripe) cat "{folder}/lfs.txt";; *) exit 1;; esac\n'
    )


def put(folder: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
    return folder


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_plain_and_progressive_layouts_are_read() -> None:
    assert [(p.stripe_count, p.stripe_bytes) for p in parse_getstripe(PLAIN.format(count=4, size=8388608))] == [
        (4, 2**23)
    ]
    parts = parse_getstripe(PROGRESSIVE)
    assert [(p.end_bytes, p.stripe_count) for p in parts] == [(2**22, 1), (2**28, 4), (float("inf"), -1)]
    assert [(p.stripe_count, p.stripe_bytes) for p in parse_getstripe(OF_FILE)] == [(2, 2**20)]
    assert parse_getstripe("error: not on a Lustre filesystem") == ()


def test_each_file_system_is_asked_with_its_own_program(tools: Path, tmp_path: Path) -> None:
    assert read_striping(tmp_path).tool == ""
    stand_in(tools, "beegfs-ctl", BEEGFS.format(count=4))
    found = read_striping(tmp_path)
    assert (found.technology, found.block_bytes, found.count_at(1)) == ("beegfs", 512 * 1024, 4)
    stand_in(tools, "mmlsattr", MMLSATTR)
    stand_in(tools, "mmlsfs", MMLSFS)
    found = read_striping(tmp_path)
    assert (found.technology, found.block_bytes, found.num_replicas) == ("gpfs", 2**24, 1)
    lustre(tools, PROGRESSIVE)
    found = read_striping(tmp_path)
    assert (found.technology, found.num_targets, found.is_progressive) == ("lustre", 16, True)
    stand_in(tools, "lfs", "not on a Lustre filesystem", code=22)
    assert read_striping(tmp_path).technology == "gpfs"


def advised(cli: Cli, tools: Path, folder: Path, *options: str, site: str = "lumi") -> tuple[int, dict[str, Any]]:
    """Exit code and document; its findings by their rules."""
    done = cli(
        "data", "advise", str(folder), "--site", site, "--json", *options, env={"PATH": f"{tools}:/usr/bin:/bin"}
    )
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return done.returncode, document | {"rules": {one["rule"]: one for one in document["findings"]}}


def test_small_files_cost_metadata_and_a_copy_pays(cli: Cli, tools: Path, tmp_path: Path) -> None:
    lustre(tools, PLAIN.format(count=4, size=2**20))
    data = put(tmp_path / "images", {f"c{n % 3}/{n}.jpg": 100_000 for n in range(10_000)})
    code, found = advised(cli, tools, data, "--ranks", "64", "--samples-per-s", "1000", "--epochs", "90")
    assert code == 1
    assert {"small-files", "stripes-small-files", "data-wait"} <= set(found["rules"])
    assert found["num_operations_per_epoch"] == 3 * 10_000 + 64 * 4
    assert found["metadata_s"] == pytest.approx(1.0)  # 10,000 files at the usual 10,000 a second
    # 64,000 samples a second are wanted and 10,000 files a second are opened.
    assert found["data_wait_frac"] == pytest.approx(1 - 10 / 64)
    assert found["rules"]["data-wait"]["source"]
    assert "lfs setstripe -c 1" in found["rules"]["stripes-small-files"]["next_step"]


def test_few_large_files_on_one_target_get_a_progressive_layout(cli: Cli, tools: Path, tmp_path: Path) -> None:
    lustre(tools, PLAIN.format(count=1, size=2**20))
    data = put(tmp_path / "sets", {"a.bin": 2**40, "b.bin": 2**40})
    _, found = advised(cli, tools, data, "--ranks", "128")
    assert "-E 4M -c 1 -E 256M -c 4 -E -1" in found["rules"]["few-stripes"]["next_step"]
    assert found["copy_fits"] is False  # 2 TiB do not fit in half of a node's memory
    assert "copy-to-nodes" not in found["rules"]
    _, one_node = advised(cli, tools, data, "--ranks", "8")
    assert "few-stripes" not in one_node["rules"]


def test_many_shards_with_a_good_layout_need_nothing(cli: Cli, tools: Path, tmp_path: Path) -> None:
    lustre(tools, PLAIN.format(count=1, size=2**20))
    data = put(tmp_path / "shards", {f"shard-{n:05d}.tar": 300_000_000 for n in range(128)})
    code, found = advised(cli, tools, data, "--ranks", "16")
    assert (code, found["rules"]) == (0, {})
    done = cli("data", "advise", str(data), "--site", "lumi", "--ranks", "16", env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert "nothing to change" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(data))


def test_all_targets_few_shards_and_blocks_are_found(cli: Cli, tools: Path, tmp_path: Path) -> None:
    lustre(tools, PLAIN.format(count=-1, size=2**20))
    data = put(tmp_path / "shards", {f"{n}.tar": 300_000_000 for n in range(3)})
    _, found = advised(cli, tools, data, "--ranks", "64")
    assert {"all-stripes", "few-shards", "stripe-size"} <= set(found["rules"])
    (tools / "lfs").unlink()
    stand_in(tools, "mmlsattr", MMLSATTR)
    stand_in(tools, "mmlsfs", MMLSFS)
    small = put(tmp_path / "small", {f"{n}.txt": 1000 for n in range(1000)})
    code, found = advised(cli, tools, small, site="marenostrum5")
    assert code == 0
    assert found["rules"]["block-waste"]["evidence"]["block_bytes"] == 2**24


def test_measured_rates_replace_those_of_the_catalogue(cli: Cli, tools: Path, tmp_path: Path) -> None:
    data = put(tmp_path / "shards", {"a.tar": 10**9})
    run = tmp_path / "run"
    run.mkdir()
    row = {"format": "shards", "cache": "cold", "order": "sequential", "bytes_per_s": 5e8, "samples_per_s": 100.0}
    document = {"schema": "scalewright.measurements/1", "kind": "storage", "device": {}, "versions": {}, "rows": [row]}
    (run / "measurements.json").write_text(json.dumps(document))
    _, found = advised(cli, tools, data, "--ranks", "4", "--measured", str(run))
    assert found["stream_s"] == pytest.approx(2.0)
    assert "measured" in found["rates_from"]


def test_bad_input_is_refused(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    data = put(tmp_path / "set", {"a.tar": 10})
    for words, match in (
        (["absent"], "no such folder"), ([str(tmp_path / "empty")], "holds no file"),
        ([str(data), "--ranks", "0"], "--ranks 0"), ([str(data), "--epochs", "-1"], "--epochs -1"),
        ([str(data), "--samples-per-s", "nan"], "--samples-per-s nan"), ([str(data), "--site", "lumy"], "lumi"),
        ([str(data), "--storage", "lumi-q"], "lumi-p"), ([str(data), "--sample-size", "5"], "'5'"),
        ([str(data), "--measured", "nowhere"], "nowhere"),
    ):  # fmt: skip
        assert match in refused(cli("data", "advise", "--site", "lumi", *words), 2)


def test_every_rule_is_described_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data_placement.md").read_text()
    for rule, _ in RULES.values():
        assert f"| `{rule.id}` |" in page
