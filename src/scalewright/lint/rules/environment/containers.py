"""Rules about containers: what they see of the machine, and which image they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, GUIDE, code_of, has_unknown_options, started_by
from scalewright.lint.rule import Context, Edit, Hit, ScriptFix, at, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
_SEES = ("nv", "rocm", "nvccli")
_AMD = r"rocm|\bROCR_|\bHIP_|MIOPEN|\bmi\d{3}|hsn\d|\bHSA_|singularity-AI-bindings|/appl/local"
_ON_CPU = r"^(?:echo|ls|cat|cp|mkdir|pip|pip3|conda|bash|sh|tar|rsync|which|env|git|wget|curl)$"


@rule(
    id="container-without-gpu",
    severity="error",
    title="The container does not see the GPU",
    why="Apptainer brings the driver's libraries in only with --nv (or --rocm): without it PyTorch finds no GPU "
    "and fails, "
    "or trains on the CPU.",
    source=f"Apptainer, GPU support; {GUIDE} 2.4.9",
    before=_HEAD + "srun apptainer exec image.sif python train.py\n",
    after=_HEAD + "srun apptainer exec --nv image.sif python train.py\n",
)
def container_without_gpu(script: Script, context: Context) -> Iterator[Hit]:
    if not script.asks_for_gpus:
        return
    blind = [
        launch
        for launch in script.launched("apptainer")
        if not launch.has(*_SEES) and not has_unknown_options(launch) and _uses_gpu(script, launch)
    ]
    if not blind or _is_visible_anyway(script, context):
        return
    for launch in blind:
        flag = _flag(context)
        yield at(
            script,
            launch,
            f"{_name(launch)} runs without {flag}: the container sees no GPU",
            next_step=f"add {flag}",
            fix=_with_flag(script, launch, flag),
        )


def _is_visible_anyway(script: Script, context: Context) -> bool:
    if re.search(r"\b(?:SINGULARITY|APPTAINER)_NV(?:CCLI)?=|\b(?:SINGULARITY|APPTAINER)_ROCM=", code_of(script)):
        return True
    site = context.site
    if site is not None and site.vendor != "unknown":
        flags = {flag for runtime in site.runtimes if runtime.kind == "apptainer" for flag in runtime.flags}
        return site.vendor == "amd" and "--rocm" not in flags
    return re.search(_AMD, script.text, re.IGNORECASE) is not None


def _flag(context: Context) -> str:
    return "--rocm" if context.site is not None and context.site.vendor == "amd" else "--nv"


def _name(launch: Launch) -> str:
    first = next((word.text for word in launch.command.words if word.start == launch.start), "apptainer")
    return first.rpartition("/")[2]


def _uses_gpu(script: Script, launch: Launch) -> bool:
    """Whether what runs inside is more than a copy or a set-up; what nobody knows may be."""
    if not launch.program:
        return False
    first = launch.program[0].text.rpartition("/")[2]
    if any(other.tool in (*DISTRIBUTED, "python") for other in started_by(script, launch)):
        return True
    return not re.match(_ON_CPU, first) and not first.startswith("$")


def _with_flag(script: Script, launch: Launch, flag: str) -> ScriptFix | None:
    """Safe: a job that asks for GPUs wants to see them."""
    words = [w for w in launch.command.words if launch.start <= w.start and w.end <= launch.end]
    verb = next((w for w in words if w.text in ("exec", "run", "shell") and not w.is_expanded), None)
    if verb is None or script.text[verb.start : verb.end] != verb.text:
        return None
    return ScriptFix(edits=(Edit(start=verb.end, end=verb.end, text=f" {flag}"),), title=f"add {flag}", is_safe=True)


@rule(
    id="container-by-tag",
    severity="warning",
    title="The image is named by a tag that can move",
    why="A tag may be another image tomorrow, so a run cannot be repeated; and every job asks the registry anew.",
    source=f"{GUIDE} 2.4.9: pin the image by digest",
    before=_HEAD + "srun apptainer exec --nv docker://nvcr.io/nvidia/pytorch:24.08-py3 python train.py\n",
    after=_HEAD + "srun apptainer exec --nv pytorch_24.08.sif python train.py\n",
)
def container_by_tag(script: Script, context: Context) -> Iterator[Hit]:
    for launch in script.containers:
        image = script.resolve(launch.image.text) if launch.image is not None else ""
        if launch.tool == "apptainer":
            if _moves(image, is_remote=image.startswith(("docker://", "oras://", "library://"))):
                yield _by_tag(script, launch, image)
        elif launch.tool in ("podman", "podman-hpc", "docker") and launch.image is not None and "$" not in image:
            latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
            if _moves(image, is_remote="/" in image and not image.startswith(("/", "."))):
                yield at(
                    script,
                    launch.image,
                    f"{image} is named by {'no tag' if latest else 'a tag'}",
                    next_step="add @sha256:DIGEST",
                    severity=None if latest else "info",
                )
    for launch in script.launched("srun"):
        option = launch.option("container-image")
        image = script.resolve(option.value or "") if option is not None else ""
        if option is not None and _moves(image, is_remote=_is_remote(image)):
            yield at(
                script,
                option,
                f"{image} is named by a tag",
                next_step="import it once to a file (enroot import) and name that, or add @sha256:DIGEST",
            )
    for name in ("container-image", "image"):
        found = script.directive(name)
        image = (found.value or "") if found is not None else ""
        latest = name == "image" and (":" not in image.removeprefix("docker:") or image.endswith(":latest"))
        if found is not None and (_moves(image, is_remote=_is_remote(image)) if name == "container-image" else latest):
            yield at(
                script,
                found,
                f"{image} is named by a tag that can move",
                next_step="name a version, better a digest: @sha256:DIGEST",
            )


def _is_remote(image: str) -> bool:
    """A registry's image in the words of Pyxis; files begin with a slash or a dot, or end as images do."""
    return not re.search(r"^[./~$]|\.(?:sqsh|sif|img|squashfs)$|\$", image) and image != ""


def _moves(image: str, *, is_remote: bool) -> bool:
    return is_remote and "@sha256" not in image and not image.startswith("docker-daemon:")


def _by_tag(script: Script, launch: Launch, image: str) -> Hit:
    place = launch.image or launch
    return at(
        script,
        place,
        f"{image} is named by a tag, and fetched when the job runs",
        next_step="pull it once to a .sif file before the job, by digest, and name the file",
    )
