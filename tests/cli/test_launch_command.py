"""`launch` and `site` from outside: scripts, refusals, submission through a small sbatch, and nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.records.documents import read_document
from scalewright.records.run_directory import RunDirectory
from scalewright.sites.loader import packaged_sites
from scalewright.workload import language_run

Here = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
LUMI = ("launch", "--site", "lumi", "--nodes", "2", "--account", "project_465000123", "--time", "02:00:00")
COMMAND = ("--", "python", "train.py")


@pytest.fixture
def sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder first on PATH, whose sbatch keeps what it is given and answers 77."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/argv\necho "site says hello"\necho "77;lumi"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = [
        "plan",
        "--model",
        "llama2-7b",
        "--system",
        "lumi",
        "--nodes",
        "4",
        "--global-batch",
        "256",
        "--steps",
        "1000",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "scalewright", *words, "--out", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


def test_dry_run_prints_the_script_and_writes_nothing(here: Here, tmp_path: Path) -> None:
    done = here(*LUMI, "--dry-run", *COMMAND)
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=scalewright\n")
    assert f"#SBATCH --output={tmp_path}/runs/" in done.stdout
    assert "command=(python train.py)\n" in done.stdout
    assert "\n# untested: " in done.stdout
    assert done.stderr == (
        "note: near its time limit the job is queued again, at most 100 times, until its program finishes or fails. "
        "A program that does not save on USR1 starts over each time: use --no-requeue, or change max_requeues=100 in "
        "the script.\n"
    )
    assert "\nmax_requeues=100\n" in done.stdout
    assert here(*LUMI, "--dry-run", "--no-requeue", *COMMAND).stderr == ""
    assert list(tmp_path.iterdir()) == []
    body = json.loads(here(*LUMI, "--dry-run", "--json", *COMMAND).stdout)
    assert body["schema"] == "scalewright.job-script/1"
    assert body["site"] == "lumi"
    assert body["script"].startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("launch", "--site", "lummi", "--nodes", "1", *COMMAND), ["lummi", "lumi", "site show"]),
        ((*LUMI, "--partition", "standard", *COMMAND), ["'standard'", "standard-g", "small-g"]),
        (("launch", "--site", "lumi", "--nodes", "2", "--time", "1:00:00", *COMMAND), ["an account", "nine digits"]),
        ((*LUMI[:-1], "3-00:00:00", *COMMAND), ["3-00:00:00", "2-00:00:00", "standard-g"]),
        ((*LUMI, "--gpus-per-node", "16", *COMMAND), ["16", "has 8 GPUs"]),
        ((*LUMI[:-1], "two hours", *COMMAND), ["two hours", "HH:MM:SS"]),
        ((*LUMI[:-2], *COMMAND), ["no time limit", "--time"]),
        (LUMI, ["nothing to run"]),
        (("launch", "--site", "lumi", "--account", "a", "--time", "10", *COMMAND), ["give --nodes"]),
        ((*LUMI, "--launcher", "mpirun", *COMMAND), ["mpirun", "srun, torchrun"]),
        ((*LUMI, "--ray", "--launcher", "srun", *COMMAND), ["--launcher", "--ray"]),
        ((*LUMI, "--ray", "--container", "a.sif", *COMMAND), ["--container", "--ray"]),
        ((*LUMI, "--ray", "--spares", "1", *COMMAND), ["--spares", "--ray"]),
        ((*LUMI, "--name", "a b", *COMMAND), ["'a b'", "letters"]),
        ((*LUMI, "--env", "A", *COMMAND), ["'A'", "NAME=VALUE"]),
        ((*LUMI, "--env", "A=1", "--env", "A=2", *COMMAND), ["A is given twice"]),
        ((*LUMI, "--env", "run_dir=x", *COMMAND), ["run_dir", "another name"]),
        ((*LUMI, "--env", "SLURM_JOB_ID=1", *COMMAND), ["SLURM_JOB_ID", "another name"]),
        ((*LUMI, "--env", "UID=1", *COMMAND), ["UID", "another name"]),
        ((*LUMI, "--array", "none.txt", *COMMAND), ["none.txt", "no such file"]),
        ((*LUMI, "--container", "torch.sif", *COMMAND), ["torch.sif", "full path"]),
        ((*LUMI, "--container", "/a.sif@sha256:12", *COMMAND), ["64 hexadecimal"]),
        ((*LUMI, "--notice", "3 h", *COMMAND), ["10800 s", "does not fit"]),
        ((*LUMI, "--spares", "-1", *COMMAND), ["--spares -1", "0 or more"]),
        ((*LUMI, "--device", "cpu", *COMMAND), ["--device cpu", "for plans"]),
        ((*LUMI, "--device", "tpu", *COMMAND), ["--device 'tpu'", "cpu, cuda"]),
        (("launch", "none.json", "--site", "lumi"), ["none.json", "no such file"]),
        (("site", "show", "lummi"), ["lummi", "lumi"]),
        (("site", "detect", "--as", "A b"), ["'A b'", "lower-case"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing(
    here: Here, refused: Refused, tmp_path: Path, args: tuple[str, ...], words: list[str]
) -> None:
    line = refused(here(*args))
    assert [word for word in words if word not in line] == []
    assert list(tmp_path.iterdir()) == []


def test_account_of_another_form_only_warns(here: Here) -> None:
    done = here(*LUMI[:-3], "odd", *LUMI[-2:], "--dry-run", *COMMAND)
    assert done.returncode == 0
    assert "account odd does not have the form of LUMI" in done.stderr
    assert "#SBATCH --account=odd\n" in done.stdout


def test_submission_prints_the_number_and_keeps_the_script(here: Here, sbatch: Path, tmp_path: Path) -> None:
    done = here(*LUMI, "--run-dir", "r", *COMMAND)
    assert (done.returncode, done.stdout) == (0, "77\n"), done.stderr
    for words in (f"run directory is {tmp_path / 'r'}", f"scalewright jobs logs {tmp_path / 'r'}", "advise --job 77"):
        assert words in done.stderr
    first, *_, last = (sbatch / "argv").read_text().splitlines()
    assert (first, last) == ("--parsable", str(tmp_path / "r" / "script.sh"))
    assert (tmp_path / "r" / "logs").is_dir()
    assert read_document(tmp_path / "r" / "config.json", "command-run")["command"] == ["python", "train.py"]
    assert here(*LUMI, "--run-dir", "r", *COMMAND).returncode == 0
    other = here(*LUMI, "--run-dir", "r", "--", "python", "other.py")
    assert other.returncode == 2
    assert "another configuration" in other.stderr


def test_gpu_hours_over_the_limit_are_refused_unless_forced(here: Here, sbatch: Path, refused: Refused) -> None:
    """Two nodes of eight for two hours."""
    line = refused(here(*LUMI, "--limit-gpu-hours", "31", *COMMAND), 1)
    assert "32 GPU-hours, over the limit of 31" in line
    assert not (sbatch / "argv").exists()
    assert "for 32 GPU-hours" in here(*LUMI, "--limit-gpu-hours", "32", *COMMAND).stderr
    assert here(*LUMI, "--limit-gpu-hours", "31", "--force", *COMMAND).returncode == 0


def test_more_nodes_than_the_partition_has_are_warned_of(here: Here, sbatch: Path) -> None:
    program = sbatch / "sinfo"
    program.write_text("#!/bin/sh\nprintf 'standard-g|1\\nstandard-g|1\\nsmall-g*|9\\n'\n")
    program.chmod(0o755)
    fits = here(*LUMI, *COMMAND)
    assert (fits.returncode, "warning" in fits.stderr) == (0, False)
    done = here(*LUMI, "--spares", "1", *COMMAND)
    assert (done.returncode, done.stdout) == (0, "77\n")
    assert "warning: partition standard-g has 2 nodes, and 3 are requested" in done.stderr


def test_without_a_cluster_one_sentence_says_where_to_find_one(here: Here, sbatch: Path, refused: Refused) -> None:
    program = sbatch / "scontrol"
    program.write_text("#!/bin/sh\necho 'scontrol: fatal: Could not establish a configuration source' >&2\nexit 1\n")
    program.chmod(0o755)
    for words in (
        ("site", "detect"),
        ("site", "check", "lumi"),
        ("launch", "--site", "here", "--nodes", "1", *COMMAND),
    ):
        assert "scalewright lab env ID" in refused(here(*words), 3)


def test_array_keeps_its_own_manifest(here: Here, sbatch: Path, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "items").write_text("a b\nc")
    assert here(*LUMI, "--run-dir", "r", "--array", "items", "--width", "1", "--", "run", "{item}").returncode == 0
    assert (tmp_path / "r" / "manifest.txt").read_text() == "a b\nc\n"
    script = (tmp_path / "r" / "script.sh").read_text()
    assert "#SBATCH --array=0-1%1\n" in script
    (tmp_path / "items").write_text("a\n\nb\n")
    assert "line 2: is empty" in refused(here(*LUMI, "--array", "items", *COMMAND))


def test_missing_sbatch_is_said_before_anything_is_written(
    here: Here, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sbatch is not on PATH" in refused(here(*LUMI, *COMMAND), 3)
    assert list(tmp_path.iterdir()) == []
    assert "scontrol is not on PATH" in refused(here("site", "detect"), 3)


def test_words_of_sbatch_are_shown_when_it_refuses(here: Here, sbatch: Path, refused: Refused) -> None:
    (sbatch / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\necho '  for you' >&2\nexit 1\n"
    )
    line = refused(here(*LUMI, *COMMAND), 3)
    assert "sbatch refused: Invalid account; for you" in line
    (sbatch / "sbatch").write_text("#!/bin/sh\necho 'Submitted'\n")
    assert "printed no job id: 'Submitted'" in refused(here(*LUMI, *COMMAND), 3)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refuse(sbatch: Path, words: str) -> None:
    (sbatch / "sbatch").write_text(f'#!/bin/sh\necho "sbatch: error: {words}" >&2\nexit 1\n')


def test_a_refused_job_leaves_nothing_behind(here: Here, sbatch: Path, tmp_path: Path) -> None:
    refuse(sbatch, "invalid account")
    (tmp_path / "mine").mkdir()
    before = files_in(tmp_path)
    assert here(*LUMI, *COMMAND).returncode == 3
    assert here(*LUMI, "--run-dir", "mine", *COMMAND).returncode == 3
    assert files_in(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "mine"]
    assert not list((tmp_path / "mine").iterdir())


def test_a_refused_plan_and_array_leave_nothing_behind(
    here: Here, sbatch: Path, plan_file: Path, tmp_path: Path
) -> None:
    refuse(sbatch, "invalid account")
    (tmp_path / "items.txt").write_text("a\nb\n")
    before = files_in(tmp_path)
    assert here(*LUMI, "--array", "items.txt", "--", "python", "train.py", "{item}").returncode == 3
    plan = ("launch", str(plan_file), "--site", "lumi", "--account", "project_465000123")
    assert here(*plan, "--run-dir", "planned").returncode == 3
    assert files_in(tmp_path) == before


def test_a_refused_attempt_of_a_run_leaves_the_run_as_it_was(here: Here, sbatch: Path, tmp_path: Path) -> None:
    words = (*LUMI, "--run-dir", "run")
    assert here(*words, *COMMAND).returncode == 0
    before = files_in(tmp_path / "run")
    refuse(sbatch, "invalid account")
    assert here(*words, "--qos", "debug", *COMMAND).returncode == 3
    assert files_in(tmp_path / "run") == before


def test_a_job_that_may_have_been_accepted_keeps_its_run(here: Here, sbatch: Path, tmp_path: Path) -> None:
    refuse(sbatch, "Unable to contact slurm controller (connect failure)")
    assert here(*LUMI, "--run-dir", "silent", *COMMAND).returncode == 3
    (sbatch / "sbatch").write_text("#!/bin/sh\necho Submitted\n")
    done = here(*LUMI, "--run-dir", "odd", *COMMAND)
    assert (done.returncode, "printed no job id" in done.stderr) == (3, True)
    for name in ("silent", "odd"):
        assert len(json.loads((tmp_path / name / "jobs.json").read_text())["slurm_jobs"]) == 1


def test_plan_becomes_a_run_that_scalewright_can_do(here: Here, sbatch: Path, plan_file: Path, tmp_path: Path) -> None:
    done = here("launch", str(plan_file), "--site", "lumi", "--account", "project_465000123", "--run-dir", "r")
    assert (done.returncode, done.stdout) == (0, "77\n"), done.stderr
    plan = json.loads(plan_file.read_text())
    directory = RunDirectory.open(tmp_path / "r")
    config = language_run.from_document(read_document(directory.config, language_run.KIND), where="r")
    assert config.layout.brief == plan["best"]["layout_text"]
    assert (config.steps, config.device, config.checkpoint_every) == (1000, "cuda", "auto")
    assert config.shape.vocab == Catalog((packaged_data(),)).model("llama2-7b").transformer.vocab  # type: ignore[union-attr]
    assert json.loads(directory.run.read_text())["plan"] == plan["id"]
    assert json.loads(directory.prediction.read_text())["id"] == plan["best"]["id"]
    script = directory.script.read_text()
    assert "#SBATCH --nodes=4\n" in script
    assert f"-m scalewright.run language --run-dir {tmp_path}/r)" in script
    assert "export RANK=" not in script  # it finds itself, and must not be taken for torchrun's


def test_gpu_hours_of_a_plan_are_those_of_every_job_that_follows(here: Here, plan_file: Path) -> None:
    """Queued again until the run ends, all jobs count, however short each is; one job alone ends with its limit: a
    quarter of an hour on 4 nodes of 8 is 8 GPU-hours."""
    words = ("launch", str(plan_file), "--site", "lumi", "--account", "project_465000123", "--dry-run", "--json")
    whole = json.loads(plan_file.read_text())["whole_run"]["device_time_s"] / 3600.0

    def hours(time: str, *more: str) -> float:
        return float(json.loads(here(*words, "--time", time, *more).stdout)["num_gpu_hours"])

    assert hours("00:15:00") == hours("24:00:00") == pytest.approx(whole)
    assert hours("00:15:00", "--no-requeue") == pytest.approx(min(8.0, whole))
    assert hours("24:00:00", "--no-requeue") == pytest.approx(min(768.0, whole))
    over = here(*words, "--time", "00:15:00", "--limit-gpu-hours", f"{whole * 0.9:.2f}")
    assert over.returncode == 1, over.stderr  # queued again, it goes on to the end
    assert here(*words, "--time", "00:15:00", "--limit-gpu-hours", "9", "--no-requeue").returncode == 0


def test_a_chain_of_jobs_is_warned_about_as_one_run(here: Here, plan_file: Path) -> None:
    plan = json.loads(plan_file.read_text())
    plan["whole_run"]["device_time_s"] = 29 * 1536 * 3600.0
    plan_file.write_text(json.dumps(plan))
    words = ("launch", str(plan_file), "--site", "lumi", "--account", "project_465000123", "--dry-run")
    assert "the run, a chain of jobs, may use 44,544 GPU-hours" in here(*words, "--time", "02:00:00").stderr
    assert "may use" not in here(*words, "--time", "02:00:00", "--no-requeue").stderr  # 64 GPU-hours


def test_plan_for_another_machine_is_refused_or_warned_of(
    here: Here, refused: Refused, plan_file: Path, tmp_path: Path
) -> None:
    line = refused(here("launch", str(plan_file), "--site", "leonardo", "--account", "EUHPC_x", "--dry-run"))
    assert "8 GPUs per node" in line
    assert "--system leonardo" in line
    done = here("launch", str(plan_file), "--site", "frontier", "--account", "abc", "--dry-run")
    assert "the plan is for lumi, not for frontier" in done.stderr
    assert "#SBATCH --time=02:00:00\n" in done.stdout  # the bin of four nodes, not what the plan would take
    broken = json.loads(plan_file.read_text())
    (tmp_path / "no.json").write_text(json.dumps(broken | {"fits": False, "best": None}))
    assert "no layout that fits" in refused(here("launch", str(tmp_path / "no.json"), "--site", "lumi"))
    del broken["best"]["layout_text"]
    (tmp_path / "half.json").write_text(json.dumps(broken))
    assert "not a complete plan" in refused(here("launch", str(tmp_path / "half.json"), "--site", "lumi"))
    assert "leave out --array" in refused(here("launch", str(plan_file), "--site", "lumi", "--array", "x"))
    assert "leave out --nodes" in refused(here("launch", str(plan_file), "--site", "lumi", "--nodes", "2"))


def test_profiles_are_shown_with_their_sources(here: Here) -> None:
    assert here("site", "show").stdout.count("\n") >= 13
    shown = " ".join(here("site", "show", "discoverer").stdout.split())
    assert "low confidence" in shown
    assert "Notes of a single project" in shown
    body = json.loads(here("site", "show", "frontier", "--json").stdout)["sites"][0]
    assert body["size_bins"][4]["max_time"] == 7200
    assert body["env"][3]["source"]["kind"] == "official-doc"


def test_a_large_job_is_warned_about_with_its_gpu_hours(here: Here, tmp_path: Path) -> None:
    """The guide's threshold of 512 GPU-hours, or the site's own."""
    large = (
        "launch",
        "--site",
        "leonardo",
        "--nodes",
        "128",
        "--account",
        "EUHPC_x",
        "--time",
        "24:00:00",
        "--dry-run",
    )
    done = here(*large, *COMMAND)
    assert done.returncode == 0
    assert "warning: the job may use 12,288 GPU-hours, and a request above 512 deserves a second look" in done.stderr
    assert "section 2.4.5" in done.stderr
    assert "12,288" in json.loads(here(*large, "--json", *COMMAND).stdout)["warnings"][0]
    small = here(*LUMI, "--dry-run", *COMMAND)  # 2 nodes of 8 for two hours
    assert "warning" not in small.stderr
    profile = (packaged_sites() / "lumi.toml").read_text()
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "lumi.toml").write_text('warn_gpu_hours = { value = 20, source = "guide" }\n' + profile)
    own = here(*LUMI, "--dry-run", "--catalog", str(tmp_path), *COMMAND)
    assert "the job may use 32 GPU-hours, and a request above 20 deserves" in own.stderr
