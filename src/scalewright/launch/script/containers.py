"""Containers: what each runtime needs in the header, the checks and the command line of a job script."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from scalewright.errors import ConfigError
from scalewright.launch.script.quoting import quote
from scalewright.launch.script.request import Container
from scalewright.launch.script.resolved_job import ResolvedJob

HANDED_OVER = (
    "SLURM*", "NCCL_*", "RCCL_*", "FI_*", "UCX_*", "GLOO_*", "OMP_*", "MIOPEN_*", "HSA_*", "ROCR_*", "HIP_*", "CUDA_*",
    "ROCFFT_*", "TORCH*", "PYTORCH_*", "HF_*", "TRANSFORMERS_*", "WANDB_MODE", "MPICH_*", "OMPI_*", "HDF5_*",
    "MASTER_*", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SCALEWRIGHT_*", "USER",
)  # fmt: skip
"""Patterns of the variables that are passed into an image with a clean environment."""

_PASS_ON = """    # The image starts with a clean environment. Variables that ranks need are passed by name.
    local name
    while IFS= read -r name; do
        case $name in
            @NAMES@)
                export "@PREFIX@_$name=${!name}"
                ;;
        esac
    done < <(compgen -e)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InImage:
    """The parts of a script that a container runtime needs. All are empty without a container."""

    sbatch: tuple[str, ...] = ()
    checks: str = ""
    """Shell lines that check, before anything starts, that the image exists and has the expected hash."""
    srun: tuple[str, ...] = ()
    """Quoted words for srun."""
    enter: str = ""
    """Shell lines that a rank runs before it enters the image."""
    words: tuple[str, ...] = ()
    """Quoted words between the rank's variables and the command."""


def in_image(job: ResolvedJob) -> InImage:
    container, runtime = job.request.container, job.runtime
    if container is None or runtime is None:
        return InImage()
    if runtime.kind == "shifter":
        return InImage(
            sbatch=(f"--image={container.image}", *runtime.sbatch),
            checks=f"shifterimg lookup {quote(container.image)} >/dev/null || "
            f"{{ say 'image not in the gateway: shifterimg pull it first'; exit 3; }}\n",
            words=("shifter",),
        )
    checks = _file_checks(container) if container.is_file else ""
    if runtime.kind == "pyxis":
        return InImage(checks=checks, srun=_pyxis_words(job, container))
    prefix = f"{runtime.command.upper()}ENV"
    own = [v for v in job.request.variables if not any(fnmatchcase(v, pattern) for pattern in HANDED_OVER)]
    names = _pattern((*HANDED_OVER, *own))
    return InImage(
        checks=checks,
        enter=_PASS_ON.replace("@NAMES@", names).replace("@PREFIX@", prefix),
        words=_apptainer_words(job, container),
    )


def _pattern(names: tuple[str, ...]) -> str:
    """Names as one pattern of a `case`, eight on each line."""
    rows = [" | ".join(names[start : start + 8]) for start in range(0, len(names), 8)]
    return " | \\\n            ".join(rows)


def _file_checks(container: Container) -> str:
    lines = '[[ -r $image ]] || { say "image $image cannot be read"; exit 3; }\n'
    if container.sha256:
        lines += (
            f'[[ $(sha256sum <"$image") == {container.sha256}* ]] ||\n    '
            '{ say "image $image is not the one that was pinned"; exit 3; }\n'
        )
    return f"image={quote(container.image)}\n{lines}"


def _image_word(job: ResolvedJob, container: Container) -> str:
    """The image as a shell word: the copy on the node if the image is copied there."""
    if container.image in job.request.copied_paths:
        return f'"$copy_dir"/{quote(container.image.rpartition("/")[2])}'
    return '"$image"' if container.is_file else quote(container.image)


def _mounts(job: ResolvedJob, separators: str) -> list[str]:
    paths = [str(job.request.work_dir), str(job.request.run_dir), *job.request.mounted_paths]
    odd = next((p for p in paths if any(c in p for c in separators)), "")
    if odd:
        raise ConfigError(
            f"{odd!r} contains one of {separators!r}, which cannot be part of a container mount: choose another path"
        )
    return paths


def _apptainer_words(job: ResolvedJob, container: Container) -> tuple[str, ...]:
    runtime = job.runtime
    assert runtime is not None
    words = [runtime.command, "exec", "--cleanenv", "--no-eval", *runtime.flags]
    for path in dict.fromkeys(_mounts(job, ":,")):
        words += ["--bind", quote(path)]
    if job.request.copied_paths:
        words += ["--bind", '"$copy_dir"']
    return (*words, "--pwd", quote(str(job.request.work_dir)), _image_word(job, container))


def _pyxis_words(job: ResolvedJob, container: Container) -> tuple[str, ...]:
    mounts = ",".join(f"{path}:{path}" for path in dict.fromkeys(_mounts(job, ":,")))
    mount_word = f"--container-mounts={quote(mounts)}"
    if job.request.copied_paths:
        mount_word += '",$copy_dir:$copy_dir"'
    return (
        f"--container-image={_image_word(job, container)}",
        mount_word,
        f"--container-workdir={quote(str(job.request.work_dir))}",
        "--no-container-mount-home",
    )
