"""From a study file to points: product, choices, exceptions, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError
from scalewright.study.points import Study, open_study

CATALOG = Catalog((packaged_data(),))
STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "How far?"
kind = "language"

[matrix]
system = ["lumi", "leonardo"]
nodes = [1, 2, 4]

[derive]
dp = "nodes * gpus_per_node"

[point]
model = "gpt2-medium"
system = "{system}"
layout = "dp={dp},mbs=1,gbs={dp}"
"""


def opened(folder: Path, text: str) -> Study:
    path = folder / "mine.toml"
    path.write_text(text)
    return open_study(CATALOG, str(path))


def test_a_point_for_every_combination(tmp_path: Path) -> None:
    study = opened(tmp_path, STUDY)
    assert [tuple(point.labels.values()) for point in study.points] == [
        (system, nodes) for system in ("lumi", "leonardo") for nodes in ("1", "2", "4")
    ]
    assert study.points[1].resolved["layout"] == "dp=16,mbs=1,gbs=16"  # LUMI counts 8 devices a node
    assert study.points[4].resolved["layout"] == "dp=8,mbs=1,gbs=8"


def test_ids_follow_from_what_a_point_resolves_to(tmp_path: Path) -> None:
    before = opened(tmp_path, STUDY)
    same = opened(tmp_path, STUDY.replace("How far?", "How much further?"))
    other = opened(tmp_path, STUDY.replace("gpt2-medium", "gpt2-large"))
    assert [point.id for point in same.points] == [point.id for point in before.points]
    assert not {point.id for point in other.points} & {point.id for point in before.points}
    assert (same.id, other.id == before.id) == (before.id, False)


def test_choices_excludes_and_includes(tmp_path: Path) -> None:
    text = STUDY.replace(
        "[derive]",
        '[[exclude]]\nsystem = "leonardo"\nnodes = [2, 4]\n\n[[include]]\nsystem = "vega"\nnodes = 3\n\n[derive]',
    )
    text = text.replace(
        "[derive]",
        '[[choose]]\nvalues = { mbs = 1 }\n\n[[choose]]\nwhere = { system = "lumi" }\nvalues = { mbs = 2 }\n\n[derive]',
    )
    study = opened(tmp_path, text.replace("mbs=1,gbs={dp}", "mbs={mbs},gbs={dp}"))
    assert [tuple(p.labels.values()) for p in study.points] == [
        ("lumi", "1"), ("lumi", "2"), ("lumi", "4"), ("leonardo", "1"), ("vega", "3"),
    ]  # fmt: skip
    assert [cell.values["mbs"] for cell in study.combinations] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[matrix]", "knd = 1\n\n[matrix]", "unknown key 'knd'"),
        ('"lumi", ', '"lumy", ', "did you mean lumi"),
        ("gpt2-medium", "gpt9", "no model is called 'gpt9'"),
        ("nodes = [1, 2, 4]", "nodes = []", "'matrix.nodes' is an empty list"),
        ("gbs={dp}", "gbs={dpp}", "did you mean dp"),
        ("nodes * gpus_per_node", "nodes * gpu_per_node", "did you mean gpus_per_node"),
        ("gpt2-medium", "gpt2-medium\"\nprecission = \"fp16", "point.precission"),
        ("mbs=1", "mbs=0", "mbs"),
        ('title = "Mine"', 'title = "Mine"\nmax_points = 5', "6 points, over max_points of 5"),
        ("study/1", "study/2", "newer than 1"),
        ('kind = "language"', 'kind = "language"\nmetrics = ["step_tme_s"]', "no metric is called 'step_tme_s'"),
    ],
)  # fmt: skip
def test_refusals_name_file_and_key(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml") as refused:
        opened(tmp_path, STUDY.replace(old, new))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def derived(folder: Path, choices: str, *, derive: str = "", layout: str = "dp={dp},mbs={mbs},gbs={gbs}") -> Study:
    """The study with choices and with further derived values."""
    text = STUDY.replace("[derive]", f"{choices}\n[derive]\n{derive}")
    return opened(folder, text.replace("dp={dp},mbs=1,gbs={dp}", layout))


def test_a_choice_may_ask_for_a_derived_value_and_for_a_fact(tmp_path: Path) -> None:
    choices = """
[[choose]]
values = { mbs = 1 }
[[choose]]
where = { dp = [8, 16] }
values = { mbs = 2 }
[[choose]]
where = { gpus_per_node = 4, nodes = 4 }
values = { mbs = 4 }
"""
    study = derived(tmp_path, choices, derive='gbs = "dp * mbs * 2"')
    layouts = [point.resolved["layout"] for point in study.points]
    assert layouts == [
        "dp=8,mbs=2,gbs=32", "dp=16,mbs=2,gbs=64", "dp=32,mbs=1,gbs=64",
        "dp=4,mbs=1,gbs=8", "dp=8,mbs=2,gbs=32", "dp=16,mbs=4,gbs=128",
    ]  # fmt: skip


def test_derived_values_may_be_written_in_any_order(tmp_path: Path) -> None:
    study = derived(
        tmp_path, "[[choose]]\nvalues = { mbs = 1 }\n", derive='gbs = "2 * per_step"\nper_step = "dp * mbs"'
    )
    assert study.points[0].resolved["layout"] == "dp=8,mbs=1,gbs=16"


def test_a_derived_value_may_change_the_axis_of_its_name(tmp_path: Path) -> None:
    study = opened(tmp_path, STUDY.replace("[derive]", '[derive]\nnodes = "nodes * 2"'))
    assert [point.resolved["layout"] for point in study.points[:2]] == ["dp=16,mbs=1,gbs=16", "dp=32,mbs=1,gbs=32"]
    assert [point.labels["nodes"] for point in study.points[:2]] == ["1", "2"]


def test_values_that_need_each_other_are_refused(tmp_path: Path) -> None:
    choices = "[[choose]]\nvalues = { mbs = 1 }\n[[choose]]\nwhere = { gbs = 64 }\nvalues = { mbs = 2 }\n"
    with pytest.raises(ConfigError, match=r"mine\.toml: gbs needs mbs needs gbs: a value cannot follow from itself"):
        derived(tmp_path, choices, derive='gbs = "dp * mbs"')


@pytest.mark.parametrize(
    "system",
    ['system = "lumi"', 'system = "{machine}"', 'system = "{machine}"\npartition = "{part}"'],
    ids=["in point", "from a choice", "with a partition"],
)
def test_facts_are_known_wherever_the_system_is_named(tmp_path: Path, system: str) -> None:
    text = STUDY.replace('system = ["lumi", "leonardo"]\n', "").replace('system = "{system}"', system)
    text = text.replace("[derive]", '[[choose]]\nvalues = { machine = "lumi", part = "lumi-g" }\n\n[derive]')
    study = opened(tmp_path, text)
    assert [point.resolved["layout"] for point in study.points] == [f"dp={8 * n},mbs=1,gbs={8 * n}" for n in (1, 2, 4)]


@pytest.mark.parametrize(
    ("system", "sold_gb"),
    [("lumi", 64), ("leonardo", 64), ("marenostrum5", 64), ("meluxina", 40), ("jupiter", 96), ("discoverer", 141)],
)
def test_memory_in_gb_is_what_the_vendor_prints(tmp_path: Path, system: str, sold_gb: int) -> None:
    study = opened(tmp_path, STUDY.replace('"lumi", "leonardo"', f'"{system}"').replace("[1, 2, 4]", "[1]"))
    assert study.combinations[0].values["gpu_memory_gb"] == sold_gb


def test_facts_of_a_partition_are_its_own(tmp_path: Path) -> None:
    text = STUDY.replace('system = ["lumi", "leonardo"]', 'part = ["gpu-40", "gpu-80"]')
    text = text.replace('system = "{system}"', 'system = "perlmutter"\npartition = "{part}"')
    study = opened(tmp_path, text)
    names = ("gpu_memory_gb", "gpu_memory_gib")
    memory = {cell.labels["part"]: tuple(round(float(cell.values[n]), 1) for n in names) for cell in study.combinations}
    assert memory == {"gpu-40": (40.0, 39.5), "gpu-80": (80.0, 79.2)}  # as sold, and what a process can use


def test_facts_of_no_catalogued_system_are_refused_in_one_sentence(tmp_path: Path) -> None:
    text = STUDY.replace('system = ["lumi", "leonardo"]\n', "").replace('system = "{system}"', 'system = "here"')
    with pytest.raises(ConfigError, match="gpus_per_node follows from the system of a point") as refused:
        opened(tmp_path, text)
    assert "give one in [point], or write the number" in str(refused.value)
