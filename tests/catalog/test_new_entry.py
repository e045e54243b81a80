"""Entries that people write: templates that validate, and broken files that name all that is wrong and nothing else."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.catalog.facts import EXAMPLE_LINE
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.new_entry import FOLDERS

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]

BROKEN = {
    "systems": 'schema = "scalewright.system/1"\nid = "bad"\nname = "bad"\n[[partitions]]\nid = "gpu"\nkind = "gpuu"\n'
    'num_nodes = { value = 4, source = "nowhere" }\nfabrc = "infiniband-hdr-fat-tree"\ndefault = true\n',
    "fabrics": 'schema = "scalewright.fabric/1"\nid = "bad"\nname = "bad"\ntopology = "fat-tree"\n',
    "prices": 'schema = "scalewright.price/1"\nid = "bad"\nname = "bad"\nacelerator = "h100-sxm"\n',
}
NAMED = {
    "systems": ["nowhere", "fabrc", "fabric", "gpuu", "operator", "scheduler", "partitions.0.accelerator", "sources"],
    "fabrics": ["link", "transports", "hop_latency", "max_hops", "congestion_high", "sources"],
    "prices": ["acelerator", "did you mean accelerator", "per_accelerator", "basis", "valid_on", "sources"],
}
STEP = ("predict", "--model", "llama3-8b", "--system", "generic-h100", "--layout", "dp=8,gbs=8,zero=3")


def put_broken(folder: Path, *kinds: str) -> None:
    for kind in kinds:
        (folder / kind).mkdir()
        (folder / kind / "bad.toml").write_text(BROKEN[kind])


def fill_in(path: Path) -> None:
    """What a user does last: the values are theirs now."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(EXAMPLE_LINE)))


@pytest.mark.parametrize("kind", FOLDERS)
def test_template_is_refused_until_it_is_filled_in_and_an_existing_file_stays(
    cli: Cli, refused: Refused, tmp_path: Path, kind: str
) -> None:
    written = cli("catalog", "new", kind, "my-own", "--catalog", str(tmp_path))
    path = tmp_path / FOLDERS[kind] / "my-own.toml"
    assert written.returncode == 0
    assert str(path) in written.stderr
    text = path.read_text()
    assert tomllib.loads(text)["id"] == "my-own"
    assert text.count("#") > 5
    show = ("site", "show") if kind == "site" else ("catalog", FOLDERS[kind])
    unfilled = refused(cli(*show, "my-own", "--catalog", str(tmp_path)))
    assert "my-own.toml: its values are the template's" in unfilled
    assert f"delete the line {EXAMPLE_LINE}" in unfilled
    assert EXAMPLE_LINE in written.stderr
    fill_in(path)
    assert cli(*show, "my-own", "--catalog", str(tmp_path)).returncode == 0
    text = path.read_text()
    assert "exists" in refused(cli("catalog", "new", kind, "my-own", "--catalog", str(tmp_path)))
    assert path.read_text() == text


def test_system_of_a_template_can_be_predicted_once_it_is_filled_in_and_is_quiet(cli: Cli, tmp_path: Path) -> None:
    cli("catalog", "new", "system", "my-own", "--catalog", str(tmp_path))
    fill_in(tmp_path / "systems" / "my-own.toml")
    layout = "tp=8,dp=32,mbs=1,gbs=512,zero=1,sp=1"
    predicted = cli(
        "predict", "--catalog", str(tmp_path), "--model", "gpt3-13b", "--system", "my-own", "--layout", layout, "--json"
    )
    document = json.loads(predicted.stdout)
    assert predicted.returncode == 0
    assert document["input"]["machine"]["network"] == "quiet"
    assert not any("network" in warning for warning in document["warnings"])


def test_price_named_as_a_system_is_for_its_devices(cli: Cli, tmp_path: Path) -> None:
    assert cli("catalog", "new", "price", "leonardo", "--catalog", str(tmp_path)).returncode == 0
    assert Catalog((tmp_path, packaged_data())).prices("a100-sxm-64gb", "leonardo") == []
    fill_in(tmp_path / "prices" / "leonardo.toml")
    [price] = Catalog((tmp_path, packaged_data())).prices("a100-sxm-64gb", "leonardo")
    assert (price.id, price.system) == ("leonardo", "leonardo")


def test_own_price_is_used_before_that_of_the_package(cli: Cli, tmp_path: Path) -> None:
    cli("catalog", "new", "price", "my-own", "--catalog", str(tmp_path))
    fill_in(tmp_path / "prices" / "my-own.toml")
    prices = Catalog((tmp_path, packaged_data())).prices("h100-sxm")
    assert [price.id for price in prices] == ["my-own", "h100-sxm-on-demand"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("system",), "catalog new system my-cluster"),
        (("systm", "x"), "did you mean system"),
        (("system", "My Cluster"), "lower case"),
        (("system", "../x"), "lower case"),
    ],
    ids=["no name", "misspelt", "spaces", "path"],
)
def test_wrong_words_after_new_are_refused(
    cli: Cli, refused: Refused, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in refused(cli("catalog", "new", *words, "--catalog", str(tmp_path)))


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_entry_names_all_that_is_wrong_at_once(cli: Cli, refused: Refused, tmp_path: Path, kind: str) -> None:
    put_broken(tmp_path, kind)
    message = refused(cli("catalog", kind, "bad", "--catalog", str(tmp_path)))
    for word in ("bad.toml", *NAMED[kind]):
        assert word in message


def test_broken_entries_break_nothing_but_themselves(cli: Cli, tmp_path: Path) -> None:
    put_broken(tmp_path, *BROKEN)
    for kind in BROKEN:
        listed = cli("catalog", kind, "--catalog", str(tmp_path))
        assert listed.returncode == 0
        assert len(listed.stdout.splitlines()) > 5
        assert "bad.toml" in listed.stderr
    predicted = cli(*STEP, "--json", "--catalog", str(tmp_path))
    plain = cli(*STEP, "--json")
    assert predicted.returncode == plain.returncode == 0
    assert json.loads(predicted.stdout)["cost_usd"] == json.loads(plain.stdout)["cost_usd"]
    assert any("bad.toml" in warning for warning in json.loads(predicted.stdout)["warnings"])


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("name", ["leonardo", "h100-sxm-on-demand", "infiniband-hdr-fat-tree", "my-own"])
def test_no_answer_changes_by_a_template_that_nobody_filled_in(cli: Cli, tmp_path: Path, kind: str, name: str) -> None:
    """The folder of the next command holds an example: money, time and energy are as without it, or it is refused."""
    asked = ("predict", "--model", "llama2-7b", "--system", "leonardo", "--layout", "tp=2,dp=2,mbs=1,gbs=64", "--json")
    before = json.loads(cli(*asked).stdout)
    assert cli("catalog", "new", kind, name, "--catalog", str(tmp_path)).returncode == 0
    done = cli(*asked, "--catalog", str(tmp_path))
    if done.returncode == 2:  # it hides what the question needs
        assert f"{name}.toml: its values are the template's" in done.stderr
        return
    after = json.loads(done.stdout)
    assert after | {"warnings": []} == before | {"warnings": []}
    if (kind, name) == ("price", "leonardo"):
        assert sum("prices/leonardo.toml" in note for note in after["warnings"]) == 1


def test_a_name_of_two_kinds_shows_both(cli: Cli, tmp_path: Path) -> None:
    folder = ("--catalog", str(tmp_path))
    cli("catalog", "new", "price", "leonardo", *folder)
    unfilled = cli("catalog", "leonardo", *folder)
    assert unfilled.returncode == 0
    assert unfilled.stdout == cli("catalog", "systems", "leonardo", *folder).stdout
    assert "prices/leonardo.toml" in unfilled.stderr
    fill_in(tmp_path / "prices" / "leonardo.toml")
    both = json.loads(cli("catalog", "leonardo", "--json", *folder).stdout)["entries"]
    assert [entry["id"] for entry in both] == ["leonardo", "leonardo"]
    assert "booster" in cli("catalog", "leonardo", *folder).stdout


@pytest.mark.parametrize("name", ["bloom", "gpt3", "laptop", "scalewright", "slingshot11", "gb200nvl72"])
def test_names_that_shipped_kinds_share_are_shown(cli: Cli, name: str) -> None:
    assert len(json.loads(cli("catalog", name, "--json").stdout)["entries"]) == 2
