"""The origin of a run: commit, versions, driver, container, and environment variables that control libraries."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import scalewright
from scalewright.errors import DocumentError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.run_directory import RunDirectory
from scalewright.run.world import World

GIT_TIMEOUT_S = 10.0
PACKAGES = ("torch", "numpy", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "psutil", "nvidia-ml-py", "lmdb")
KEPT_PREFIXES = (
    "SLURM_", "SLURMD_", "SBATCH_", "PBS_", "FLUX_", "PMI", "OMPI_", "MPICH_", "TORCH", "PYTORCH_", "PET_", "NCCL_",
    "RCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "HIP_", "ROCR_", "HSA_", "MIOPEN_", "OMP_", "KMP_", "MKL_", "ONEDNN_",
    "SCALEWRIGHT_", "MASTER_", "APPTAINER_", "SINGULARITY_", "ENROOT_", "SHIFTER_", "KUBERNETES_SERVICE_",
)  # fmt: skip
KEPT = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV"}
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|JWT|API_?KEY|PRIVATE|AUTH", re.IGNORECASE)


def record_start(directory: RunDirectory, world: World, env: Mapping[str, str]) -> None:
    """Write the environment of this attempt, and add the attempt to the provenance."""
    body = {"job": world.job_id, "attempt": world.attempt, "host": world.host, "variables": kept_variables(env)}
    write_document(directory.environment, document("environment", body))
    attempts: list[Any] = []
    if directory.provenance.exists():
        try:
            attempts = list(read_document(directory.provenance, "provenance").get("attempts", []))
        except DocumentError:
            attempts = []
    attempts.append(describe_attempt(world, env))
    write_document(directory.provenance, document("provenance", {"attempts": attempts}))


def describe_attempt(world: World, env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "job": world.job_id,
        "attempt": world.attempt,
        "time": time.time(),
        "host": world.host,
        "launcher": world.launcher,
        "num_ranks": world.world_size,
        "num_nodes": world.num_nodes,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {"scalewright": scalewright.__version__, **versions()},
        "source": git_state(Path(scalewright.__file__).resolve().parent),
        "working_directory": git_state(Path.cwd()),
        "driver": driver(),
        "container": container(env),
        "command": sys.orig_argv,
    }


def kept_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of schedulers and libraries; nothing else, and nothing that looks like a secret."""
    chosen = (name for name in env if name in KEPT or name.startswith(KEPT_PREFIXES))
    return {name: env[name] for name in sorted(chosen) if not SECRET.search(name)}


def versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether anything differs from it; None outside a repository or without git."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments],
                capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(status) if status is not None else None}


def driver() -> str:
    for path in (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")):
        try:
            return path.read_text().splitlines()[0].strip()
        except (OSError, IndexError):
            continue
    return ""


def container(env: Mapping[str, str]) -> str:
    """Container image, if the runtime names it; empty outside a container."""
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SLURM_CONTAINER", "SHIFTER_IMAGEREQUEST"):
        if env.get(name):
            return env[name]
    for marker, text in ((Path("/run/.containerenv"), "podman"), (Path("/.dockerenv"), "docker")):
        if marker.exists():
            return f"{text} (image unknown)"
    return ""
