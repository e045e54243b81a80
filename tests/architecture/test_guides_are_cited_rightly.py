"""Sections of guides that the project cites exist, and published rows name models that their engine could know."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CITING = [
    path
    for folder, endings in (("src/scalewright", ("py", "toml", "jsonl", "json")), ("docs", ("md",)))
    for ending in endings
    for path in sorted((ROOT / folder).rglob(f"*.{ending}"))
]
# Tables of contents, copied from the two documents.
EPICURE = {
    "1", "2", "2.1", "2.2", "3", *(f"3.{n}" for n in range(1, 10)), "4", *(f"4.{n}" for n in range(1, 5)),
    "5", *(f"5.{n}" for n in range(1, 5)), "6",
}  # fmt: skip
INFRASTRUCTURE = {
    "2.1", *(f"2.1.{n}" for n in range(1, 5)), "2.2", *(f"2.2.{n}" for n in range(1, 5)),
    "2.3", *(f"2.3.{n}" for n in range(1, 4)), "2.4", *(f"2.4.{n}" for n in range(1, 17)),
}  # fmt: skip
_SECTIONS = r"[^.;\n\"]{0,120}?\bsections? ((?:\d(?:\.\d+)*(?:, | and | to )?)+)"
CITATIONS = (
    ("EPICURE", re.compile(rf"EPICURE(?:(?!Infrastructure).){{0,90}}?{_SECTIONS}"), EPICURE),
    ("Infrastructure Foundations", re.compile(rf"Infrastructure Foundations{_SECTIONS}"), INFRASTRUCTURE),
    (
        "the infrastructure guide of lint",
        re.compile(r"\{GUIDE\} ((?:\d(?:\.\d+)*(?:, | and | to )?)+)"),
        INFRASTRUCTURE,
    ),
)


def _cited() -> dict[str, list[tuple[Path, str]]]:
    cited: dict[str, list[tuple[Path, str]]] = {name: [] for name, _, _ in CITATIONS}
    for path in CITING:
        text = path.read_text(encoding="utf-8")
        for name, pattern, _ in CITATIONS:
            for match in pattern.finditer(text):
                cited[name] += [(path, section) for section in re.findall(r"\d(?:\.\d+)*", match[1])]
    return cited


def test_every_cited_section_is_in_the_table_of_contents() -> None:
    cited = _cited()
    for name, _, known in CITATIONS:
        assert len(cited[name]) >= 15, f"the pattern of {name} finds no citations any more"
        wrong = [
            f"{path.relative_to(ROOT)}: section {section}" for path, section in cited[name] if section not in known
        ]
        assert not wrong, f"{name} has no such sections: {wrong}"


def test_the_site_of_a_section_is_the_section_of_the_site() -> None:
    """EPICURE's chapter 3 has a section for each system."""
    order = (
        "lumi", "leonardo", "marenostrum5", "meluxina", "karolina", "discoverer", "vega", "deucalion", "jupiter",
    )  # fmt: skip
    for path, section in _cited()["EPICURE"]:
        if path.stem in order and section.startswith("3."):
            assert section == f"3.{order.index(path.stem) + 1}", path


RELEASED = {
    "gpt-j-6b": "2021-06", "llama-7b": "2023-02", "llama-2-70b": "2023-07", "falcon-180b": "2023-09",
    "mistral-7b": "2023-09", "mixtral-8x7b": "2023-12", "mixtral-8x22b": "2024-04", "llama-3-70b": "2024-04",
    "qwen2-72b": "2024-06", "llama-3.1-8b": "2024-07", "llama-3.1-405b": "2024-07",
    "vLLM 0.2": "2023-09", "TensorRT-LLM 0.5": "2023-10", "TensorRT-LLM 0.6.1": "2023-12",
    "TensorRT-LLM 0.9": "2024-04", "TensorRT-LLM 0.17": "2025-01",
}  # fmt: skip
"""Months in which models and releases of engines were published."""


def test_no_rate_is_of_a_model_that_its_engine_is_older_than() -> None:
    rows = ROOT / "src" / "scalewright" / "catalog" / "data" / "published" / "generation_runs.jsonl"
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["engine"]:
            assert RELEASED[row["model"]["name"]] <= RELEASED[row["engine"]], row["id"]
