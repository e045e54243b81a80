"""Rules about files: logs, checkpoints, shared paths and node-local folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from scalewright.lint.header.directives import Directive
from scalewright.lint.job_facts import GUIDE, SURVEY, code_of, has_job_id, work_commands
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, at_span, replace_text, rule
from scalewright.lint.rules.arrays.tasks import array_size
from scalewright.lint.script import Script

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
_CHECKPOINT = re.compile(r"(?:ckpt|checkpoint|latest|manifest|last_step)[\w.${}-]*$", re.IGNORECASE)
_PARTIAL = re.compile(r"tmp|temp|partial|\.new|\.part|\.log$|\.out$|\.err$|log[\w.-]*$|/dev/", re.IGNORECASE)
_SAVE_TO = re.compile(
    r"(?:--(?:output[-_]?dir|save[-_]?dir|save[-_]?path|save|checkpoint[-_]?dir|ckpt[-_]?dir|out[-_]?dir|default_root_dir|"
    r"log[-_]?dir|results?[-_]?dir)[= "
    r"]+|output_dir=|save_dir=)[\"']?((?:/tmp|/dev/shm|\$\{?(?:TMPDIR|SLURM_TMPDIR|LOCAL_SCRATCH)\}?)"
    r"[^\s\"';]{0,200})"
)


@rule(
    id="output-overwritten",
    severity="warning",
    title="The next run overwrites the log",
    why="A log without the job id in its name is emptied when the next job starts. The log of the previous run is "
    "lost.",
    source=f"Slurm, sbatch(1), filename pattern; 7.0 % of {SURVEY}",
    before=_HEAD + "#SBATCH --output=train.log\npython train.py\n",
    after=_HEAD + "#SBATCH --output=train-%j.log\npython train.py\n",
)
def output_overwritten(script: Script, context: Context) -> Iterator[Hit]:
    if script.value("open-mode") == "append":
        return
    logs = [log for name in ("output", "error") if (log := _overwritten_log(script, name)) is not None]
    if not logs:
        return
    mark = "%A" if script.has("array") else "%j"
    edits = tuple(Edit(start=log.start, end=log.end, text=text) for log in logs if (text := _marked(script, log, mark)))
    fix = ScriptFix(edits=edits, title="write one log per job", is_safe=False)
    yield at(
        script,
        logs[0],
        f"the next run overwrites {' and '.join(str(log.value) for log in logs)}",
        next_step=f"add the job id to the name: {mark}",
        fix=fix if len(edits) == len(logs) else None,
    )


def _overwritten_log(script: Script, name: str) -> Directive | None:
    """The directive of a log that has the same name in every run; None: it has another name, or is not set."""
    directive = script.directive(name)
    value = directive.value if directive is not None else None
    if directive is None or not value or value.startswith("/dev/") or script.is_placeholder(name):
        return None
    if name == "error" and value == script.value("output"):
        return None
    if re.search(r"%\d*[jJAsbN]|[$`{<]|path/to|/path", value):
        return None
    if re.search(r"\d{4}-?\d{2}-?\d{2}|\d{6}", PurePosixPath(value).name):
        return None  # a date, which somebody changes by hand
    return None if script.has("array") and not re.search(r"%\d*a", value) else directive


def _marked(script: Script, directive: Directive, mark: str) -> str:
    """The directive with a mark in the name of its file; empty: it has quotes."""
    raw = script.text[directive.start : directive.end]
    stem, dot, suffix = raw.rpartition(".")
    if '"' in raw or "'" in raw:
        return ""
    has_ending = dot and "/" not in suffix and stem[-1:] not in ("/", "=")
    return f"{stem}-{mark}{dot}{suffix}" if has_ending else f"{raw}-{mark}"


@rule(
    id="output-folder",
    severity="warning",
    title="Slurm does not create the folder of the log",
    why="If the folder of the log is missing, the job ends at once without any log. A mkdir in the script itself "
    "comes too late, and a folder with the job's id in its name cannot exist before the job.",
    source="Slurm, sbatch(1), --output: the folder must exist",
    before=_HEAD + "#SBATCH --output=logs/%x-%j.out\nmkdir -p logs\npython train.py\n",
    after=_HEAD + "#SBATCH --output=%x-%j.out\nmkdir -p checkpoints\npython train.py\n",
)
def output_folder(script: Script, context: Context) -> Iterator[Hit]:
    for name in ("output", "error"):
        directive = script.directive(name)
        value = directive.value or "" if directive is not None else ""
        folder = str(PurePosixPath(value).parent)
        if directive is None or folder in (".", "/", "/dev") or re.search(r"[$`{<]", folder):
            continue
        by_job = re.search(r"%\d*[jJAas]", folder)
        if by_job is None and ("%" in folder or (script.has("chdir") and not folder.startswith("/"))):
            continue
        makes = any(
            PurePosixPath(script.resolve(word.text)) == PurePosixPath(folder)
            for command in script.called("mkdir")
            for word in command.arguments
        )
        if any(PurePosixPath(made) == PurePosixPath(folder) for made in script.made_folders):
            continue
        if by_job is None and (_is_there(script, context, folder) or not (makes or _is_beside(script, folder))):
            continue
        reason = "Slurm does not create it"
        if makes:
            reason = "the mkdir in the script comes too late"
        yield at(
            script,
            directive,
            f"no folder has the job's id in its name ({folder}) before the job starts, and {reason}"
            if by_job
            else f"{folder} must exist before sbatch: {reason}",
            next_step=f"put the id into the file's name instead: {folder.replace('/', '-')}-..."
            if by_job
            else f"run mkdir -p {folder} before sbatch",
            severity="info" if folder.startswith("/") and by_job is None else None,  # it may be there on the cluster
        )
        return


def _is_beside(script: Script, folder: str) -> bool:
    """Whether a missing folder can be noticed: it is relative, and the script is a file whose surroundings are here."""
    return not folder.startswith("/") and script.path not in ("-", "") and Path(script.path).is_file()


def _is_there(script: Script, context: Context, folder: str) -> bool:
    """Whether the folder is in the current folder, or in one that the script is in."""
    if (context.folder / folder).is_dir():
        return True
    if folder.startswith("/") or not _is_beside(script, folder):
        return False
    return any((parent / folder).is_dir() for parent in Path(script.path).absolute().parents[:4])


@rule(
    id="path-without-job-id",
    severity="warning",
    title="Several jobs write the same file",
    why="A log, a host file or a rendezvous file with the same name in every job is overwritten by the next job, "
    "or by one that runs at the same time.",
    source=f"{GUIDE} 2.4.12: never write to shared paths without a run-scoped directory",
    before=_TWO + 'scontrol show hostnames "$SLURM_JOB_NODELIST" > hostfile\ndeepspeed --hostfile hostfile train.py\n',
    after=_TWO + 'scontrol show hostnames "$SLURM_JOB_NODELIST" > hostfile.$SLURM_JOB_ID\ndeepspeed --hostfile '
    "hostfile.$SLURM_JOB_ID train.py\n",
)
def path_without_job_id(script: Script, context: Context) -> Iterator[Hit]:
    if not any(command.redirects for command in script.commands) or _OWN_FOLDER.search(code_of(script)):
        return
    has_tasks = (array_size(script.value("array") or "") or 2) > 1 if script.has("array") else False
    is_one_at_a_time = (script.value("array") or "").endswith("%1")
    is_concurrent = has_tasks and not is_one_at_a_time and not _UNKNOWN_FOLDER.search(code_of(script))
    work_ids = {id(work.command) for work in work_commands(script)}
    seen: set[str] = set()
    for command in script.commands:
        within = command.within
        if within.is_heredoc or within.functions or command.origin:
            continue
        for redirect in command.redirects:
            target = script.resolve(redirect.target)
            if (
                not redirect.operator.strip("0123456789").startswith((">", "&>"))
                or not _is_shared(target)
                or target in seen
            ):
                continue
            hosts = _HOSTS.search(target)
            overwrites = redirect.operator in (">", "&>", ">|") and not within.loops
            if hosts is None and not (overwrites and id(command) in work_ids):
                continue
            seen.add(target)
            yield at_span(
                script,
                redirect.start,
                redirect.end,
                f"every {'task of the array' if is_concurrent else 'job'} writes {target}",
                next_step=f"add {_TASK_ID if is_concurrent else _JOB_ID}",
                severity=None if hosts or is_concurrent else "info",
            )


_OWN_FOLDER = re.compile(
    r"\b(?:cd|pushd)\s+\S{0,200}(?:SLURM_JOB_?ID|RUN_DIR|run_dir|TMPDIR|mktemp|SLURM_ARRAY_TASK_ID)"
)
"""The script changes to a folder of its own."""
_UNKNOWN_FOLDER = re.compile(
    r"\b(?:cd|pushd)\s+[\"']?(?!\$\{?(?:HOME|SLURM_SUBMIT_DIR|WORK|SCRATCH|PWD)\b)[^\s\"']{0,200}\$"
)
"""The script changes to a folder that only the shell knows, perhaps one per task."""
_JOB_ID = "the job id to its name: $SLURM_JOB_ID"
_TASK_ID = "the job and task id to its name: ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
_HOSTS = re.compile(r"host[-_]?file|hosts?(?:\.txt)?$|nodefile|machinefile|nodelist", re.IGNORECASE)
"""Files that list the job's nodes."""


def _is_shared(target: str) -> bool:
    """Whether other jobs write to the same path."""
    if not target or target.startswith(("/dev/", "&")) or target.isdigit() or has_job_id(target):
        return False
    return "$" not in target and "`" not in target and "%" not in target


_BY_LOCAL_RANK = re.compile(
    r"(?:>|--log[-_]?file[= ]|--output[= ]|-o )\s{0,9}[\"']?[^\s\"';|&]{0,200}\$\{?(?:LOCAL_RANK|SLURM_LOCALID)\b"
    r"[^\s\"';|&]{0,200}|"
    r"open\([^\n]{0,200}(?:LOCAL_RANK|SLURM_LOCALID|local_rank)[^\n]{0,200}['\"](?:w|a|wb|ab|x)['\"]"
)
"""A file that is written, with the local rank in its name."""


@rule(
    id="local-rank-path",
    severity="error",
    title="Ranks of different nodes write the same file",
    why="LOCAL_RANK counts from 0 on every node. A file named by it is written by one rank of each node at the "
    "same time.",
    source="PyTorch, torchrun: LOCAL_RANK; a common mistake in published recipes",
    before=_TWO + "srun bash -c 'python train.py > logs/rank-$SLURM_LOCALID.out'\n",
    after=_TWO + "srun bash -c 'python train.py > logs/rank-$SLURM_PROCID.out'\n",
    needs_header=False,
)
def local_rank_path(script: Script, context: Context) -> Iterator[Hit]:
    if script.num_nodes == 1 and (script.has("nodes", "ntasks") or script.asks_for_gpus):
        return
    code = code_of(script)
    for match in _BY_LOCAL_RANK.finditer(code):
        if re.search(
            r"PROCID|NODEID|NODENAME|HOSTNAME|hostname|NODE_RANK|[^_]RANK\b(?<!LOCAL_RANK)|TMPDIR|/tmp/", match.group()
        ):
            continue
        yield at_span(
            script,
            match.start(),
            None,
            "the file name holds the local rank, so ranks of other nodes write to the same file",
            next_step="use the global rank: RANK or SLURM_PROCID",
        )


@rule(
    id="shards-off-by-one",
    severity="error",
    title="Data is split for one rank too many",
    why="With a stride of WORLD_SIZE + 1 some shards belong to no rank. That data is never read, and there is no "
    "message.",
    source="a common mistake in published recipes",
    before=_TWO + "srun python - <<'PY'\nimport os\nM = int(os.environ.get('WORLD_SIZE', '1')) + 1\nPY\n",
    after=_TWO + "srun python - <<'PY'\nimport os\nM = int(os.environ.get('WORLD_SIZE', '1'))\nPY\n",
    needs_header=False,
)
def shards_off_by_one(script: Script, context: Context) -> Iterator[Hit]:
    python = r"environ(?:\.get\(|\[)\s*['\"](?:WORLD_SIZE|SLURM_NTASKS)['\"][^\n;]{0,200}\)\s{0,9}\+\s{0,9}1\b"
    shell = r"\(\(\s*\$?\{?(?:WORLD_SIZE|SLURM_NTASKS)\}?\s*\+\s*1\s*\)\)"
    for match in re.finditer(f"{python}|{shell}", code_of(script)):
        yield at_span(
            script,
            match.start(),
            None,
            "the data is split for one rank too many: that part is never read",
            next_step="split by WORLD_SIZE itself; only SLURM_ARRAY_TASK_MAX, the last index, needs + 1",
        )


_WRITES_CHECKPOINT = re.compile(
    r"open\([^\n]{0,200}(?:ckpt|checkpoint|manifest|latest)[^\n]{0,200}['\"]wb?['\"]|"
    r"torch\.save\([^\n]{0,200}(?:ckpt|checkpoint|latest)"
)


@rule(
    id="checkpoint-not-atomic",
    severity="warning",
    title="A checkpoint is overwritten in place",
    why="A job that ends while it writes leaves half a file instead of the good one, and the next attempt cannot "
    "resume.",
    source=f"{GUIDE} 2.4.10: write to a temporary name and rename; its own manifest is written in place",
    before=_HEAD + "python train.py\ncp model.pt checkpoints/latest.pt\n",
    after=_HEAD
    + "python train.py\ncp model.pt checkpoints/latest.pt.tmp\nmv -T checkpoints/latest.pt.tmp checkpoints/latest.pt\n",
    needs_header=False,
)
def checkpoint_not_atomic(script: Script, context: Context) -> Iterator[Hit]:
    advice = "write to a temporary name in the same folder, then rename it: mv -T, os.replace"
    for command in script.commands:
        if command.name == "cp" and len(command.arguments) > 1 and not command.origin:
            target = command.arguments[-1]
            name = target.text.rstrip("/").rpartition("/")[2]
            if _CHECKPOINT.search(name) and re.search(r"\.\w+$", name) and not _PARTIAL.search(name):
                yield at(script, target, f"{target.text} is overwritten in place", next_step=advice)
        for redirect in command.redirects:
            name = redirect.target.rpartition("/")[2]
            if redirect.operator in (">", ">|") and _CHECKPOINT.search(name) and not _PARTIAL.search(redirect.target):
                message = f"{redirect.target} is written in place"
                yield at_span(script, redirect.start, None, message, next_step=advice)
    for doc in script.heredocs:
        if re.search(r"os\.replace|os\.rename|\.rename\(|\.replace\(|shutil\.move", doc.text):
            continue
        for match in _WRITES_CHECKPOINT.finditer(doc.text):
            message = "a checkpoint, or the file that points to it, is written in place"
            yield at_span(script, doc.start + match.start(), None, message, next_step=advice)


@rule(
    id="checkpoint-on-node",
    severity="error",
    title="What the run saves stays on the node",
    why="Node-local folders are emptied, or out of reach, when the job ends. What was saved there is lost.",
    source="Slurm, job_container/tmpfs; sites empty $TMPDIR after every job",
    before=_HEAD + 'python train.py --output_dir "$SLURM_TMPDIR/out"\n',
    after=_HEAD
    + 'python train.py --output_dir "$SLURM_TMPDIR/out"\nrsync -a "$SLURM_TMPDIR/out" "$WORK/runs/$SLURM_JOB_ID/"\n',
)
def checkpoint_on_node(script: Script, context: Context) -> Iterator[Hit]:
    code = code_of(script)
    if _SAVE_TO.search(code) is None:
        return
    if any(trap.action in script.body.functions or _COPIES.search(trap.action) for trap in script.traps):
        return
    last_copy = max((match.start() for match in _COPIES.finditer(code)), default=-1)
    for match in _SAVE_TO.finditer(code):
        target = match.group(1)
        if last_copy > match.end():
            continue
        yield at_span(
            script,
            match.start(1),
            match.end(1),
            f"{target} is on the node, and nothing copies it to the shared file system",
            next_step="save to the shared file system, or copy the files there at the end and in a trap",
        )


_COPIES = re.compile(
    r"\b(?:cp|rsync|mv|tar|scp|sgather|zip|rclone|gsutil|azcopy)\b|\b(?:hf|huggingface-cli) upload\b"
    r"|upload_(?:file|folder)\b"
)
"""Copies, also to a store of models."""


@rule(
    id="remove-unset-path",
    severity="warning",
    title="rm -rf with a variable that may be empty",
    why="If the variable is not set, rm -rf $VAR/* becomes rm -rf /*.",
    source=f"bash(1), parameter expansion; {GUIDE} 2.4.14 writes ${{SLURM_TMPDIR:?}}",
    before=_HEAD + "python train.py\nrm -rf $SLURM_TMPDIR/*\n",
    after=_HEAD + 'python train.py\nrm -rf "${SLURM_TMPDIR:?}"/*\n',
    needs_header=False,
)
def remove_unset_path(script: Script, context: Context) -> Iterator[Hit]:
    if "nounset" in script.shell_options:
        return
    assigned_names = {a.name for a in script.assignments}
    for command in script.called("rm"):
        recursive = any(re.fullmatch(r"-\w*[rR]\w*", text) for text in command.texts[1:])
        for word in command.arguments if recursive else ():
            match = re.match(r"^\$\{?(\w+)\}?/(?:\*|$)", word.text)
            if match is None or match.group(1) in (*assigned_names, "HOME", "USER", "PWD") or match.group(1).isdigit():
                continue
            raw = script.text[word.start : word.end]
            guarded = re.sub(rf"\$\{{?{match.group(1)}\}}?", f"${{{match.group(1)}:?}}", raw, count=1)
            is_plain = not word.is_expanded and guarded != raw
            yield at(
                script,
                word,
                f"if {match.group(1)} is not set, this removes {word.text[word.text.index('/') :]}",
                next_step=f"write ${{{match.group(1)}:?}}, which stops the script in that case",
                fix=replace_text(word, guarded, title="stop if it is not set", is_safe=False) if is_plain else None,
            )


@rule(
    id="node-folder-shared",
    severity="info",
    title="A folder in /tmp that other jobs use as well",
    why="All jobs of a node share /tmp. With the same folder name they mix their files, or find files that "
    "another user owns.",
    source=f"{GUIDE} 2.4.10: a folder for each run",
    before=_HEAD + "mkdir -p /tmp/cache\npython train.py --cache /tmp/cache\n",
    after=_HEAD + 'mkdir -p "/tmp/cache-$SLURM_JOB_ID"\npython train.py --cache "/tmp/cache-$SLURM_JOB_ID"\n',
)
def node_folder_shared(script: Script, context: Context) -> Iterator[Hit]:
    for command in script.called("mkdir"):
        for word in command.arguments:
            path = script.resolve(word.text)
            if not path.startswith(("/tmp/", "/dev/shm/", "/var/tmp/")) or has_job_id(path) or "USER" in path:
                continue
            if re.search(r"\$\(|`|\$\{?(?!USER)\w*\}?(?:.*)", path) and not re.match(r"^/tmp/[\w.-]+(?:/|$)", path):
                continue
            yield at(
                script,
                word,
                f"{path} is the same for all jobs on the node",
                next_step="add $SLURM_JOB_ID to its name",
            )
