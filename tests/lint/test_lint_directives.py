"""Which lines of a header sbatch reads, and what it reads in them."""

from __future__ import annotations

import pytest

from scalewright.errors import ConfigError
from scalewright.lint.header.overrides import all_overrides, command_line_options
from scalewright.lint.script import Script, parse_script


def header(*lines: str, body: str = "hostname\n") -> Script:
    return parse_script("#!/bin/bash\n" + "".join(f"{line}\n" for line in lines) + body)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --nodes=2", {"nodes": "2"}),
        ("#SBATCH --nodes 2", {"nodes": "2"}),
        ("#SBATCH -N2", {"nodes": "2"}),
        ("#SBATCH -N 2 -t 10", {"nodes": "2", "time": "10"}),
        ("#SBATCH\t--nodes=2\t# two of them", {"nodes": "2"}),
        ("#SBATCH --nodes=1# one", {"nodes": "1"}),
        ("#SBATCH--nodes=2", {"nodes": "2"}),
        ("#SLURM --nodes=2", {"nodes": "2"}),
        ("#SBATCH --job-name='two words'", {"job-name": "two words"}),
        ('#SBATCH -J "a # b"', {"job-name": "a # b"}),
        ("#SBATCH -HN1", {"hold": None, "nodes": "1"}),
        ("#SBATCH --exclusive=user --exclusive", {"exclusive": None}),
        ("#SBATCH --part=gpu", {"partition": "gpu"}),
        ("#SBATCH --tasks-per-node=4", {"ntasks-per-node": "4"}),
        ("#SBATCH --container-image=x.sqsh", {"container-image": "x.sqsh"}),
        ("#SBATCH -J x \\", {"job-name": "x"}),
        ("#SBATCH --account={{ project.name }}", {"account": "{{ project.name }}"}),
    ],
)
def test_a_directive_is_read_as_sbatch_reads_it(line: str, expected: dict[str, str | None]) -> None:
    script = header(line)
    assert {d.name: d.value for d in script.directives if d.is_effective} == expected
    assert not script.header.stray


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("# SBATCH --time=1:00", "malformed"),
        ("### SBATCH --time=1:00", "malformed"),
        ("#sbatch --time=1:00", "malformed"),
        (" #SBATCH --time=1:00", "malformed"),
        ("#SBTACH --time=1:00", "malformed"),
        ("##SBATCH --time=1:00", "disabled"),
        ("# #SBATCH --time=1:00", "disabled"),
    ],
)
def test_what_only_looks_like_a_directive_has_no_effect(line: str, kind: str) -> None:
    script = header("#SBATCH -N1", line)
    assert not script.has("time")
    assert [d.ignored for d in script.directives if d.name == "time"] == [kind]


def test_a_line_that_is_no_comment_ends_the_header_even_if_it_looks_like_a_directive() -> None:
    script = header("#SBATCH -N1", "!#SBATCH --time=1:00", "#SBATCH --mem=1G")
    assert [(d.name, d.ignored) for d in script.directives] == [("nodes", ""), ("time", "malformed"), ("mem", "late")]


def test_directives_after_the_first_command_are_late_but_those_in_a_heredoc_belong_to_another_script() -> None:
    body = "module load x\n#SBATCH --mem=1G\ncat > job.sh <<EOF\n#!/bin/bash\n#SBATCH --time=10\nEOF\nsbatch job.sh\n"
    script = header("#SBATCH -N1", body=body)
    late = [d for d in script.directives if d.ignored == "late"]
    assert [(d.name, d.line) for d in late] == [("mem", 4)]
    assert "line 3" in late[0].why_ignored


def test_the_last_of_two_equal_options_wins() -> None:
    script = header("#SBATCH --time=10", "#SBATCH -t 20")
    assert script.value("time") == "20"
    assert [d.ignored for d in script.directives] == ["overridden", ""]


@pytest.mark.parametrize(
    ("line", "word"),
    [("#SBATCH -J my job", "job"), ("#SBATCH –nodes=2", "–nodes=2"), ("#SBATCH --exclusive user", "user")],
)
def test_a_stray_word_stops_sbatch(line: str, word: str) -> None:
    script = header(line, "#SBATCH --mem=1G")
    assert [stray.text for stray in script.header.stray] == [word]
    assert not script.has("mem")


@pytest.mark.parametrize(
    ("line", "reason"),
    [('#SBATCH -J "abc', "quote"), ("#SBATCH -J x : -N1", "colon")],
)
def test_a_line_that_sbatch_cannot_read_is_an_error(line: str, reason: str) -> None:
    errors = header(line).header.errors
    assert errors[0][0] == 2
    assert reason in errors[0][1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("#SBATCH --nodse=2", "no option --nodse"),
        ("#SBATCH --node=2", "no option --node"),
        ("#SBATCH -Y", "no option -Y"),
        ("#SBATCH --requeue=1", "takes no value"),
        ("#SBATCH --time", "needs a value"),
    ],
)
def test_options_that_sbatch_refuses_say_why(line: str, problem: str) -> None:
    assert problem in header(line).directives[0].problem


def test_a_heterogeneous_job_has_components() -> None:
    script = header("#SBATCH -N1 --mem=1G", "#SBATCH hetjob", "#SBATCH -N4")
    assert script.header.num_components == 2
    assert [(d.name, d.component) for d in script.directives] == [("nodes", 0), ("mem", 0), ("nodes", 1)]
    assert script.value("nodes") == "1"


def test_carriage_returns_do_not_reach_the_values() -> None:
    script = parse_script("#!/bin/bash\r\n#SBATCH -N2\r\nsrun a \\\r\n  b\r\n")
    assert script.value("nodes") == "2"
    assert script.commands[0].texts == ("srun", "a", "b")
    assert script.newline == "\r\n"


def test_columns_mark_the_option_itself() -> None:
    directive = header("#SBATCH -N 2 --time=10  # c").directive("time")
    assert directive is not None
    assert directive.raw[directive.column - 1 : directive.end_column - 1] == "--time=10"


def test_the_command_line_wins_over_the_environment_and_both_over_the_header() -> None:
    overrides = all_overrides({"SBATCH_TIMELIMIT": "20", "SBATCH_ACCOUNT": "a", "HOME": "/"}, "--time=30 -N4")
    script = parse_script("#!/bin/bash\n#SBATCH --time=10\n#SBATCH -A b\n", overrides=overrides)
    assert (script.value("time"), script.value("account"), script.num_nodes) == ("30", "a", 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-N 2 job.sh", "'job.sh'"),
        ("--nodse=2", "did you mean --nodes"),
        ("-J 'x", "close the quote"),
        ("-N", "needs a value"),
    ],
)
def test_a_command_line_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        command_line_options(text)


@pytest.mark.parametrize(
    ("lines", "nodes", "per_node", "total"),
    [
        (["#SBATCH -N2", "#SBATCH --gres=gpu:a100:4"], 2, 4, 8),
        (["#SBATCH -N2", "#SBATCH --gres=gpu:4,nvme:1"], 2, 4, 8),
        (["#SBATCH -N2", "#SBATCH --gpus=8"], 2, 4, 8),
        (["#SBATCH -N2", "#SBATCH --gpus-per-node=h100:4"], 2, 4, 8),
        (["#SBATCH -N2", "#SBATCH --ntasks-per-node=4", "#SBATCH --gpus-per-task=1"], 2, 4, 8),
        (["#SBATCH --gres=gpu"], 1, 1, 1),
        (["#SBATCH -N{{ n }}", "#SBATCH --gpus-per-node=4"], None, 4, None),
        (["#SBATCH -n8", "#SBATCH --gpus-per-task=1"], None, None, None),
    ],
)
def test_nodes_and_gpus_are_counted_where_the_script_says(
    lines: list[str], nodes: int | None, per_node: int | None, total: int | None
) -> None:
    script = header(*lines)
    assert (script.num_nodes, script.gpus_per_node, script.num_gpus) == (nodes, per_node, total)
    assert script.asks_for_gpus
