"""The body of a script as commands: launchers, their options, and what encloses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.lint.script import Script, parse_script


def body(text: str, folder: Path | None = None) -> Script:
    return parse_script("#!/bin/bash\n#SBATCH -N2\n" + text, folder=folder)


def test_a_chain_of_launchers_is_taken_apart() -> None:
    script = body(
        "srun -n 8 --cpu-bind=cores $MORE apptainer exec --nv -B /a:/b img.sif numactl -l "
        "torchrun --nproc_per_node 4 --standalone train.py --lr 1\n"
    )
    assert [launch.tool for launch in script.launches] == ["srun", "apptainer", "torchrun"]
    srun, container, torchrun = script.launches
    assert srun.value("ntasks") == "8"
    assert srun.value("cpu-bind") == "cores"
    assert container.image is not None
    assert container.image.text == "img.sif"
    assert container.has("nv")
    assert torchrun.value("nproc-per-node") == "4"
    assert [word.text for word in torchrun.program] == ["train.py", "--lr", "1"]
    assert torchrun.is_inside("srun", "apptainer")


@pytest.mark.parametrize(
    ("line", "tools"),
    [
        ("python -m torch.distributed.run --nproc_per_node=4 t.py", ["torchrun"]),
        ("python3 -u -m torch.distributed.launch t.py", ["torchrun"]),
        ("mpirun -np 4 -x A --mca btl self,tcp python t.py", ["mpirun", "python"]),
        ("accelerate launch --multi_gpu --num_processes 4 t.py", ["accelerate"]),
        ("deepspeed --num_gpus 4 --no_ssh t.py --deepspeed ds.json", ["deepspeed"]),
        ("time srun -N1 hostname", ["srun"]),
        ("env A=1 timeout 10 srun hostname", ["srun"]),
        ("/opt/slurm/bin/srun hostname", ["srun"]),
        ("shifter --image=x:1 python t.py", ["shifter", "python"]),
        ("singularity pull x.sif docker://x", []),
        ("conda run -n env python t.py", ["python"]),
        ("uv run torchrun --standalone t.py", ["torchrun"]),
        ("srun > log.txt torchrun t.py", ["srun", "torchrun"]),
    ],
)
def test_launchers_are_known_by_what_they_do(line: str, tools: list[str]) -> None:
    assert [launch.tool for launch in body(line + "\n").launches] == tools


def test_values_of_variables_are_put_in_where_the_script_sets_them_for_certain() -> None:
    script = body(
        'LAUNCHER="torchrun \\\n  --nproc_per_node 4 \\\n  --rdzv_endpoint $head:29500"\n'
        'ARGS=(--lr 1 "two words")\nARGS+=(--more)\n'
        'srun bash -c "$LAUNCHER train.py ${ARGS[@]}"\nsrun $LAUNCHER train.py "${ARGS[@]}"\n'
    )
    first, second = script.launched("torchrun")
    assert first.value("nproc-per-node") == second.value("nproc-per-node") == "4"
    assert first.outer[0].tool == "srun"
    assert [word.text for word in second.program] == ["train.py", "--lr", "1", "two words", "--more"]


@pytest.mark.parametrize(
    "setting",
    [
        "if x; then A=torchrun; else A=python; fi",
        "for A in torchrun python; do",
        "A=$(cat file)",
        "read A",
        "f() { A=torchrun; }",
    ],
)
def test_values_that_are_not_certain_are_not_put_in(setting: str) -> None:
    end = "done\n" if setting.endswith("do") else ""
    assert not body(f"{setting}\nsrun $A t.py\n{end}").launched("torchrun")


def test_every_command_knows_what_it_stands_in() -> None:
    script = body(
        "one &\nif two; then three; fi\nwhile four; do five; done\nfor i in 1; do six | seven; done\n"
        "f() { eight; }\n(nine)\nten=$(eleven)\ntwelve && thirteen\n[ -f x ] || fourteen\nbash <<E\nfifteen\nE\n"
    )
    within = {command.name: command.within for command in script.commands}
    assert within["one"].is_background
    assert within["two"].is_condition
    assert within["three"].is_branch
    assert within["four"].is_condition
    assert within["five"].loops == ("while",)
    assert within["six"].loops == ("for",)
    assert within["six"].is_pipeline
    assert within["seven"].is_pipeline
    assert within["eight"].functions == ("f",)
    assert within["nine"].is_subshell
    assert within["eleven"].is_substitution
    assert within["twelve"].is_condition
    assert within["thirteen"].is_branch
    assert within["fourteen"].is_branch
    assert within["fifteen"].is_heredoc


def test_two_assignments_on_a_line_do_not_belong_to_the_next_command() -> None:
    script = body("A=1 B=2\npython t.py\nC=3 python u.py\n")
    first, second = script.called("python")
    assert not first.environment
    assert [name for name, _ in second.environment] == ["C"]
    assert {a.name for a in script.assignments} == {"A", "B"}
    assert (first.line, second.line) == (4, 5)


def test_exports_traps_heredocs_and_shell_options_are_found() -> None:
    script = body("set -euo pipefail\nA=1\nexport A B=2\ntrap 'x; y' SIGUSR1 15\ncat <<'E' >f\n$z\nE\n")
    assert set(script.exports) == {"A", "B"}
    assert [(trap.action, trap.signals) for trap in script.traps] == [("x; y", ("USR1", "TERM"))]
    assert [(doc.text, doc.is_quoted) for doc in script.heredocs] == [("$z\n", True)]
    assert script.shell_options == {"errexit", "nounset", "pipefail"}
    assert parse_script("#!/bin/bash -eu\nx\n").shell_options == {"errexit", "nounset"}


def test_a_sourced_file_is_followed_and_its_commands_stand_at_the_line_that_sources_it(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export PORT=29500\nsource deeper.sh\n", encoding="utf-8")
    (tmp_path / "deeper.sh").write_text("source env.sh\nnvidia-smi\n", encoding="utf-8")
    script = body("source env.sh\necho $PORT\n", tmp_path)
    (command,) = script.called("nvidia-smi")
    assert (command.line, command.origin) == (3, "deeper.sh:2")
    assert script.exports["PORT"].origin == "env.sh:1"
    assert script.called("echo")[0].texts == ("echo", "29500")
    assert script.sourced == ("env.sh", "deeper.sh")


def test_placeholders_of_a_template_keep_every_column() -> None:
    text = (
        "#!/bin/bash\n{% if big %}\n#SBATCH --nodes={{ nodes | default(2) }} --time=10\n{% endif %}\n"
        'srun -n {{ ranks }} python "{{ script }}" ${#A[@]} {# why #}\n'
    )
    script = parse_script(text)
    assert script.is_template
    assert len(script.masked) == len(text)
    assert script.value("nodes") == "{{ nodes | default(2) }}"
    assert script.is_placeholder("nodes")
    assert script.number("nodes") is None
    assert script.value("time") == "10"
    (command,) = script.called("srun")
    assert command.texts == ("srun", "-n", "{{ ranks }}", "python", "{{ script }}", "${#A[@]}")
    assert [word.is_static for word in command.words] == [True, True, False, True, False, False]


def test_places_are_right_in_text_that_is_not_ascii() -> None:
    script = body('echo "größer 日本" # ✓\nsrun hostname\n')
    (command,) = script.called("srun")
    assert script.text[command.start : command.end] == "srun hostname"
    assert (command.line, command.column) == (4, 1)


@pytest.mark.parametrize("shebang", ["#!/usr/bin/env python3", "#!/usr/bin/python", "#!/usr/bin/Rscript"])
def test_of_another_interpreter_only_the_header_is_read(shebang: str) -> None:
    script = parse_script(f"{shebang}\n#SBATCH -N2\nprint('srun x')\n")
    assert script.num_nodes == 2
    assert not script.commands
