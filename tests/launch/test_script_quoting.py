"""No input breaks quoting: bad text is refused in one sentence, or reaches the command as it is and does nothing."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sandbox import Ran, execute, make

from scalewright.errors import ConfigError
from scalewright.launch.script.quoting import directive, quote
from scalewright.launch.script.render import render
from scalewright.launch.script.request import OWN_NAMES, ArrayTasks, Container, JobRequest
from script_cases import SITES, request_for

SLOW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
FAST = settings(max_examples=200, deadline=None)
NASTY = (
    "$(touch canary)", "`touch canary`", "'; touch canary; '", '"; touch canary; "', "\n#SBATCH --nodes=99", "a\nb",
    "$HOME", "${IFS}", "\\", "\\n", "!x", "*", "~", "-n", "--", "{run_dir}x", "é€漢", "\x01", "\x7f", "a b", "", "%j",
    "#", "&", "|touch canary", ";touch canary", ">canary", "$((touch canary))", "\r\n", "\t", "'", '"', "{item}", "\\'",
)  # fmt: skip
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY), min_size=2, max_size=4).map("".join),
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20),
)
GENERIC = SITES["generic"]


@contextmanager
def sandbox() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        yield make(Path(folder) / "s")


def run(folder: Path, request: JobRequest, site: str = "generic") -> Ran:
    ran = execute(folder, render(replace(request, run_dir=folder / "run", work_dir=folder), SITES[site]).text)
    assert ran.created() == set(), ran.stderr
    assert not (folder / "run" / "canary").exists()
    return ran


def one_sentence(error: ConfigError) -> None:
    assert len(str(error).splitlines()) == 1


def expected(word: str, folder: Path) -> str:
    return word.replace("{run_dir}", str(folder / "run"))


@SLOW
@given(st.lists(TEXT, min_size=1, max_size=4), TEXT)
@example(list(NASTY), "$(touch canary)")
def test_arguments_and_variables_arrive_as_they_were_given(words: list[str], value: str) -> None:
    with sandbox() as folder:
        ran = run(folder, request_for(GENERIC, command=("probe", *words), variables={"CHOSEN": value}))
        assert ran.code == 0, ran.stderr
        assert ran.argv == [expected(word, folder) for word in words]
        assert ran.chosen == value
        assert ran.exit_info["reason"] == "finished"


@SLOW
@given(st.sampled_from(sorted(SITES)), st.sampled_from(("srun", "torchrun")), TEXT)
def test_arguments_survive_every_site_and_launcher(site: str, launcher: str, word: str) -> None:
    """torchrun stands for itself: the sandbox's python hands its arguments to the command."""
    with sandbox() as folder:
        python = folder / "bin" / "python"
        python.write_text(
            "#!/bin/bash\nif [[ $1 != -c ]]; then while [[ $1 != --no-python ]]; do shift; done; else shift; fi\n"
            'shift\nexec "$@"\n'
        )
        python.chmod(0o755)
        request = request_for(SITES[site], command=("probe", word), launcher=launcher, num_nodes=1)
        ran = run(folder, request, site)
        assert ran.code == 0, ran.stderr
        assert ran.argv == [expected(word, folder)]


@SLOW
@given(TEXT, TEXT)
def test_arguments_and_image_paths_survive_a_container(word: str, name: str) -> None:
    with sandbox() as folder:
        image = folder / "run" / (name.replace("/", "_") + ".sif")
        try:
            container = Container(image=str(image))
            request = request_for(GENERIC, command=("probe", word), container=container, variables={"CHOSEN": word})
        except ConfigError as error:
            one_sentence(error)
            return
        image.parent.mkdir()
        image.touch()
        ran = run(folder, request)
        assert ran.code == 0, ran.stderr
        assert ran.argv == [expected(word, folder)]
        given_to = (folder / "runtime.argv").read_bytes().decode().split("\0")
        assert str(image) in given_to


@SLOW
@given(TEXT.filter(lambda text: "\n" not in text))
@example("$(touch canary)")
@example("it's \\ a `line`")
def test_line_of_a_manifest_is_an_argument_and_nothing_else(line: str) -> None:
    with sandbox() as folder:
        manifest = folder / "run" / "manifest.txt"
        manifest.parent.mkdir()
        manifest.write_bytes(line.encode() + b"\n")
        tasks = ArrayTasks(manifest=manifest, num_items=1, max_running=1)
        ran = execute(
            folder,
            render(
                request_for(
                    GENERIC, command=("probe", "--in={item}"), array=tasks, run_dir=folder / "run", work_dir=folder
                ),
                GENERIC,
            ).text.replace("RANDOM % 15", "0"),
        )
        assert ran.created() == set()
        if line:
            assert ran.argv == [f"--in={line}"], ran.stderr
        else:
            assert (ran.code, ran.argv) == (2, None)


@SLOW
@given(TEXT)
def test_staged_names_are_copied_and_cleared_away(name: str) -> None:
    with sandbox() as folder:
        source = folder / "run" / f"data{name.replace('/', '_')}"
        try:
            request = request_for(GENERIC, command=("probe", "{copy}"), copied_paths=(str(source),))
        except ConfigError:
            return
        source.parent.mkdir()
        source.write_text("x")
        ran = run(folder, request)
        assert ran.code == 0, ran.stderr
        assert ran.argv is not None
        assert ran.argv[0].startswith(str(folder / "tmp"))
        assert list((folder / "tmp").iterdir()) == []


FIELDS = ("name", "account", "partition", "qos", "constraint", "reservation", "switches", "mig", "transport", "venv")


@FAST
@given(st.sampled_from(FIELDS), TEXT)
def test_fields_of_the_header_are_refused_or_stay_one_value(field: str, text: str) -> None:
    plain = render(request_for(GENERIC, account="a"), GENERIC).text.split("\n\n")[0].splitlines()
    try:
        rendered = render(request_for(GENERIC, **{field: text}), GENERIC).text
    except ConfigError as error:
        one_sentence(error)
        return
    header = rendered.split("\n\n")[0].splitlines()
    assert all(line.startswith("#SBATCH --") for line in header[1:])
    assert len(header) <= len(plain) + 1
    assert sum(line.startswith("#SBATCH") for line in rendered.splitlines()) == len(header) - 1 or "\n" in text


@FAST
@given(TEXT, TEXT)
def test_paths_and_directives_are_refused_or_stay_on_their_line(text: str, value: str) -> None:
    try:
        rendered = render(
            request_for(
                GENERIC, run_dir=Path("/r/" + text), work_dir=Path("/w/" + text), directives={"comment": value}
            ),
            GENERIC,
        ).text
    except ConfigError as error:
        one_sentence(error)
        return
    header = rendered.split("\n\n")[0].splitlines()
    assert [line.split("=")[0] for line in header if "chdir" in line or "output" in line or "comment" in line] == [
        "#SBATCH --chdir", "#SBATCH --output", "#SBATCH --comment"
    ]  # fmt: skip


@FAST
@given(TEXT)
def test_directive_reads_back_as_slurm_would(text: str) -> None:
    """Slurm's reader: quotes group, a backslash escapes, an unquoted space or # ends the value."""
    try:
        line = directive(f"--comment={text}")
    except ConfigError:
        return
    value, quoted = "", ""
    for character in line.removeprefix("#SBATCH --comment="):
        if quoted:
            quoted, value = ("", value) if character == quoted else (quoted, value + character)
        elif character in "'\"":
            quoted = character
        else:
            assert not character.isspace()
            value += character
    assert value == text


PATHS = st.one_of(
    st.sampled_from(("/p/x", "/p/a b", "/p/$(touch canary)", '/p/é;#&|*~!"`touch canary`', "/p/${HOME}", "/p/{item}")),
    TEXT.map(lambda text: "/p/x" + text.replace("/", "_")),
)
"""Most can stand in a header; the others are refused."""


@st.composite
def whole_requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A site, and everything that somebody may write for it at once."""
    site = draw(st.sampled_from(sorted(SITES)))
    request: dict[str, Any] = {
        "command": (draw(st.sampled_from(("python", "/o p/python3.11", "./run"))), *draw(st.lists(TEXT, max_size=4))),
        "launcher": draw(st.sampled_from(("srun", "torchrun"))),
        "num_nodes": draw(st.integers(1, 3)),
        "requeue": draw(st.booleans()),
        "variables": draw(st.dictionaries(st.sampled_from(("A", "NCCL_DEBUG", "OMP_NUM_THREADS")), TEXT)),
        "directives": draw(st.dictionaries(st.sampled_from(("comment", "exclude", "mail-user")), TEXT, max_size=1)),
        "run_dir": Path(draw(PATHS)),
        "work_dir": Path(draw(PATHS)),
        "venv": draw(st.just("") | PATHS),
        "copied_paths": tuple(draw(st.lists(PATHS, max_size=2, unique=True))),
        "notes": tuple(draw(st.lists(TEXT, max_size=2))),
    }
    if draw(st.booleans()):
        request["array"] = ArrayTasks(manifest=Path(draw(PATHS)), num_items=2, max_running=1)
    elif draw(st.booleans()):
        request["num_spares"] = 1
    return site, request


def rendered_or_refused(site: str, changes: dict[str, Any], image: str) -> str:
    """The script; empty where the request is refused, which it is in one sentence."""
    try:
        container = Container(image=image) if image else None
        return render(request_for(SITES[site], container=container, **changes), SITES[site]).text
    except ConfigError as error:
        one_sentence(error)
        return ""


@settings(SLOW, max_examples=60)
@given(whole_requests(), st.just("") | PATHS)
def test_whatever_is_asked_for_at_once_bash_reads_the_script(whole: tuple[str, dict[str, Any]], image: str) -> None:
    text = rendered_or_refused(*whole, image)
    read = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
    assert (read.returncode, read.stderr) == (0, b"")


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
def test_text_that_no_script_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"NUL|UTF-8"):
        quote(text)
    with pytest.raises(ConfigError, match=r"NUL|UTF-8"):
        request_for(GENERIC, command=("probe", text))


def test_sandbox_would_see_an_unquoted_word() -> None:
    with sandbox() as folder:
        request = request_for(GENERIC, command=("probe", "$(touch canary)"), run_dir=folder / "run", work_dir=folder)
        text = render(request, GENERIC).text
        assert "'$(touch canary)'" in text
        assert execute(folder, text.replace("'$(touch canary)'", '"$(touch canary)"')).created() == {"canary"}


def test_no_variable_of_the_script_can_be_overwritten() -> None:
    """Every variable that any script sets is one that --env refuses."""
    for site in SITES.values():
        copied, tasks = ("/data/x",), ArrayTasks(manifest=Path("/m"), num_items=1, max_running=1)
        for launcher in ("srun", "torchrun"):
            takes_files = any(runtime.kind != "shifter" for runtime in site.runtimes)
            container = Container(image="/data/i.sif") if takes_files else None
            request = request_for(
                site, launcher=launcher, copied_paths=copied, array=tasks, container=container, num_nodes=1
            )
            text = render(request, site).text
            names = set(re.findall(r"^(?:\S+=\S* )*([a-z]\w*)=", text, re.MULTILINE))
            names |= set(re.findall(r"^mapfile -t (?:-\S \S+ )*(\w+)", text, re.MULTILINE))
            assert names <= OWN_NAMES
