"""Every key that a study file may have, misspelt: one sentence names the file, the key and the nearest right one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conftest import Cli, Refused

from scalewright.catalog.facts import Source
from scalewright.catalog.library import Catalog, open_catalog
from scalewright.errors import ConfigError, DocumentError
from scalewright.launch.graph.file import Resources, Retries
from scalewright.study.file import (
    AnswerSentence,
    ConditionalValues,
    Measure,
    Published,
    Relative,
    Remark,
    Scaling,
    Statement,
    StudyFile,
)
from scalewright.study.kinds.emulated import EmulatedPoint
from scalewright.study.kinds.plan import SearchPoint
from scalewright.study.kinds.reading import ReadingPoint
from scalewright.study.kinds.saving import SavingPoint
from scalewright.study.kinds.stage import StagePoint
from scalewright.study.kinds.training import TrainingPoint
from scalewright.study.pipeline.tables import Pipeline, PipelineProfile, PipelineStage, StageGate
from scalewright.study.points import open_study

Path_ = tuple[str | int, ...]
CELLS: dict[str, Any] = {
    "matrix": {"system": ["lumi", "leonardo"], "nodes": [1, 2]},
    "choose": [{"where": {"nodes": 2}, "values": {"batch": 2}}],
    "derive": {"dp": "nodes * gpus_per_node"},
    "exclude": [{"nodes": 7}],
    "include": [{"system": "lumi", "nodes": 4}],
    "point": {"model": "gpt2-medium", "system": "{system}", "layout": "dp={dp},mbs=1,gbs={dp}"},
    "extra": {"plan": {"model": "gpt2-medium"}},
}
JOB = {
    "gpus_per_node": 4, "time": "00:30:00", "account": "a", "partition": "p", "qos": "q", "constraint": "c",
    "reservation": "r", "launcher": "srun", "transport": "auto", "modules": ["m"], "venv": "v", "env": {"A": "1"},
    "directives": {"exclude": "n1"}, "notice": "60 s", "requeue": True,
}  # fmt: skip
FULL: dict[str, Any] = {
    "schema": "scalewright.study/1",
    "id": "mine",
    "title": "Mine",
    "question": "How far?",
    "kind": "language",
    "metrics": ["step_time_s"],
    "max_points": 100,
    "notes": ["ours"],
    "observations": "hpc-r1",
    "gaps": "system",
    "sources": {
        "paper": {
            "kind": "measured", "text": "who wrote it", "url": "https://example.org", "checked": "2026-01-01",
            "confidence": "low", "recalled": True,
        }
    },
    "scaling": {
        "over": "nodes", "groups": ["system"], "metric": "step_time_s", "name": "nodes",
        "also": {"epoch_efficiency_frac": "epoch_time_s"},
    },
    "relative": {"metric": "step_time_s", "to": {"system": "lumi"}},
    "published": [
        {
            "where": {"nodes": 2}, "metric": "step_time_s", "value": 1.0, "low": 0.5, "high": 2.0, "unit": "s",
            "source": "paper", "note": "n", "either": "system",
        }
    ],
    "answers": [{"text": "as {fast}", "figures": {"fast": {"metric": "step_time_s", "where": {"nodes": 1}}}}],
    "remarks": [{"where": {"nodes": 1}, "text": "none"}],
    "statements": [
        {
            "text": "t", "quote": "q", "metric": "step_time_s", "relation": "below", "lower": {"nodes": 1},
            "higher": {"nodes": 2}, "higher_metric": "step_time_s", "pairs": "every", "agrees": 0.1, "contradicts": 0.0,
            "because": "b", "source": "paper",
        }
    ],
    "measure": {
        **CELLS, "where": "site", "site": "leonardo", "job": JOB, "concurrent": 1, "order": "listed",
        "calibrate": "60 s", "repeats": 1, "time_limit": "1 h", "gpu_hours_limit": 5.0, "note": "n", "scale": "ranks",
    },
    **CELLS,
}  # fmt: skip
MODELS: dict[Path_, type[BaseModel]] = {
    (): StudyFile,
    ("measure",): Measure,
    ("measure", "job"): Resources,
    ("measure", "choose", 0): ConditionalValues,
    ("choose", 0): ConditionalValues,
    ("scaling",): Scaling,
    ("relative",): Relative,
    ("published", 0): Published,
    ("remarks", 0): Remark,
    ("statements", 0): Statement,
    ("answers", 0): AnswerSentence,
    ("sources", "paper"): Source,
}
CONDITIONS: tuple[Path_, ...] = (
    ("choose", 0, "where"),
    ("measure", "choose", 0, "where"),
    ("exclude", 0),
    ("published", 0, "where"),
    ("remarks", 0, "where"),
    ("statements", 0, "lower"),
    ("answers", 0, "figures", "fast", "where"),
    ("statements", 0, "higher"),
    ("relative", "to"),
    ("extra",),
    ("point",),
)
PIPELINE: dict[str, Any] = {
    "profile": "cpu", "seeds": [0], "options": {"model": "tiny"}, "scaled": ["steps"],
    "profiles": {"cpu": {"text": "two cores", "options": {"device": "cpu"}, "least_budget": "4 min"}},
    "retries": {"limit": 1, "backoff": "60 s", "longest": "1 h"},
    "stages": [
        {"name": "sft", "stage": "sft"},
        {"name": "answers", "stage": "generate", "from": "sft"},
        {
            "name": "student", "stage": "distill", "from": "sft", "data_from": "answers", "teacher": "sft",
            "seeds": [1], "options": {"steps": 3}, "sizes": {"cpu": {"steps": 2}}, "time": "00:30:00",
            "takes": {"cpu": "1 min"}, "gate": {"by": 0.1, "over": "sft", "figure": "greedy", "bound": "low"},
        },
    ],
}  # fmt: skip
WITH_PIPELINE = {
    **{key: FULL[key] for key in ("schema", "id", "title", "question")}, "kind": "reason", "pipeline": PIPELINE,
}  # fmt: skip
PIPELINE_MODELS: dict[Path_, type[BaseModel]] = {
    ("pipeline",): Pipeline,
    ("pipeline", "profiles", "cpu"): PipelineProfile,
    ("pipeline", "retries"): Retries,
    ("pipeline", "stages", 2): PipelineStage,
    ("pipeline", "stages", 2, "gate"): StageGate,
}
NOT_BOTH = {"pipeline"}
"""A study measures points or a pipeline."""
REFUSED_FOR_STUDIES = {"nodes", "spares"}
"""A job's, that a point's layout decides."""
TOLD = {
    "language": TrainingPoint, "emulated": EmulatedPoint, "plan": SearchPoint, "saving": SavingPoint,
    "stage": StagePoint, "reading": ReadingPoint,
}  # fmt: skip

CHOSEN = {"stage": "sft", "format": "files"}


def at(document: Any, path: Path_) -> Any:
    for part in path:
        document = document[part]
    return document


def keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def misspelt(key: str) -> str:
    """Two neighbouring letters swapped, the commonest slip; in the middle, where no prefix gives it away."""
    middle = max(len(key) // 2, 1)
    for start in (middle - 1, *range(len(key) - 1)):
        if key[start] != key[start + 1]:
            return key[:start] + key[start + 1] + key[start] + key[start + 2 :]
    return key + key[-1]


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if value == "2026-01-01":
        return str(value)
    return json.dumps(value)


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "mine.toml"
    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in document.items()))
    return path


def with_slip(path: Path_, key: str) -> dict[str, Any]:
    document = json.loads(json.dumps(WITH_PIPELINE if "pipeline" in path else FULL))
    table = at(document, path)
    changed = {misspelt(name) if name == key else name: value for name, value in table.items()}
    table.clear()
    table.update(changed)
    return document


def every_key() -> Iterator[tuple[Path_, str]]:
    for path, model in MODELS.items():
        for key in keys(model):
            if key not in (NOT_BOTH if not path else REFUSED_FOR_STUDIES if path == ("measure", "job") else ()):
                yield path, key
    for path, model in PIPELINE_MODELS.items():
        yield from ((path, key) for key in keys(model))
    for path in CONDITIONS:
        for key in at(FULL, path):
            yield path, key


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return open_catalog(None)


def refusal(catalog: Catalog, path: Path) -> str:
    try:
        for is_measured in (False, True):
            open_study(catalog, str(path), is_measured=is_measured)
    except (ConfigError, DocumentError) as error:
        return str(error)
    pytest.fail("the file was read")


def test_the_file_has_every_key_and_is_read(catalog: Catalog, tmp_path: Path) -> None:
    for path, model in MODELS.items():
        refused_here = REFUSED_FOR_STUDIES if path == ("measure", "job") else NOT_BOTH if not path else set()
        assert set(at(FULL, path)) == set(keys(model)) - refused_here, path
    for path, model in PIPELINE_MODELS.items():
        assert set(at(WITH_PIPELINE, path)) == set(keys(model)), path
    for is_measured in (False, True):
        assert open_study(catalog, str(written(tmp_path, FULL)), is_measured=is_measured).points


@pytest.mark.parametrize(("path", "key"), [pytest.param(p, k, id=".".join(map(str, (*p, k)))) for p, k in every_key()])
def test_a_misspelt_key_is_named_with_the_right_one(catalog: Catalog, tmp_path: Path, path: Path_, key: str) -> None:
    file = written(tmp_path, with_slip(path, key))
    message = refusal(catalog, file)
    assert "\n" not in message
    assert str(file) in message
    assert misspelt(key) in message
    assert key in message.replace(misspelt(key), "").replace(str(file), ""), message
    assert "missing" not in message


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, model in TOLD.items() for key in model.__dataclass_fields__]
)
def test_a_misspelt_option_of_a_point_is_named_with_the_right_one(
    catalog: Catalog, tmp_path: Path, kind: str, key: str
) -> None:
    needed = {
        name: CHOSEN.get(name, "1") for name, field in TOLD[kind].__dataclass_fields__.items() if _is_needed(field)
    }
    point = {misspelt(name) if name == key else name: value for name, value in ({key: "1"} | needed).items()}
    bare = {name: FULL[name] for name in ("schema", "id", "title", "question")}
    file = written(tmp_path, {**bare, "kind": kind, "matrix": {"nodes": [1]}, "point": point})
    message = refusal(catalog, file)
    assert f"point.{misspelt(key)}'" in message
    assert key in message.replace(misspelt(key), "")


def _is_needed(field: Any) -> bool:
    return type(field.default).__name__ == "_MISSING_TYPE" and type(field.default_factory).__name__ == "_MISSING_TYPE"


@pytest.mark.parametrize(("path", "key"), [(("scaling",), "metric"), (("scaling",), "over"), ((), "sources")])
def test_study_check_exits_with_code_2(cli: Cli, refused: Refused, tmp_path: Path, path: Path_, key: str) -> None:
    message = refused(cli("study", "check", str(written(tmp_path, with_slip(path, key)))))
    assert f"did you mean {key}" in message
