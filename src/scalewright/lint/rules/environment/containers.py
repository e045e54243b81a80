"""Rules about containers: whether they see the GPUs, and whether their image can change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.lint.job_facts import DISTRIBUTED, GUIDE, code_of, has_unknown_options, own_words, started_by
from scalewright.lint.rule import Context, Hit, ScriptFix, at, insert_text, rule
from scalewright.lint.script import Script
from scalewright.lint.shell.launches import Launch

_HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
_GPU_FLAGS = ("nv", "rocm", "nvccli")
_AMD = (
    r"rocm|rccl|\bROCR_|\bHIP_|MIOPEN|\bmi\d{3}|hsn\d|\bHSA_|singularity-AI-bindings|/appl/local|\bgfx9|"
    r"\b(?:standard|small|dev)-g\b|project_46\d{7}|\blumi\b|lumi-|/lumi|\bfrontier\b|\bamdgpu|/opt/cray/[^\n]{0,80}amd"
)
"""Words of systems with AMD GPUs, whose containers see the devices without a flag."""
_ON_CPU = r"^(?:echo|ls|cat|cp|mkdir|pip|pip3|conda|bash|sh|tar|rsync|which|env|git|wget|curl)$"


@rule(
    id="container-without-gpu",
    severity="error",
    title="The container cannot see the GPU",
    why="Apptainer adds the driver's libraries only with --nv (or --rocm). Without it PyTorch finds no GPU, and "
    "fails or trains on the CPU.",
    source=f"Apptainer, GPU support; {GUIDE} 2.4.9",
    before=_HEAD + "srun apptainer exec image.sif python train.py\n",
    after=_HEAD + "srun apptainer exec --nv image.sif python train.py\n",
)
def container_without_gpu(script: Script, context: Context) -> Iterator[Hit]:
    if not script.asks_for_gpus:
        return
    launches = [
        launch
        for launch in script.launched("apptainer")
        if not launch.has(*_GPU_FLAGS)
        and not has_unknown_options(launch)
        and not launch.command.within.is_substitution
        and _uses_gpu(script, launch)
    ]
    if not launches or _is_visible_anyway(script, context):
        return
    for launch in launches:
        flag = _flag(context)
        yield at(
            script,
            launch,
            f"{_name(launch)} runs without {flag}, so the container sees no GPU",
            next_step=f"add {flag}",
            fix=_with_flag(script, launch, flag),
        )


def _is_visible_anyway(script: Script, context: Context) -> bool:
    """Whether GPUs are visible without a flag: by a variable, or on AMD systems that need none."""
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
    """Whether the program inside may use a GPU: it is not a copy, a set-up or the like."""
    if not launch.program:
        return False
    first = launch.program[0].text.rpartition("/")[2]
    if any(other.tool in (*DISTRIBUTED, "python") for other in started_by(script, launch)):
        return True
    return not re.match(_ON_CPU, first) and not first.startswith("$")


def _with_flag(script: Script, launch: Launch, flag: str) -> ScriptFix | None:
    """Unsafe: the program then trains on the GPU."""
    verb = next((w for w in own_words(launch) if w.text in ("exec", "run", "shell") and not w.is_expanded), None)
    if verb is None or script.text[verb.start : verb.end] != verb.text:
        return None
    return insert_text(verb.end, f" {flag}", title=f"add {flag}", is_safe=False)


@rule(
    id="container-by-tag",
    severity="warning",
    title="The container image has a tag that can change",
    why="A tag may point to another image tomorrow, so the run cannot be repeated. Every job also contacts the "
    "registry.",
    source=f"{GUIDE} 2.4.9: pin the image by digest",
    before=_HEAD + "srun apptainer exec --nv docker://nvcr.io/nvidia/pytorch:24.08-py3 python train.py\n",
    after=_HEAD + "srun apptainer exec --nv pytorch_24.08.sif python train.py\n",
)
def container_by_tag(script: Script, context: Context) -> Iterator[Hit]:
    yield from _images_of_containers(script)
    yield from _images_of_steps(script)
    yield from _images_in_header(script)


def _images_of_containers(script: Script) -> Iterator[Hit]:
    """Images of apptainer, podman and docker commands."""
    for launch in script.containers:
        image = script.resolve(launch.image.text) if launch.image is not None else ""
        if launch.tool == "apptainer":
            if _can_change(image, is_remote=image.startswith(("docker://", "oras://", "library://"))):
                yield at(
                    script,
                    launch.image or launch,
                    f"{image} has a tag but no digest, and is downloaded when the job runs",
                    next_step="pull it by digest to a .sif file before the job, and name the file",
                )
        elif launch.tool in ("podman", "podman-hpc", "docker") and launch.image is not None and "$" not in image:
            latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
            if _can_change(image, is_remote="/" in image and not image.startswith(("/", "."))):
                yield at(
                    script,
                    launch.image,
                    f"{image} {'means the latest image' if latest else 'has a tag but no digest'}",
                    next_step="add @sha256:DIGEST",
                    severity=None if latest else "info",
                )


def _images_of_steps(script: Script) -> Iterator[Hit]:
    """Images of srun --container-image."""
    for launch in script.launched("srun"):
        option = launch.option("container-image")
        image = script.resolve(option.value or "") if option is not None else ""
        if option is not None and _can_change(image, is_remote=_is_remote(image)):
            yield at(
                script,
                option,
                f"{image} has a tag but no digest",
                next_step="import it once to a file (enroot import) and name the file, or add @sha256:DIGEST",
            )


def _images_in_header(script: Script) -> Iterator[Hit]:
    """Images of #SBATCH --container-image and --image."""
    for name in ("container-image", "image"):
        directive = script.directive(name)
        image = (directive.value or "") if directive is not None else ""
        latest = name == "image" and (":" not in image.removeprefix("docker:") or image.endswith(":latest"))
        if directive is not None and (
            _can_change(image, is_remote=_is_remote(image)) if name == "container-image" else latest
        ):
            yield at(
                script,
                directive,
                f"{image} has a tag that can change",
                next_step="name a version, or better a digest: @sha256:DIGEST",
            )


def _is_remote(image: str) -> bool:
    """Whether Pyxis fetches the image from a registry; files begin with a slash or a dot, or end like images."""
    return not re.search(r"^[./~$]|\.(?:sqsh|sif|img|squashfs)$|\$", image) and image != ""


def _can_change(image: str, *, is_remote: bool) -> bool:
    return is_remote and "@sha256" not in image and not image.startswith("docker-daemon:")
