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
