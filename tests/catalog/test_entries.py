"""Every packaged entry: it loads, says where each number comes from, and names only things that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from scalewright.catalog.campaign_runs import campaign_runs
from scalewright.catalog.facts import Fact, Source
from scalewright.catalog.generation_runs import generation_habits, generation_runs
from scalewright.catalog.library import Catalog, folded, packaged_data
from scalewright.catalog.observations import load_observations
from scalewright.catalog.published import load_runs, packaged_runs
from scalewright.catalog.rl_runs import rl_frameworks
from scalewright.catalog.types import KINDS, Accelerator, Fabric, Model, Price, PublishedTotal, System
from scalewright.catalog.verified import verified_paths
from scalewright.catalog.vision_runs import vision_frameworks
from scalewright.records.loader import parse_toml

CATALOG = Catalog((packaged_data(),))
ENTRIES = [(kind, entry_id) for kind in KINDS for entry_id in CATALOG.ids(kind)]
SCHEMA_OF = {
    "accelerators": "scalewright.accelerator/1",
    "links": "scalewright.link/1",
    "transports": "scalewright.transport/1",
    "fabrics": "scalewright.fabric/1",
    "systems": "scalewright.system/1",
    "models": "scalewright.model/1",
    "storage": "scalewright.storage/1",
    "prices": "scalewright.price/1",
    "grids": "scalewright.grid/1",
    "totals": "scalewright.total/1",
    "constants": "scalewright.constants/1",
    "stacks": "scalewright.stack/1",
    "engines": "scalewright.engine/1",
}
REGISTRIES = ("pypi.org", "pythonhosted.org", "npmjs.", "crates.io", "anaconda.org", "rubygems.org", "hub.docker.com")


def values_in(node: Any, kind: type) -> Iterator[Any]:
    """Every object of a type inside an entry."""
    if isinstance(node, kind):
        yield node
    if isinstance(node, BaseModel):
        for name in type(node).model_fields:
            yield from values_in(getattr(node, name), kind)
    elif isinstance(node, dict):
        for value in node.values():
            yield from values_in(value, kind)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from values_in(value, kind)


@pytest.mark.parametrize(("kind", "entry_id"), ENTRIES)
def test_entry_loads_under_its_file_name_with_its_schema(kind: str, entry_id: str) -> None:
    entry = CATALOG.get(kind, entry_id)
    assert entry.id == CATALOG.path(kind, entry_id).stem == entry_id
    assert entry.schema_ == SCHEMA_OF[kind]
    assert entry.name


@pytest.mark.parametrize(("kind", "entry_id"), ENTRIES)
def test_every_value_says_where_it_comes_from_and_when(kind: str, entry_id: str) -> None:
    entry = CATALOG.get(kind, entry_id)
    for fact in values_in(entry, Fact):
        assert fact.value >= 0
        assert len(fact.source.text) >= 8
        assert date(2020, 1, 1) < fact.source.checked <= date(2030, 1, 1)
    for source in values_in(entry, Source):
        assert source.url == "" or re.match(r"https?://[^\s/]+\.[^\s/]+", source.url), source.url
        assert not any(host in source.url for host in REGISTRIES), source.url
    used = {
        source.text
        for name in type(entry).model_fields
        if name != "sources"
        for source in values_in(getattr(entry, name), Source)
    }
    assert used == {source.text for source in entry.sources.values()}, (
        "each source is used, and each used one is listed"
    )


def test_every_data_file_is_one_of_the_kinds() -> None:
    folders = {p.name for p in packaged_data().iterdir() if p.is_dir()}
    assert folders == {*KINDS, "published", "observations"}


def test_no_name_means_two_entries_of_a_kind() -> None:
    for kind in KINDS:
        owner: dict[str, str] = {}
        for entry in CATALOG.all(kind):
            for name in (entry.id, *entry.aliases):
                assert owner.setdefault(folded(name), entry.id) == entry.id, f"{name} in {kind}"


def test_no_id_means_entries_of_two_kinds() -> None:
    owner: dict[str, str] = {}
    for kind in ("accelerators", "systems", "models", "links", "fabrics"):
        for entry_id in CATALOG.ids(kind):
            assert owner.setdefault(folded(entry_id), kind) == kind, entry_id


@pytest.mark.parametrize("entry_id", CATALOG.ids("systems"))
def test_system_names_only_what_exists(entry_id: str) -> None:
    system = CATALOG.system(entry_id)
    assert set(system.storage) <= set(CATALOG.ids("storage"))
    assert system.grid is None or system.grid in CATALOG.ids("grids")
    assert len({p.id for p in system.partitions}) == len(system.partitions)
    for partition in system.partitions:
        device = CATALOG.accelerator(partition.accelerator)
        assert device.id == partition.accelerator
        assert (device.kind == "cpu") == (partition.kind == "cpu")
        assert partition.cpu is None or CATALOG.accelerator(partition.cpu).kind in ("cpu", "apu")
        assert partition.fabric is None or partition.fabric in CATALOG.ids("fabrics")
        assert partition.nic_link is None or partition.nic_link in CATALOG.ids("links")
        assert partition.accelerators_per_node.value >= 1
        assert partition.num_nodes.value >= 1
        assert (partition.fabric is None) == (partition.nics_per_node is None)


@pytest.mark.parametrize("entry_id", CATALOG.ids("accelerators"))
def test_accelerator_names_only_links_that_exist(entry_id: str) -> None:
    device = CATALOG.accelerator(entry_id)
    known = CATALOG.ids("links")
    assert device.scale_up_link is None or device.scale_up_link in known
    assert device.host_link is None or device.host_link in known
    assert (device.scale_up_link is None) == (device.num_scale_up_links is None)


@pytest.mark.parametrize("entry_id", CATALOG.ids("fabrics"))
def test_fabric_names_its_link_and_transports_that_run_on_it(entry_id: str) -> None:
    fabric = cast(Fabric, CATALOG.get("fabrics", entry_id))
    link = CATALOG.link(fabric.link)
    assert link.id == fabric.link
    for name in fabric.transports:
        transport = CATALOG.transport(name)
        assert transport.id == name
        assert link.family in transport.families


def test_prices_and_totals_name_what_exists() -> None:
    for price in CATALOG.all("prices"):
        assert cast(Price, price).accelerator in CATALOG.ids("accelerators")
    for total in CATALOG.all("totals"):
        assert cast(PublishedTotal, total).model in CATALOG.ids("models")


def test_no_data_file_points_into_the_workplace_it_was_made_in() -> None:
    banned = re.compile(r"\bseeds?\b|\bshared/|\bfacts/|" + "/wo" + "rk", re.IGNORECASE)
    hits_of_file = {}
    for path in sorted(packaged_data().rglob("*.*")):
        hits = banned.findall(path.read_text(encoding="utf-8"))
        if hits:
            hits_of_file[str(path.relative_to(packaged_data()))] = sorted(set(hits))
    assert hits_of_file == {}


def test_published_runs_all_load_with_ids_of_their_own() -> None:
    runs = load_runs(packaged_runs())
    assert len(runs) == 1068
    assert len({run.id for run in runs}) == len(runs)
    assert all(run.source.strip() for run in runs)


def test_devices_of_published_runs_are_in_the_catalogue() -> None:
    for gpu in {run.hardware.gpu for run in load_runs(packaged_runs())}:
        assert isinstance(CATALOG.accelerator(gpu), Accelerator)


def test_generation_rows_name_devices_and_engines_of_the_catalogue() -> None:
    runs = generation_runs()
    assert len(runs) == 419
    assert len({run.id for run in runs}) == len(runs)
    assert {CATALOG.accelerator(run.hardware.gpu).kind for run in runs} == {"gpu", "hpu"}
    assert {CATALOG.engine(run.engine.partition(" ")[0]).id for run in runs if run.engine} == {"tensorrt-llm", "vllm"}


def test_verified_paths_load_and_say_why() -> None:
    paths = verified_paths()
    assert {p.state for p in paths} <= {"run", "golden", "never"}
    assert all(p.evidence for p in paths)
    assert len({p.name for p in paths}) == len(paths)


def test_every_toml_under_data_is_reachable_by_a_reader() -> None:
    reachable = {CATALOG.path(kind, entry_id) for kind, entry_id in ENTRIES} | {packaged_data() / "verified.toml"}
    assert campaign_runs()
    reachable.add(packaged_data() / "published" / "campaign_runs.toml")
    assert vision_frameworks().frameworks
    assert rl_frameworks().frameworks
    reachable |= {packaged_data() / "published" / f"{name}_frameworks.toml" for name in ("vision", "rl")}
    assert generation_habits().requests
    reachable.add(packaged_data() / "published" / "generation_habits.toml")
    assert load_observations("hpc-r1").observations
    reachable.add(packaged_data() / "observations" / "hpc-r1.toml")
    assert set(packaged_data().rglob("*.toml")) == reachable


def test_every_toml_starts_with_its_schema() -> None:
    for path in packaged_data().rglob("*.toml"):
        raw = parse_toml(path.read_text(encoding="utf-8"), where=str(path))
        assert next(iter(raw)) == "schema", path.name


ACCELERATORS = [
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "a100-sxm-40gb",
    "a100-sxm-64gb",
    "a100-sxm-80gb",
    "a800-sxm-80gb",
    "h100-sxm",
    "h100-sxm-64gb",
    "h100-sxm-96gb-500w",
    "h800-sxm",
    "h200-sxm",
    "gh200-96gb",
    "b200-sxm",
    "b300-sxm",
    "gb200",
    "gb300",
    "rtx-pro-6000",
    "mi250x-gcd",
    "mi300x",
    "mi300a",
    "mi325x",
    "mi350x",
    "mi355x",
    "gaudi2",
    "tpu-v4",
]
SYSTEMS = [
    "lumi",
    "leonardo",
    "marenostrum5",
    "meluxina",
    "karolina",
    "discoverer",
    "vega",
    "deucalion",
    "jupiter",
    "perlmutter",
    "frontier",
    "selene",
    "jean-zay",
    "pinnacles",
    "laptop",
]
EUROHPC = ["lumi", "leonardo", "marenostrum5", "meluxina", "karolina", "discoverer", "vega", "deucalion", "jupiter"]
NO_CPU_PARTITION_YET = {"jupiter": "its Cluster module (Rhea) is announced, not in service"}
MODELS = [
    "gpt2",
    "gpt2-xl",
    "gpt3-175b",
    "megatron-22b",
    "megatron-530b",
    "megatron-1t",
    "frontier-22b",
    "frontier-175b",
    "frontier-1t",
    "epicure-small",
    "epicure-175b",
    "llama2-7b",
    "llama2-70b",
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "deepseek-v3",
    "ring-1t",
    "bloom-176b",
    "bert-base",
    "t5-11b",
    "resnet-50",
]


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerator_people_ask_for_is_there(name: str) -> None:
    assert CATALOG.accelerator(name).kind != "cpu"


def test_processors_are_there() -> None:
    cpus = [e.id for e in CATALOG.all("accelerators") if cast(Accelerator, e).kind == "cpu"]
    assert len(cpus) >= 8


@pytest.mark.parametrize("name", SYSTEMS)
def test_system_people_ask_for_is_there(name: str) -> None:
    assert isinstance(CATALOG.system(name), System)


@pytest.mark.parametrize("name", EUROHPC)
def test_eurohpc_system_has_gpu_and_cpu_partitions(name: str) -> None:
    kinds = {p.kind for p in CATALOG.system(name).partitions}
    assert kinds == ({"gpu"} if name in NO_CPU_PARTITION_YET else {"gpu", "cpu"})


def test_generic_systems_are_there() -> None:
    generic = {i for i in CATALOG.ids("systems") if i.startswith("generic-")}
    assert {"generic-v100", "generic-a100", "generic-h100", "generic-h200", "generic-b200", "generic-mi300x"} <= generic


@pytest.mark.parametrize("name", MODELS)
def test_model_people_ask_for_is_there(name: str) -> None:
    assert isinstance(CATALOG.model(name), Model)


def test_data_travels_with_the_package() -> None:
    assert Path(packaged_data()).parent.name == "catalog"
