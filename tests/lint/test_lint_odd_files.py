"""Files that are no ordinary job scripts, and how much of the findings is shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., object]
JOB = "#!/bin/bash\n#SBATCH --nodes=1\nsrun hostname\n"
WRONG = "#!/bin/bash\n#SBATCH --time=1h\nsrun hostname\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("#!/bin/bash\n#PBS -l select=1\npython train.py\n", "PBS"),
        ("#!/bin/bash\n#BSUB -n 4\npython train.py\n", "LSF"),
        ("#!/bin/bash\n#$ -cwd\npython train.py\n", "SGE"),
        ("#!/bin/bash\n# flux: -N 2\npython train.py\n", "Flux"),
    ],
)
def test_a_script_for_another_scheduler_is_named(cli, tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "job.sh"
    path.write_text(text)
    done = cli("lint", str(path))
    assert done.returncode == 0
    assert f"no #SBATCH lines (this is {kind})" in done.stderr
    document = json.loads(cli("lint", str(path), "--json").stdout)
    assert [note["file"] for note in document["notes"]] == [str(path)]


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.json", '{"a": [1, 2]}\n', "JSON"),
        ("a", '[{"a": 1}]\n', "JSON"),
        ("a.md", "# Jobs\n\n#SBATCH --nodes=1\n", "Markdown"),
        ("notes", "Run it:\n\n```bash\n#SBATCH --nodes=1\n```\n", "Markdown"),
    ],
)
def test_a_document_is_bad_input_and_is_named(cli, tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "job.sh").write_text(WRONG)
    done = cli("lint", str(tmp_path / name), str(tmp_path / "job.sh"))
    assert done.returncode == 2
    assert f"(this is {kind})" in done.stderr
    assert "value-invalid" in done.stdout


def test_links_in_a_circle_pipes_and_devices_do_not_end_the_lint_of_other_files(cli, tmp_path: Path) -> None:
    loop, pipe, job = tmp_path / "loop.sh", tmp_path / "pipe.sh", tmp_path / "job.sh"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    job.write_text(WRONG)
    done = cli("lint", str(loop), str(pipe), "/dev/zero", str(job))
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 3
    assert done.stderr.count("is not an ordinary file") == 2
    assert "Traceback" not in done.stderr
    assert "value-invalid" in done.stdout


@pytest.mark.parametrize("depth", [200, 5000])
@pytest.mark.parametrize(("opening", "closing"), [("$(echo\n", ")\n"), ("(\n", ")\n"), ('"$(echo\n', ')"\n')])
def test_deep_nesting_is_no_traceback(cli, tmp_path: Path, depth: int, opening: str, closing: str) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH --time=1h\nx={opening * depth}1{closing * depth}\n")
    done = cli("lint", str(path))
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2)


def test_marks_and_line_ends_of_other_systems_are_named_and_fixed(cli, tmp_path: Path) -> None:
    marked, old_mac = tmp_path / "marked.sh", tmp_path / "mac.sh"
    marked.write_bytes(b"\xef\xbb\xbf" + JOB.encode())
    old_mac.write_bytes(JOB.replace("\n", "\r").encode())
    done = cli("lint", str(marked), str(old_mac))
    assert done.returncode == 1
    assert "byte order mark" in done.stdout
    assert "carriage return alone" in done.stdout
    cli("lint", "--fix", "--unsafe-fixes", "--select", "byte-order-mark,dos-line-ends", str(marked), str(old_mac))
    assert (marked.read_text(), old_mac.read_text()) == (JOB, JOB)


def test_a_zsh_script_is_named(cli, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(JOB.replace("bash", "zsh"))
    assert "this is a zsh script" in cli("lint", str(path)).stderr


def test_infos_are_one_line_unless_asked_for(cli, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(WRONG)
    done = cli("lint", str(path))
    assert "[value-invalid]" in done.stdout
    assert "[no-account]" not in done.stdout
    assert "(--all shows them): no-account, no-partition" in done.stdout
    for flags in (["--all"], ["--min-severity", "info"], ["--fail-on", "info"]):
        assert "[no-account]" in cli("lint", *flags, str(path)).stdout
    path.write_text(JOB.replace("srun", "export CUDA_LAUNCH_BLOCKING=1\nsrun"))
    assert "[debug-mode-left]" in cli("lint", str(path)).stdout
    few = cli("lint", "--min-severity", "error", str(path))
    assert "[" not in few.stdout
    assert few.returncode == 1
    severities = {f["severity"] for f in json.loads(cli("lint", "--json", str(path)).stdout)["findings"]}
    assert severities == {"info", "warning"}
    assert cli("lint", "--all", "--min-severity", "error", str(path)).returncode == 2
