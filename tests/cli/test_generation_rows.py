"""`validate --kind generation FILE`: the page's example row is read, and a flat row is refused in a plain sentence."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from scalewright.catalog.generation_runs import packaged_generation_runs

Here = Callable[..., subprocess.CompletedProcess[str]]
PAGE = Path(__file__).parents[2] / "docs" / "generation.md"


def test_the_example_row_of_the_page_is_read_and_ships(here: Here, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)
    (row,) = (json.loads(block) for block in blocks if '"osl"' in block)
    (tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert here("validate", "--kind", "generation", "mine.jsonl").returncode == 0
    shipped = packaged_generation_runs()
    assert row["id"] in shipped.read_text(encoding="utf-8")
    assert str(shipped).endswith("src/scalewright/catalog/data/published/generation_runs.jsonl")
    assert "src/scalewright/catalog/data/published/generation_runs.jsonl" in text


def test_a_flat_row_is_refused_in_words_of_the_file(here: Here, tmp_path: Path) -> None:
    row = {"isl": 128, "osl": 64, "model": "llama3-8b", "hardware": "h100", "tp": 1, "precision": "FP16",
           "engine": "vllm", "batch": 8, "measured": 100.0}  # fmt: skip
    (tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    done = here("validate", "--kind", "generation", "mine.jsonl")
    message = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "keys 'id', 'source' are missing" in message
    assert "key 'hardware': expected an object with the keys gpu, gpus, gpus_per_node" in message
    assert message.endswith("docs/generation.md has an example row")
    assert not re.search(r"RunModel|GenerationHardware|instance of", message)
