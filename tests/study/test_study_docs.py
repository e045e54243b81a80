"""The study that the documentation shows can be read and predicted."""

from __future__ import annotations

import re
from pathlib import Path

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.pipeline.setting import PipelineSetting
from scalewright.study.points import open_study
from scalewright.study.results import predict_study

PIPELINES = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "studies.md"


def test_the_example_is_a_study(tmp_path: Path) -> None:
    catalog = Catalog((packaged_data(),))
    text = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S) if 'id = "mine"' in block)
    (tmp_path / "mine.toml").write_text(text)
    results = predict_study(catalog, open_study(catalog, str(tmp_path / "mine.toml")))
    assert len(results.predicted) == 10
    assert all("efficiency_frac" in outcome.numbers for outcome in results.predicted)
    assert len(open_study(catalog, str(tmp_path / "mine.toml"), is_measured=True).points) == 2


def test_the_example_of_a_pipeline_has_sizes_for_every_profile(tmp_path: Path) -> None:
    catalog = Catalog((packaged_data(),))
    text = next(block for block in re.findall(r"```toml\n(.*?)```", PIPELINES.read_text(), re.S))
    (tmp_path / "mine.toml").write_text(text)
    for profile, steps in (("cpu", 300), ("gpu", 2000), ("ranks", 2000)):
        setting = PipelineSetting(profile=profile)  # type: ignore[arg-type]
        study = open_study(catalog, str(tmp_path / "mine.toml"), is_measured=True, setting=setting)
        assert [point.labels["stage"] for point in study.points] == [
            "sft",
            "grpo",
            "grpo",
            "grpo",
            "answers",
            "student",
        ]
        assert study.points[0].resolved["steps"] == steps
