"""SquashFS: class folders as one image file, made without root and mounted by squashfuse where FUSE is permitted."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from scalewright.data.room import check_room
from scalewright.data.whole import held_for_making, writing
from scalewright.errors import ConfigError, EnvironmentFailedError

SUFFIX = ".sqfs"
MAKER, MOUNTER = "mksquashfs", "squashfuse"
UNMOUNTERS = {"fusermount3": ["-u"], "fusermount": ["-u"], "umount": []}
"""Programs that end a mount, the first that is installed; the last one needs root."""
MOUNT_S = 10.0
SQUASHFS_BYTES_PER_FILE = 64
"""An inode and an entry of a folder, both uncompressed."""


def make_image(source: Path, image: Path, *, expected_bytes: int) -> Path:
    """An image of a folder, uncompressed because images are: the image appears whole or not at all."""
    if not source.is_dir():
        raise ConfigError(f"{source}: is not a folder; a SquashFS image is made from class folders")
    if image.exists():
        raise ConfigError(f"{image}: exists already; choose another name")
    maker = _program(MAKER, "squashfs-tools")
    check_room(image, num_bytes=expected_bytes, num_files=2)
    hidden = image.with_name(f".{image.name}.making-{os.getpid()}")
    plain = ["-noI", "-noD", "-noF", "-noX", "-no-xattrs", "-all-root", "-no-progress", "-quiet", "-no-fragments"]
    with held_for_making(image):
        try:
            done = subprocess.run(
                [maker, str(source), str(hidden), *plain, "-reproducible", "-mkfs-time", "0"],
                capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode:
                why = (done.stderr or done.stdout).strip().splitlines()
                raise EnvironmentFailedError(f"{image}: {MAKER} failed: {why[-1] if why else done.returncode}")
            with writing(image):
                hidden.rename(image)
        finally:
            hidden.unlink(missing_ok=True)
    return image


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The image as a folder, inside the `with`. Where FUSE is not permitted, one sentence says so."""
    mounter = _program(MOUNTER, "squashfuse")
    usable = [name for name in UNMOUNTERS if shutil.which(name) and (name != "umount" or os.geteuid() == 0)]
    if not usable:
        raise EnvironmentFailedError("fusermount3 is not installed: without it nothing is mounted; install fuse3")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [mounter, str(image), str(folder)], capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode or not os.path.ismount(folder):
        why = " ".join(done.stderr.split()) or "FUSE is not permitted here"
        raise EnvironmentFailedError(f"{image}: cannot be mounted: {why}; copy the class folders instead")
    try:
        yield folder
    finally:
        _unmount([usable[0], *UNMOUNTERS[usable[0]]], folder)


def _unmount(command: list[str], folder: Path) -> None:
    """A file that a dying reader still holds keeps the mount busy for a moment: then it is detached."""
    deadline_s = time.monotonic() + MOUNT_S
    while os.path.ismount(folder):
        lazily = ["-l" if command[0] == "umount" else "-z"] if time.monotonic() > deadline_s else []
        subprocess.run([*command, *lazily, str(folder)], capture_output=True, check=False)
        if lazily:
            break
        if os.path.ismount(folder):
            time.sleep(0.1)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _program(name: str, package: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise EnvironmentFailedError(f"{name} is not installed: install {package}, or use shards or LMDB")
    return program
