"""`predict --plot`: a picture of the right kind, whole or not at all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import Generation
from scalewright.planner.question import Question, VisionModelStep, resolve_recipe, resolve_stack
from scalewright.report.figure_file import COLOURS, DOTS_PER_INCH, REST
from scalewright.report.pictures import picture_of, points
from scalewright.report.planner.roofline import KIND_COLOURS, SIZE_INCH, draw, memory_segments, time_segments
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import from_catalog

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
CATALOG = Catalog((packaged_data(),))
CASES = {
    "dense": ("gpt3-175b", "selene", "tp=8,pp=8,vpp=1,dp=8,mbs=1,gbs=512,recompute=full", "auto"),
    "small": ("gpt2-tiny", "laptop", "mbs=1", "eager"),
    "experts": ("deepseek-v3", "generic-h100", "pp=16,ep=64,dp=128,gbs=4096,zero=1,recompute=selective", "auto"),
    "unfused": ("gpt2-xl", "generic-v100", "dp=8,mbs=4,gbs=32", "eager-unfused"),
    "one-gpu": ("llama3-8b", "generic-h200", "zero=3", "compiled"),
}
FITS = ["predict", "--model", "gpt3-6.7b", "--system", "selene", "--layout", "tp=8,gbs=8"]


STAGES = ("vision", "generation", "generation of experts", "generation on leonardo")


def ask_stage(name: str) -> Answer:
    if name == "vision":
        machine = machine_from_system(CATALOG, "generic-h200")
        return answer(Question(
            spec=from_catalog(CATALOG.model("resnet-50")), machine=machine, recipe=resolve_recipe("bf16", machine),
            stack=CATALOG.stack("eager"), layout=parse_layout("dp=8,mbs=256,gbs=2048"), stage=VisionModelStep(),
))  # fmt: skip
    machine = machine_from_system(CATALOG, "leonardo" if "leonardo" in name else "generic-mi300x")
    return answer(
        Question(
            spec=from_catalog(CATALOG.model("mixtral-8x7b" if "experts" in name else "llama3-70b")), machine=machine,
            recipe=resolve_recipe("bf16", machine), stack=CATALOG.stack("megatron-core"),
            layout=Layout(tp=4, dp=2, gbs=64), stage=Generation(prompt_len=512, response_len=256),
        )
    )  # fmt: skip


def ask_any(name: str) -> Answer:
    return ask(name) if name in CASES else ask_stage(name)


def ask(name: str) -> Answer:
    model, system, layout, stack = CASES[name]
    machine, split = machine_from_system(CATALOG, system), parse_layout(layout)
    return answer(
        Question(
            spec=from_catalog(CATALOG.model(model)),
            machine=machine,
            layout=split,
            recipe=resolve_recipe("auto", machine),
            stack=resolve_stack(stack, CATALOG, split),
        )
    )


def test_svg_holds_the_labels_is_the_same_again_and_changes_nothing_in_the_answer(cli: Cli, tmp_path: Path) -> None:
    paths = tmp_path / "deep" / "p.svg", tmp_path / "again.svg"
    results = [cli(*FITS, "--json", "--plot", str(path)) for path in paths]
    assert [(result.returncode, result.stderr) for result in results] == [(0, f"wrote {path}\n") for path in paths]
    assert results[0].stdout == results[1].stdout == cli(*FITS, "--json").stdout
    assert paths[0].read_bytes() == paths[1].read_bytes()
    words = " | ".join(t.strip() for t in ElementTree.parse(paths[0]).getroot().itertext() if t.strip())
    for label in ("arithmetic intensity (FLOP per byte)", "FLOP/s", "best matmul", "dense bf16 peak 312 TFLOP/s"):
        assert label in words
    for label in ("ffn up", "qkv", "memory", "step time", "device 79.2 GiB", "tensor parallel"):
        assert label in words
    assert [p.name for p in paths[0].parent.iterdir()] == ["p.svg"], "no temporary file stays"


@pytest.mark.parametrize(("suffix", "magic"), [(".PNG", b"\x89PNG\r\n"), (".pdf", b"%PDF-")])
def test_other_kinds_start_as_they_should(cli: Cli, tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"p{suffix}"
    assert cli(*FITS, "--plot", str(path)).returncode == 0
    assert path.read_bytes().startswith(magic)


def test_what_does_not_fit_is_drawn_and_still_answered_with_no(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "p.svg"
    args = ["predict", "--model", "gpt3-175b", "--system", "selene", "--layout", "dp=8,gbs=8"]
    assert cli(*args, "--plot", str(path)).returncode == 1
    assert "does not fit" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["p.jpg", "p", "svg", "p.svg.gz"])
def test_unknown_suffix_names_the_known_ones(cli: Cli, refused: Refused, tmp_path: Path, name: str) -> None:
    message = refused(cli(*FITS, "--plot", name, cwd=tmp_path))
    for word in (name, ".png", ".svg", ".pdf"):
        assert word in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["folder.svg", "file/under.svg", "/proc/none/x.svg"])
def test_place_that_cannot_be_written_is_one_sentence(cli: Cli, refused: Refused, tmp_path: Path, where: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file").write_text("x")
    assert where.strip("/").split("/")[0] in refused(cli(*FITS, "--plot", where, "--out", "o.json", cwd=tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.svg"]


def test_missing_matplotlib_names_the_extra(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('No module named matplotlib')\n")
    message = refused(cli(*FITS, "--plot", "p.png", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}), 3)
    assert "scalewright[report]" in message
    assert "matplotlib" in message
    assert cli(*FITS, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}).returncode == 0, "only the plot needs it"


@pytest.mark.parametrize("name", CASES)
def test_segments_add_up(name: str) -> None:
    prediction = ask(name)
    cost = prediction.transformer.cost
    picture = picture_of(prediction)
    assert sum(s.value for s in time_segments(picture)) == pytest.approx(float(cost.time.total))
    assert sum(s.value for s in memory_segments(picture)) == pytest.approx(float(cost.device_bytes))
    for segments in (time_segments(picture), memory_segments(picture)):
        assert len({s.colour for s in segments}) == len(segments)


@pytest.mark.parametrize("name", [*CASES, *STAGES])
def test_a_colour_has_one_meaning_in_the_figure(name: str) -> None:
    """A term of time that is no operation has a colour of no point, and memory has colours of its own."""
    picture = picture_of(ask_any(name))
    of_points = {KIND_COLOURS[point.kind] for point in points(picture)}
    kinds = {kind.replace("_", " ") for kind in KIND_COLOURS}
    others = [s for s in time_segments(picture) if s.name.removesuffix(" and loss") not in kinds]
    num_free = len(set(COLOURS) - of_points)
    assert not {segment.colour for segment in others[:num_free]} & of_points
    of_time = {segment.colour for segment in time_segments(picture)} - {REST}
    assert not of_time & {segment.colour for segment in memory_segments(picture)}


@pytest.mark.parametrize("name", [*CASES, *STAGES])
def test_points_are_the_largest_operations_under_their_roofs(name: str) -> None:
    picture = picture_of(ask_any(name))
    drawn_points = points(picture)
    for point in drawn_points:
        assert point.cache_intensity_flop_per_byte <= point.intensity_flop_per_byte * (1 + 1e-9)
        assert point.placement.attainable_flop_per_s <= picture.machine.peak_flop_per_s(picture.precision)
    assert 3 <= len(drawn_points) <= 9
    assert [p.share_frac for p in drawn_points] == sorted((p.share_frac for p in drawn_points), reverse=True)


def texts(figure: Figure) -> Iterator[Annotation]:
    for axes in figure.axes:
        yield from (t for t in axes.texts if isinstance(t, Annotation) and t.get_text() and t.get_rotation() == 0)


@pytest.mark.parametrize("name", [*CASES, *STAGES])
def test_no_label_covers_another_or_leaves_the_figure(name: str) -> None:
    figure = draw(picture_of(ask_any(name)))
    figure.set_dpi(DOTS_PER_INCH)
    figure.draw_without_rendering()
    for axes in figure.axes[1:]:
        legend = axes.get_legend()
        assert legend is not None
        assert legend.get_window_extent().x1 <= figure.bbox.x1
        assert legend.get_window_extent().y1 <= figure.bbox.y1
    assert tuple(figure.get_size_inches()) == SIZE_INCH
    boxes = {t.get_text(): t.get_window_extent() for t in texts(figure)}
    assert len(boxes) >= 6
    for word, box in boxes.items():
        assert box.x0 >= 0, word
        assert box.y0 >= 0, word
        assert box.x1 <= figure.bbox.x1, word
        for other, other_box in boxes.items():
            assert word == other or not box.shrunk(0.98, 0.8).overlaps(other_box.shrunk(0.98, 0.8)), (word, other)
