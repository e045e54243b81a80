"""Rules about the software of a job: secrets, installations, downloads, modules, conda, Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import GUIDE, SURVEY, code_of, is_fill_in, mentions, trains, work_commands
from scalewright.lint.rule import Context, Hit, at, at_span, insert_text, replace_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.syntax import Command

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
_SECRET_NAME = re.compile(
    r"(?:API_?KEY|TOKEN|PASSWORD|PASSWD|SECRET(?:_KEY)?|ACCESS_KEY(?:_ID)?|_PAT|PRIVATE_KEY)$", re.IGNORECASE
)
_NOT_SECRET = re.compile(
    r"TOKENIZERS?|TOKENS|MAX_TOKEN|NUM_|_TOKEN_ID|BOS_|EOS_|PAD_|UNK_|MASK_|SEP_|CLS_|IMAGE_TOKEN|SPECIAL|TOKEN_LEN",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|wandb_v1_[A-Za-z0-9_]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|"
    r"(?:[A-Z_]{0,40}(?:API_KEY|TOKEN|SECRET|PASSWORD)=['\"]?[0-9a-f]{32,64}\b)|"
    r"glpat-[A-Za-z0-9_-]{18,}|AKIA[0-9A-Z]{16}|xox[bap]-[A-Za-z0-9-]{20,}|AIza[0-9A-Za-z_-]{35})"
)
_SECRET_MARKS = (
    "hf_", "wandb", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "API_KEY=", "TOKEN=", "SECRET=", "PASSWORD=", "glpat-", "AKIA", "xox", "AIza",
    "sshpass",
)  # fmt: skip
"""Every secret that the patterns match holds one of these."""
_LOGIN = re.compile(
    r"\bwandb\s+login\s+(?:--\S{1,60}\s+){0,4}([0-9a-f]{40}|[A-Za-z0-9_]{40,100})|\bsshpass\s+-p\s*['\"]?([^\s'\"$]{4,100})"
)


@rule(
    id="secret-in-script",
    severity="error",
    title="The script contains a secret",
    why="Slurm keeps a copy of every script, and operators can read it. Logs and repositories expose the secret too.",
    source=f"{GUIDE} 2.4.9: keep credentials out of job scripts; 1.0 % of {SURVEY}",
    before=_HEAD + "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\npython train.py\n",
    after=_HEAD + 'export WANDB_API_KEY=$(<"$HOME/.config/wandb.key")\npython train.py\n',
    needs_header=False,
)
def secret_in_script(script: Script, context: Context) -> Iterator[Hit]:
    seen: set[int] = set()
    for assignment in script.assignments:
        value = assignment.value.text
        named = _SECRET_NAME.search(assignment.name) is not None and _NOT_SECRET.search(assignment.name) is None
        if assignment.origin or not named or not _is_secret(value) or "$" in value:
            continue
        seen.add(assignment.line)
        yield at(
            script,
            assignment,
            f"{assignment.name} holds a secret ({value[:3]}..., {len(value)} characters)",
            next_step="move it to a file that only you can read, and replace the secret: others may have seen it",
        )
    if not any(mark in script.text for mark in _SECRET_MARKS):
        return
    for number, text in enumerate(script.lines, start=1):  # a secret stands in one line; most lines hold no mark
        if number in seen or not any(mark in text for mark in _SECRET_MARKS):
            continue
        match = _SECRET_TEXT.search(text) or _LOGIN.search(text)
        if match is not None and not is_fill_in(match.group()):
            yield at_span(
                script,
                script.starts[number - 1] + match.start(),
                None,
                f"this looks like a secret ({match.group()[:6]}...)",
                next_step="move it to a file that only you can read, and replace the secret",
            )


def _is_secret(value: str) -> bool:
    """Whether a value looks like a secret: long, of mixed characters, and not a placeholder."""
    if len(value) < 8 or is_fill_in(value) or re.search(r"[\s/<>*]|^\W+$", value):
        return False
    if re.fullmatch(r"(.)\1+|[A-Za-z_-]+", value):
        return False
    return len(set(value)) > 5 and re.search(r"\d", value) is not None and re.search(r"[A-Za-z]", value) is not None


_INSTALL = re.compile(
    r"^(?:pip3?|uv pip|python3? (?:-\S+ )*-m pip|conda|mamba|micromamba|uv|poetry|apt|apt-get|yum|npm)\s+"
    r"(?:-\S+\s+)*(install|create|sync|add|update|env create|env update)\b"
)
_FETCH = re.compile(
    r"^(?:wget|curl|aria2c|gdown|kaggle datasets download|aws s3|gsutil|rclone copy)\b|^git (?:clone|pull|fetch)\b|"
    r"^(?:huggingface-cli|hf) download\b|^(?:singularity|apptainer) (?:pull|build)\b|^(?:docker|podman|enroot) "
    r"(?:pull|import)\b|"
    r"^git lfs pull\b"
)
_LOCAL = re.compile(
    r"localhost|127\.0\.0\.1|0\.0\.0\.0|\$\{?\w*(?:HOST|host|NODE|node|ADDR|addr|IP|ip|URL|url|PORT|port)\w*\}?|file://|169\.254"
)


def _text_of(command: Command) -> str:
    return " ".join(command.texts)


@rule(
    id="install-in-job",
    severity="warning",
    title="The job installs software",
    why="GPUs wait while packages are downloaded and built. Versions change from job to job, and tasks of an "
    "array damage the environment that they share.",
    source=f"{GUIDE} 2.4.9; 3 to 4 % of {SURVEY}",
    before=_HEAD + "pip install -r requirements.txt\npython train.py\n",
    after=_HEAD + 'source "$HOME/venvs/train/bin/activate"\npython train.py\n',
)
def install_in_job(script: Script, context: Context) -> Iterator[Hit]:
    if not work_commands(script):
        return  # a job that only installs is the right place for it
    for command in script.commands:
        text = _text_of(command)
        match = _INSTALL.match(text)
        if match is None or command.within.is_condition or "--help" in text:
            continue
        offline = "--no-index" in text or "$SLURM_TMPDIR" in code_of(script)
        is_minor = (
            offline or re.search(r"\s-e\s|\s\.(?:\s|$)|--no-deps|\$", text) is not None or command.within.is_branch
        )
        yield at(
            script,
            command,
            f"{text.split()[0]} {match.group(1)} runs inside the job",
            next_step="install once before the job, and only activate the environment here",
            severity="info" if is_minor else None,
        )


@rule(
    id="online-on-compute-node",
    severity="error",
    title="The job needs the internet, but compute nodes have none",
    why="This site's compute nodes cannot reach downloads, package indices and experiment trackers. The job fails "
    "or hangs.",
    source="the site's profile, internet; 3 to 4 % of " + SURVEY,
    before=_HEAD + "git clone https://github.com/example/repo\npython train.py\n",
    after=_HEAD + 'cd "$WORK/repo"\npython train.py\n',
)
def online_on_compute_node(script: Script, context: Context) -> Iterator[Hit]:
    site = context.site
    if site is None or site.internet is None or site.internet.value:
        return
    if mentions(script, r"\bhttps?_proxy=|\bALL_PROXY="):
        return
    reason = f"compute nodes of {site.name} have no internet"
    yield from _downloads(script, reason)
    yield from _online_wandb(script, reason)


def _downloads(script: Script, reason: str) -> Iterator[Hit]:
    """Commands that install or download something."""
    for command in script.commands:
        text = _text_of(command)
        install = _INSTALL.match(text) is not None and not re.search(r"--no-index|--offline|\s-e\s+\.|--no-deps", text)
        fetch = _FETCH.match(text) is not None and not _LOCAL.search(text) and "--help" not in text
        if install or fetch:
            yield at(
                script,
                command,
                f"{' '.join(text.split()[:2])} cannot work: {reason}",
                next_step="download on a login node before the job",
                severity="warning" if command.within.is_branch or command.within.is_condition else None,
            )


def _online_wandb(script: Script, reason: str) -> Iterator[Hit]:
    """Weights & Biases without WANDB_MODE=offline."""
    mode = script.setting("WANDB_MODE")
    if mode is not None and mode.text == "online":
        yield at_span(
            script,
            mode.start,
            None,
            f"WANDB_MODE=online cannot work: {reason}",
            next_step="write WANDB_MODE=offline, and run wandb sync on a login node",
            fix=replace_text(mode, "offline", title="log offline", is_safe=False),
        )
    elif mode is None and mentions(
        script, r"\bWANDB_(?:API_KEY|PROJECT)=|\bwandb\s+login|report_to[= ]+['\"]?wandb|--wandb\b"
    ):
        place = next((c for c in script.commands if "wandb" in _text_of(c).lower()), None)
        if place is not None and not mentions(script, r"WANDB_DISABLED|wandb offline"):
            yield at(
                script,
                place,
                f"wandb is used without WANDB_MODE=offline: {reason}",
                next_step="export WANDB_MODE=offline, and run wandb sync on a login node",
                severity="warning",
            )


@rule(
    id="module-unversioned",
    severity="info",
    title="A module without a version",
    why="The default version changes when the site updates its software, and the run changes with it.",
    source="Lmod, module load: the default version",
    before=_HEAD + "module load cuda\npython train.py\n",
    after=_HEAD + "module load cuda/12.4\npython train.py\n",
)
def module_unversioned(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.called("module", "ml"):
        words = [w for w in command.arguments if not w.text.startswith("-")]
        if command.name == "module":
            if not words or words[0].text not in ("load", "add", "try-load"):
                continue
            words = words[1:]
        elif words and words[0].text in ("load", "add"):
            words = words[1:]
        elif words and words[0].text in (
            "purge",
            "use",
            "list",
            "av",
            "avail",
            "unload",
            "spider",
            "swap",
            "restore",
            "show",
        ):
            continue
        # Other names without a slash are stacks and toolchains of sites, which have no versions.
        bare = [w for w in words if "/" not in w.text and w.is_static and re.fullmatch(r"[A-Za-z][\w+.-]*", w.text)]
        unversioned = [
            w.text
            for w in bare
            if re.match(r"(?i)(cuda|nccl|python|pytorch|gcc|rocm|openmpi|anaconda|miniconda|cudnn)", w.text)
        ]
        if unversioned:
            yield at(
                script,
                command,
                f"{', '.join(unversioned)} is loaded in the site's default version",
                next_step=f"name the version: module load {unversioned[0]}/VERSION",
            )


@rule(
    id="module-no-purge",
    severity="info",
    title="Modules of the submitting shell stay loaded",
    why="sbatch copies the environment of the submitting shell. Modules that happen to be loaded there are loaded "
    "in the job as well.",
    source=f"Slurm, sbatch(1), --export=ALL; {GUIDE} 2.4.14: module purge",
    before=_HEAD + "module load cuda/12.4\npython train.py\n",
    after=_HEAD + "module purge\nmodule load cuda/12.4\npython train.py\n",
)
def module_no_purge(script: Script, context: Context) -> Iterator[Hit]:
    if context.site is not None and context.site.id in ("deucalion", "perlmutter", "frontier", "lumi"):
        return  # these sites load modules that every job needs
    loads = [c for c in script.called("module", "ml") if "load" in c.texts or c.name == "ml"]
    if (
        not loads
        or script.has("export")
        or mentions(script, r"\b(?:module|ml)\s+(?:--force\s+)?(?:purge|reset|restore)|LMOD")
    ):
        return
    yield at(
        script,
        loads[0],
        "modules of the submitting shell stay loaded",
        next_step="run module purge before the first module load",
    )


_CONDA_SET_UP = re.compile(
    r"conda\.sh|shell[. ]*(?:bash|posix)?\s*hook|shell\.bash|bashrc|bash_profile|\.profile|"
    r"(?:^|[\s;&])(?:source|\.)\s+\S|uenv|spack load"
)
_CONDA_MODULES = re.compile(
    r"module\s+(?:load|add)\s[^\n]{0,200}(?:conda|mamba|forge|python|torch|\bai\b)|\bml\s[^\n]{0,200}(?:conda|mamba|forge|python)",
    re.IGNORECASE,
)


@rule(
    id="conda-without-hook",
    severity="warning",
    title="conda activate does not work in a batch shell",
    why="conda activate is a shell function that .bashrc defines for interactive shells only. In a batch script "
    "it fails, and the job continues with another Python.",
    source="conda, conda init: CondaError: Run 'conda init' before 'conda activate'",
    before=_HEAD + "conda activate train\npython train.py\n",
    after=_HEAD + 'eval "$(conda shell.bash hook)"\nconda activate train\npython train.py\n',
)
def conda_without_hook(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.commands:
        if (
            command.name not in ("conda", "mamba", "micromamba")
            or command.texts[1:2] != ("activate",)
            or command.parent
        ):
            continue
        before = code_of(script)[: command.start]
        if _CONDA_SET_UP.search(before) or _CONDA_MODULES.search(before) or re.search(r"-\w*[il]", script.shebang):
            continue
        fix = None
        if not command.origin and command.name == "conda":
            hook = f'eval "$(conda shell.bash hook)"{script.newline}'
            start = script.starts[command.line - 1]
            if script.text[start : command.start].strip() == "":
                text = script.text[start : command.start] + hook
                fix = insert_text(start, text, title="set up conda first", is_safe=False)
        yield at(
            script,
            command,
            "conda activate fails here, because conda is not set up in a batch shell",
            next_step=f'add before it: eval "$({command.name} shell.bash hook)", or source .../etc/profile.d/conda.sh',
            fix=fix,
        )
        return


@rule(
    id="python-buffered",
    severity="info",
    title="Python buffers its output",
    why="When Python writes to a file, its output waits until a buffer is full. The log lags behind, and its end "
    "is lost if the job is killed.",
    source="Python, -u and PYTHONUNBUFFERED",
    before=_HEAD + "srun python train.py\n",
    after=_HEAD + "srun python -u train.py\n",
)
def python_buffered(script: Script, context: Context) -> Iterator[Hit]:
    if not trains(script):
        return
    for work in work_commands(script):
        last = work.chain[-1] if work.chain else None
        if last is None or last.tool != "python" or work.command.origin:
            continue
        if not any(word.text in ("-u", "-uB") for word in last.program[:3]):
            code = code_of(script)
            if any(word in code for word in ("PYTHONUNBUFFERED", "stdbuf", "--unbuffered")):
                return
            if " -u" in code and re.search(r"\bsrun\b[^\n]{0,200}\s-u\b", code):
                return
            yield at(
                script,
                last,
                "the log lags behind, because Python buffers its output",
                next_step="write python -u, or export PYTHONUNBUFFERED=1",
            )
            return


_INSTALLS = re.compile(
    r"\b(?:pip3?|uv pip|python3? -m pip)\s+install\b|\b(?:conda|mamba|micromamba)\s+(?:create|install|env\s+create)\b"
    r"|\b(?:apptainer|singularity)\s+(?:build|pull)\b|\benroot\s+import\b"
)


@rule(
    id="gpus-for-installation",
    severity="warning",
    title="GPUs wait while software is installed",
    why="The job requests GPUs and only installs software. Nobody else can use the GPUs meanwhile, and the project "
    "pays for them.",
    source=f"{GUIDE} 2.4.9: build environments on the login node or in a CPU job",
    before="#!/bin/bash\n#SBATCH --gres=gpu:8\n#SBATCH --exclusive\nconda create -n env -y\npip install torch\n",
    after="#!/bin/bash\n#SBATCH --cpus-per-task=8\nconda create -n env -y\npip install torch\n",
)
def gpus_for_installation(script: Script, context: Context) -> Iterator[Hit]:
    if not script.asks_for_gpus or work_commands(script) or script.launched("srun") or "$@" in script.text:
        return
    match = _INSTALLS.search(code_of(script))
    if match is None:
        return
    if any(launch.program[:1] and launch.program[0].text in ("-c", "-") for launch in script.launched("python")):
        return  # a program that is written in the script
    if re.search(r"\bnvcc\b|CUDA_ARCH|TORCH_CUDA|flash[-_]attn|\bapex\b|setup\.py|\bmake\b|\bcmake\b", code_of(script)):
        return  # some packages look for a GPU when they are built
    known = re.compile(r"\b(?:pip3?|conda|mamba|micromamba|uv|python3?|apptainer|singularity|enroot)\b")
    own = [c for c in script.commands if c.parent is None and not c.origin]
    if any(not c.name and not known.search(" ".join(c.texts)) for c in own):
        return
    yield at_span(
        script,
        match.start(),
        match.end(),
        "the job requests GPUs and only installs software",
        next_step="leave out the GPUs: run it on the login node, or in a job on CPUs",
    )
