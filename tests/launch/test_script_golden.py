"""Scripts per site, compared as a whole with stored ones, and clean for bash and ShellCheck in every variant."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scalewright.launch.script.render import render
from scalewright.launch.script.request import ArrayTasks, Container
from scalewright.lint.engine import Linter
from scalewright.lint.rule import Context
from scalewright.lint.script_file import read_script
from scalewright.lint.settings import LintSettings
from script_cases import GOLDEN, SITES, cases, request_for, stored_text

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_script_is_the_stored_one(name: str) -> None:
    site, request = CASES[name]
    assert stored_text(site, request) == (GOLDEN / f"{name}.sbatch").read_text(encoding="utf-8")


def test_every_stored_script_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*")} == set(CASES)


def variants(site: str) -> dict[str, dict[str, object]]:
    tasks = ArrayTasks(manifest=Path("/a b/items"), num_items=4, max_running=2)
    software = {"venv": "/v e/x", "modules": ("PyTorch/2.9",), "variables": {"A": "it's $(x) \\"}, "requeue": False}
    changes_of: dict[str, dict[str, object]] = {
        "srun": {"launcher": "srun", "array": tasks, "copied_paths": ("/data/a b", "/data/c")},
        "ray": {"ray": True, "venv": "/v e/x", "copied_paths": ("/data/a b",)},
        "torchrun": {"launcher": "torchrun", "transport": "tcp", **software},
    }
    for runtime in SITES[site].runtimes:
        image = "org/image:1" if runtime.kind == "shifter" else "/images/a b.sif"
        digest = "" if runtime.kind == "shifter" else "a" * 64
        for launcher in ("srun", "torchrun"):
            container = Container(image=image, sha256=digest, runtime=runtime.kind)
            copied = () if runtime.kind == "shifter" else (image,)
            names = {"variables": {"OWN": "1", "NCCL_DEBUG": "WARN"}}
            changes_of[f"{runtime.kind} {launcher}"] = {
                "container": container,
                "launcher": launcher,
                "copied_paths": copied,
            } | names
    return changes_of


def written_variants(folder: Path) -> list[Path]:
    paths = []
    for name in SITES:
        for index, changes in enumerate(variants(name).values()):
            path = folder / f"{name}-{index}.sh"
            path.write_text(render(request_for(SITES[name], num_nodes=1, **changes), SITES[name]).text)
            paths.append(path)
    return paths


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("-ray")])
def test_our_linter_finds_nothing_to_change_in_a_ray_job(name: str) -> None:
    site, _ = CASES[name]
    linter = Linter(settings=LintSettings(), context=Context(site=site))
    path = GOLDEN / f"{name}.sbatch"
    findings = linter.lint(read_script(path.read_text(), str(path), {}, path.parent))
    assert [finding.rule for finding in findings if finding.severity != "info"] == []


def test_every_variant_is_clean_for_bash(tmp_path: Path) -> None:
    for path in written_variants(tmp_path):
        checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), path.name


def test_every_line_of_every_variant_is_clean_for_shellcheck(tmp_path: Path) -> None:
    """In scripts that together hold all lines: most lines are the same at every site, and each script takes a while."""
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    lines = {path: set(path.read_text().splitlines()) for path in written_variants(tmp_path)}
    lines = {path: {line for line in own if not line.startswith("#")} for path, own in lines.items()}
    left, files = set().union(*lines.values()), []
    while left:
        files.append(max(lines, key=lambda path: len(lines[path] & left)))
        left -= lines[files[-1]]
    linted = subprocess.run(["shellcheck", "--norc", "-f", "gcc", *files], capture_output=True, text=True, check=False)
    assert linted.stdout == ""
    assert linted.returncode == 0


def test_shellcheck_would_find_an_unquoted_value(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    path = tmp_path / "bad.sh"
    path.write_text((GOLDEN / "generic.sbatch").read_text().replace('requeue "$SLURM_JOB_ID"', "requeue $SLURM_JOB_ID"))
    assert "SC2086" in subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, check=False).stdout
