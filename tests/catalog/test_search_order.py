"""A user's own entries: where they are found, what they hide, and what a broken one says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import DocumentError

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]

SOURCE = """
[sources.us]
kind = "measured"
text = "measured by the tests themselves"
checked = 2026-01-15
"""


def accelerator(entry_id: str = "mychip", *, memory: str = '"80 GB"', extra: str = "") -> str:
    return f"""schema = "scalewright.accelerator/1"
id = "{entry_id}"
name = "A chip of our own"
aliases = ["My Chip 9000"]
kind = "gpu"
vendor = "us"
architecture = "first"
released = 2026
memory = {{ value = {memory}, source = "us" }}
memory_type = "HBM"
memory_bandwidth = {{ value = "2 TB/s", source = "us" }}
tdp = {{ value = "400 W", source = "us" }}
{extra}
[peak]
bf16 = {{ value = "300 TFLOP/s", source = "us" }}
fp32 = {{ value = "20 TFLOP/s", source = "us" }}
{SOURCE}"""


def system(*, per_node: str = "4", nodes: str = "2", chip: str = "mychip") -> str:
    return f"""schema = "scalewright.system/1"
id = "mysys"
name = "A system of our own"
operator = "us"
country = "here"
scheduler = "slurm"

[[partitions]]
id = "main"
kind = "gpu"
num_nodes = {{ value = {nodes}, source = "us" }}
accelerator = "{chip}"
accelerators_per_node = {{ value = {per_node}, source = "us" }}
host_memory = {{ value = "256 GiB", source = "us" }}
scale_up_bandwidth = {{ value = "100 GB/s", source = "us" }}
fabric = "infiniband-hdr-fat-tree"
nics_per_node = {{ value = 1, source = "us" }}
default = true
{SOURCE}"""


def put(folder: Path, kind: str, name: str, text: str) -> Path:
    path = folder / kind / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def memory_of(cli: Cli, *args: str, cwd: Path, home: Path) -> float:
    result = cli(
        "catalog", "accelerators", "a100-sxm-80gb", "--json", *args, cwd=cwd, env={"SCALEWRIGHT_HOME": str(home)}
    )
    assert result.returncode == 0, result.stderr
    return float(json.loads(result.stdout)["entries"][0]["facts"]["memory_bytes"]["value"])


def test_each_folder_hides_the_next_one(cli: Cli, tmp_path: Path) -> None:
    flag, home = tmp_path / "flag", tmp_path / "home"
    assert memory_of(cli, cwd=tmp_path, home=home) > 79e9
    put(home, "accelerators", "a100-sxm-80gb", accelerator("a100-sxm-80gb", memory='"3 GB"'))
    assert memory_of(cli, cwd=tmp_path, home=home) == 3e9
    put(tmp_path / "scalewright", "accelerators", "a100-sxm-80gb", accelerator("a100-sxm-80gb", memory='"2 GB"'))
    assert memory_of(cli, cwd=tmp_path, home=home) == 2e9
    put(flag, "accelerators", "a100-sxm-80gb", accelerator("a100-sxm-80gb", memory='"1 GB"'))
    assert memory_of(cli, "--catalog", str(flag), cwd=tmp_path, home=home) == 1e9
    assert memory_of(cli, cwd=tmp_path, home=home) == 2e9


def test_xdg_folder_is_the_home_when_none_is_set(cli: Cli, tmp_path: Path) -> None:
    put(tmp_path / "xdg" / "scalewright", "accelerators", "mychip", accelerator())
    env = {"SCALEWRIGHT_HOME": "", "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert cli("catalog", "mychip", env=env).returncode == 0


def test_own_accelerator_and_system_can_be_shown_and_predicted_on(cli: Cli, tmp_path: Path) -> None:
    put(tmp_path, "accelerators", "mychip", accelerator())
    put(tmp_path, "systems", "mysys", system())
    shown = cli("catalog", "mychip", "--catalog", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "A chip of our own" in shown.stdout
    args = ("--model", "gpt2", "--system", "mysys", "--layout", "dp=8,gbs=8", "--catalog", str(tmp_path), "--json")
    predicted = cli("predict", *args)
    assert predicted.returncode == 0, predicted.stderr
    doc = json.loads(predicted.stdout)
    assert doc["input"]["machine"]["accelerator"] == "mychip"
    assert doc["device_memory_bytes"] == 79.0 * 2**30  # of "80 GB", which its maker counts in GiB
    assert doc["num_nodes"] == 2


@pytest.mark.parametrize("name", ["h100-sxm", "H100_SXM", "H100 SXM", "h100sxm", "H-1-0-0 sxm"])
def test_names_match_without_case_dashes_and_spaces(name: str) -> None:
    assert Catalog((packaged_data(),)).accelerator(name).id == "h100-sxm"


def test_alias_of_an_own_entry_is_found(cli: Cli, tmp_path: Path) -> None:
    put(tmp_path, "accelerators", "mychip", accelerator())
    assert cli("catalog", "my-chip-9000", "--catalog", str(tmp_path)).stdout.startswith("mychip ")


def test_broken_neighbour_does_not_break_a_lookup(cli: Cli, tmp_path: Path) -> None:
    put(tmp_path, "accelerators", "broken", "this is no toml")
    assert cli("catalog", "accelerators", "h100 sxm", "--catalog", str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (accelerator(memory="80"), ["memory", "no unit"]),
        (accelerator(memory='"-80 GB"'), ["memory", "negative"]),
        (accelerator(memory='"80 GB/s"'), ["memory", "GB/s"]),
        (accelerator(memory="nan"), ["memory"]),
        (accelerator(memory="true"), ["memory"]),
        (accelerator(memory='"80 GB", text = "80 GB"'), ["memory"]),
        (accelerator(extra="clock_bost = 3"), ["clock_bost", "clock_boost"]),
        (accelerator(extra='l2 = { value = "40 MiB", source = "them" }'), ["l2", "them"]),
        (accelerator(extra='l2 = { value = "40 MiB" }'), ["l2", "source"]),
        (accelerator().replace('vendor = "us"\n', ""), ["vendor", "missing"]),
        (accelerator().replace("bf16", "bf17"), ["bf17"]),
        (accelerator("other"), ["other", "mychip"]),
        (accelerator().replace("accelerator/1", "accelerator/2"), ["newer"]),
        (accelerator().replace("accelerator/1", "link/1"), ["link", "accelerator"]),
        (accelerator()[:150], ["mychip.toml"]),
        (accelerator() + "[[[", ["line"]),
    ],
    ids=lambda v: "+".join(v) if isinstance(v, list) else "file",
)
def test_broken_own_file_names_itself_and_the_key(tmp_path: Path, text: str, words: list[str]) -> None:
    put(tmp_path, "accelerators", "mychip", text)
    with pytest.raises(DocumentError) as error:
        Catalog((tmp_path, packaged_data())).accelerator("mychip")
    for word in ("mychip.toml", *words):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (accelerator(memory="80"), "memory"),
        (accelerator()[:150], "TOML"),
        (accelerator(extra="clock_bost = 3"), "clock_bost"),
    ],
    ids=["no unit", "truncated", "unknown key"],
)
def test_broken_own_file_is_one_sentence_of_the_command(
    cli: Cli, refused: Refused, tmp_path: Path, text: str, word: str
) -> None:
    put(tmp_path, "accelerators", "mychip", text)
    message = refused(cli("catalog", "mychip", "--catalog", str(tmp_path)))
    assert "mychip.toml" in message
    assert word in message


def test_bare_number_cannot_be_smuggled_in_beside_a_text(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    put(tmp_path, "accelerators", "mychip", accelerator(memory='-80.0, text = "80 GB"'))
    message = refused(cli("catalog", "mychip", "--catalog", str(tmp_path)))
    assert "memory" in message


@pytest.mark.parametrize(
    ("chip", "whole"),
    [
        (accelerator(), system(per_node="0")),
        (accelerator(), system(per_node='"0.5"')),
        (accelerator(), system(nodes="0")),
        (accelerator(), system(chip="mychap")),
        (accelerator().replace("2 TB/s", "0 TB/s"), system()),
        (accelerator().replace("300 TFLOP/s", "0 TFLOP/s"), system()),
        (accelerator().replace("[peak]\n", "[peak]\n#").replace("fp32 = {", "#"), system()),
    ],
    ids=["no devices", "half a device", "no nodes", "unknown chip", "no bandwidth", "no rate", "no peak"],
)
def test_impossible_machine_is_refused_in_one_sentence(
    cli: Cli, refused: Refused, tmp_path: Path, chip: str, whole: str
) -> None:
    put(tmp_path, "accelerators", "mychip", chip)
    put(tmp_path, "systems", "mysys", whole)
    args = ("--model", "gpt2", "--system", "mysys", "--layout", "dp=4,gbs=4", "--catalog", str(tmp_path))
    assert refused(cli("predict", *args))


def test_a_measured_product_needs_its_peak(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    product = '[best_matmul]\nfp8 = { value = "100 TFLOP/s", source = "us" }\n'
    put(tmp_path, "accelerators", "mychip", accelerator(extra=product))
    message = refused(cli("catalog", "accelerators", "mychip", "--catalog", str(tmp_path)))
    assert "best_matmul.fp8 has no peak beside it: give peak.fp8 too" in message


def test_a_system_with_an_unknown_fabric_is_refused_without_half_an_answer(
    cli: Cli, refused: Refused, tmp_path: Path
) -> None:
    text = (packaged_data() / "systems" / "leonardo.toml").read_text()
    put(tmp_path, "systems", "leonardo", re.sub(r'fabric = ".*"', 'fabric = "x"', text))
    message = refused(cli("catalog", "systems", "leonardo", "--catalog", str(tmp_path)))
    assert "no fabric is called 'x'" in message


def test_catalog_folder_that_is_none_is_refused(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    assert "not a folder" in refused(cli("catalog", "--catalog", str(tmp_path / "none")))
