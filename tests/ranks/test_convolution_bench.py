"""`bench convolution` on this machine's CPU: whole documents, sums over the network, and a budget that is too short."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.convolution_run import cases_of

Cli = Callable[..., subprocess.CompletedProcess[str]]
TIMED = {"time_s", "time_low_s", "time_high_s", "repeats"}
COMMON = TIMED | {"op", "precision", "layout", "batch", "channels_out", "out_size", "count", "direction"}
SMALL = ["convolution", "--model", "resnet-18", "--size", "32", "--batch", "1", "--device", "cpu"]


def measured(cli: Cli, folder: Path, *args: str) -> dict[str, Any]:
    done = cli("bench", *args, "--run-dir", "r", "--json", cwd=folder, timeout=170)
    assert done.returncode == 0, done.stderr
    doc: dict[str, Any] = json.loads(done.stdout)
    assert (doc["schema"], doc["kind"]) == ("scalewright.measurements/1", "convolution")
    assert read_measurements(RunDirectory.open(folder / "r")).document() == doc
    return doc


@pytest.mark.ranks
def test_every_operator_of_a_network_and_their_sum(tmp_path: Path, cli: Cli) -> None:
    for budget in ("10 s", "60 s", "150 s"):  # a machine that others use is given another, longer try
        args, folder = [*SMALL, "--layout", "last,first", "--budget", budget], tmp_path / budget.replace(" ", "")
        folder.mkdir()
        doc = measured(cli, folder, *args)
        if not any("the budget is too short" in note for note in doc["notes"]):
            break
    shape = Catalog((packaged_data(),)).model("resnet-18").conv
    assert shape is not None
    cases = cases_of(shape.model_copy(update={"image_size": 32}))
    sizes = {(case.channels_out, case.out_size) for case in cases}
    convolutions = [row for row in doc["rows"] if row["op"] == "convolution"]
    others = [row for row in doc["rows"] if row["op"] != "convolution"]
    assert len(convolutions) == 2 * (3 * len(cases) - 1)  # two layouts; nobody asks for the gradient of images
    assert len(others) == 2 * (4 * len(sizes) + 2)  # norm, activation; one pooling
    for row in convolutions:
        assert set(row) == COMMON | {"way", "channels_in", "kernel", "in_size", "flop_per_s"}
        assert row["direction"] in ("forward", "input", "weight")
        flop = 2.0 * row["channels_in"] * row["channels_out"] * row["kernel"] ** 2 * row["out_size"] ** 2
        assert row["flop_per_s"] == pytest.approx(flop / row["time_s"])
    passes = {
        ("norm", "forward"): 3, ("norm", "backward"): 5, ("activation", "forward"): 2, ("activation", "backward"): 3,
    }  # fmt: skip
    for row in others:
        assert set(row) == COMMON | {"bytes", "bytes_per_s"}
        if row["op"] != "pool":
            assert row["bytes"] == passes[row["op"], row["direction"]] * 4 * row["channels_out"] * row["out_size"] ** 2
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
    for total in doc["summary"]["network"]:
        mine = [row for row in convolutions if row["layout"] == total["layout"]]
        assert total["measured_frac"] == pytest.approx(1.0)
        whole_s = sum(row["count"] * row["time_s"] for row in mine)
        assert total["forward_s"] + total["input_s"] + total["weight_s"] == pytest.approx(whole_s)
        assert total["convolution_images_per_s"] == pytest.approx(1.0 / whole_s)
        assert min(total[f"{op}_s"] for op in ("norm", "activation", "pool")) > 0
    again = cli("bench", *args, "--run-dir", "r", cwd=folder)
    assert again.stdout.count("by convolutions alone") == 2
    assert max(len(line) for line in again.stdout.splitlines()) <= 80


@pytest.mark.ranks
def test_what_a_short_budget_leaves_out_is_told_and_no_sum_is_made_up(tmp_path: Path, cli: Cli) -> None:
    args = ["convolution", "--model", "resnet-152", "--batch", "4", "--device", "cpu", "--budget", "2 s"]
    doc = measured(cli, tmp_path, *args)
    assert any("not measured, the budget is too short" in note for note in doc["notes"])
    (total,) = doc["summary"]["network"]
    assert 0.0 < total["measured_frac"] < 1.0
    assert total["convolution_images_per_s"] is None
    convolutions = [row for row in doc["rows"] if row["op"] == "convolution"]
    forward = [row for row in convolutions if row["direction"] == "forward"]
    work = [round(row["count"] * row["flop_per_s"] * row["time_s"]) for row in forward]  # FLOP: a whole number
    assert work == sorted(work, reverse=True)  # what matters most to the network comes first
    again = cli("bench", *args, "--run-dir", "r", cwd=tmp_path)
    assert "of the convolutions' work was measured: the sum is not known" in again.stdout
