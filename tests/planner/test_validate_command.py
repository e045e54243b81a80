"""`scalewright validate`: the document it promises, over every packaged row."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RememberedCli

from scalewright.catalog.published import packaged_runs
from scalewright.records.documents import read_document

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def packaged(remembered_cli: RememberedCli) -> dict[str, Any]:
    """The document for the rows that ship with the package."""
    result = remembered_cli("validate", "--json")
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_document_starts_with_its_schema(packaged: dict[str, Any]) -> None:
    assert next(iter(packaged.items())) == ("schema", "scalewright.validation/1")


def test_every_packaged_row_appears_once_in_order(packaged: dict[str, Any]) -> None:
    ids = [json.loads(line)["id"] for line in packaged_runs().read_text(encoding="utf-8").splitlines()]
    assert len(ids) == 1068
    assert [row["id"] for row in packaged["rows"]] == ids


def test_each_row_has_a_prediction_or_a_reason(packaged: dict[str, Any]) -> None:
    promised = {"id", "predicted_step_s", "interval_s", "measured_step_s", "predicted_memory_bytes", "fits"}
    for row in packaged["rows"]:
        if "reason" in row:
            assert row["reason"]
            continue
        assert promised <= set(row)
        low, high = row["interval_s"]
        assert 0 < low < row["predicted_step_s"] < high
        assert row["predicted_memory_bytes"] > 0
        assert isinstance(row["fits"], bool)


def test_overall_counts_agree_with_the_rows(packaged: dict[str, Any]) -> None:
    overall, rows = packaged["overall"], packaged["rows"]
    assert overall["num_rows"] == 1068
    assert overall["num_expressed"] == sum("reason" not in row for row in rows)
    assert sum(packaged["reasons"].values()) == sum("reason" in row for row in rows)
    timed = [row for row in rows if row.get("measured_step_s") is not None]
    errors = [abs(row["predicted_step_s"] / row["measured_step_s"] - 1) for row in timed]
    assert overall["num_timed"] == len(timed)
    assert overall["mape_frac"] == pytest.approx(sum(errors) / len(errors))
    inside = [row["interval_s"][0] <= row["measured_step_s"] <= row["interval_s"][1] for row in timed]
    assert overall["coverage_frac"] == pytest.approx(sum(inside) / len(inside))


def test_groups_name_source_gpu_and_dtype_and_add_up(packaged: dict[str, Any]) -> None:
    assert sum(group["num_rows"] for group in packaged["groups"]) == 1068
    keys = [(g["source"], g["gpu"], g["dtype"]) for g in packaged["groups"]]
    assert len(set(keys)) == len(keys)
    known = [g["mape_frac"] for g in packaged["groups"] if g["mape_frac"] is not None]
    assert packaged["overall"]["balanced_mape_frac"] == pytest.approx(sum(known) / len(known))


def test_own_rows_can_be_validated(cli: Cli, tmp_path: Path) -> None:
    first = packaged_runs().read_text(encoding="utf-8").splitlines()[0]
    path = tmp_path / "mine.jsonl"
    path.write_text(first + "\n", encoding="utf-8")
    result = cli("validate", str(path), "--json", "--out", "v.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    doc = json.loads(result.stdout)
    assert read_document(tmp_path / "v.json", "validation") == doc
    assert len(doc["rows"]) == 1
    assert doc["rows"][0]["measured_step_s"] == 1.42
