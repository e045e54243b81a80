"""Running the ranks inside an image: what the header, the checks and the command line need for each runtime."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from scalewright.errors import ConfigError
from scalewright.launch.script.quoting import quote
from scalewright.launch.script.request import Container
from scalewright.launch.script.resolve import Settled

HANDED_OVER = (
    "SLURM*", "NCCL_*", "RCCL_*", "FI_*", "UCX_*", "GLOO_*", "OMP_*", "MIOPEN_*", "HSA_*", "ROCR_*", "HIP_*", "CUDA_*",
    "ROCFFT_*", "TORCH*", "PYTORCH_*", "HF_*", "TRANSFORMERS_*", "WANDB_MODE", "MPICH_*", "OMPI_*", "HDF5_*",
    "MASTER_*", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SCALEWRIGHT_*", "USER",
)  # fmt: skip
"""Variables that an image with a clean environment is given, by name."""

_PASS_ON = """    # The image starts with a clean environment; what ranks need is handed over by name.
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
    """A runtime's share of a script."""

    sbatch: tuple[str, ...] = ()
    checks: str = ""
    """Shell lines before anything starts: the image is there and is the one meant."""
    srun: tuple[str, ...] = ()
    """Words for srun, quoted."""
    enter: str = ""
    """Shell lines of a rank before it enters the image."""
    words: tuple[str, ...] = ()
    """Words between the rank's variables and the command, quoted."""


def in_image(settled: Settled) -> InImage:
    """Nothing without a container."""
    container, runtime = settled.request.container, settled.runtime
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
        return InImage(checks=checks, srun=_pyxis_words(settled, container))
    prefix = f"{runtime.command.upper()}ENV"
    own = [v for v in settled.request.variables if not any(fnmatchcase(v, known) for known in HANDED_OVER)]
    names = _pattern((*HANDED_OVER, *own))
    return InImage(
        checks=checks,
        enter=_PASS_ON.replace("@NAMES@", names).replace("@PREFIX@", prefix),
        words=_apptainer_words(settled, container),
    )


def _pattern(names: tuple[str, ...]) -> str:
    """Names as one pattern of a case, eight to a line."""
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


def _image_word(settled: Settled, container: Container) -> str:
    """The staged copy where the image is among what is staged."""
    if container.image in settled.request.stage:
        return f'"$stage_dir"/{quote(container.image.rpartition("/")[2])}'
    return '"$image"' if container.is_file else quote(container.image)


def _mounts(settled: Settled, separators: str) -> list[str]:
    paths = [str(settled.request.work_dir), str(settled.request.run_dir)]
    odd = next((p for p in paths if any(c in p for c in separators)), "")
    if odd:
        raise ConfigError(
            f"{odd!r} has one of {separators!r}, which a bind into a container cannot hold: choose another"
        )
    return paths


def _apptainer_words(settled: Settled, container: Container) -> tuple[str, ...]:
    runtime = settled.runtime
    assert runtime is not None
    words = [runtime.command, "exec", "--cleanenv", "--no-eval", *runtime.flags]
    for path in dict.fromkeys(_mounts(settled, ":,")):
        words += ["--bind", quote(path)]
    if settled.request.stage:
        words += ["--bind", '"$stage_dir"']
    return (*words, "--pwd", quote(str(settled.request.work_dir)), _image_word(settled, container))


def _pyxis_words(settled: Settled, container: Container) -> tuple[str, ...]:
    mounts = ",".join(f"{path}:{path}" for path in dict.fromkeys(_mounts(settled, ":,")))
    mount_word = f"--container-mounts={quote(mounts)}"
    if settled.request.stage:
        mount_word += '",$stage_dir:$stage_dir"'
    return (
        f"--container-image={_image_word(settled, container)}",
        mount_word,
        f"--container-workdir={quote(str(settled.request.work_dir))}",
        "--no-container-mount-home",
    )
