"""The study that the documentation shows can be read and predicted."""

from __future__ import annotations

import re
from pathlib import Path

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.study.points import open_study
from scalewright.study.results import predict_study

PAGE = Path(__file__).resolve().parents[2] / "docs" / "studies.md"


def test_the_example_is_a_study(tmp_path: Path) -> None:
    catalog = Catalog((packaged_data(),))
    text = next(block for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S) if 'id = "mine"' in block)
    (tmp_path / "mine.toml").write_text(text)
    results = predict_study(catalog, open_study(catalog, str(tmp_path / "mine.toml")))
    assert len(results.predicted) == 10
    assert all("efficiency_frac" in outcome.numbers for outcome in results.predicted)
    assert len(open_study(catalog, str(tmp_path / "mine.toml"), is_measured=True).points) == 2
