"""Making, converting and copying data sets: whole or not at all, never over the room there is, once per node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from image_sets import SMALL

from scalewright.data import room
from scalewright.data.copying import CopiedSet, copy_set, remove_copy
from scalewright.data.imagenet_like import GeneratedImages, ImageSet, make_images
from scalewright.data.opening import open_samples
from scalewright.data.room import check_room, memory_left_bytes, room_at
from scalewright.data.writing import convert
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError

NOBODY = 65534


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@contextmanager
def rights_of_a_user() -> Iterator[None]:
    """Also where root runs the tests: root writes everywhere."""
    before = os.geteuid()
    os.seteuid(before or NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_the_same_seed_makes_the_same_bytes_whoever_works(tmp_path: Path) -> None:
    alone = make_images(tmp_path / "alone", SMALL)
    several = make_images(tmp_path / "several", SMALL, num_workers=2)
    assert snapshot(alone) == snapshot(several)
    other = make_images(tmp_path / "other", ImageSet(num_images=12, num_classes=3, seed=6))
    assert snapshot(alone) != snapshot(other)


def test_images_are_as_large_as_imagenets(tmp_path: Path) -> None:
    from PIL import Image

    made = open_samples(make_images(tmp_path / "set", ImageSet(num_images=300, num_classes=5)))
    num_bytes = [len(made.read(index)[0]) for index in range(300)]
    sides = []
    for index in range(300):
        with Image.open(made.file(index)) as image:  # type: ignore[attr-defined]
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            sides.append(image.size)
    assert np.mean(num_bytes) == pytest.approx(110_000, rel=0.1)
    assert np.mean(sides, axis=0) == pytest.approx([400, 350], rel=0.05)
    assert np.std(num_bytes) > 20_000


def test_labels_can_be_learnt_from_one_set_and_hold_for_another(tmp_path: Path) -> None:
    """Nearest mean colour is a poor learner, yet far above chance on images of another seed."""
    from PIL import Image

    def colours(seed: int) -> tuple[np.ndarray, np.ndarray]:
        path = make_images(tmp_path / f"set-{seed}", ImageSet(num_images=80, num_classes=8, seed=seed))
        samples = open_samples(path)
        means, labels = [], []
        for index in range(len(samples)):
            with Image.open(samples.file(index)) as image:  # type: ignore[attr-defined]
                means.append(np.asarray(image.resize((8, 8))).mean((0, 1)))
            labels.append(samples.read(index)[1])
        return np.array(means), np.array(labels)

    (seen, labels), (unseen, truth) = colours(0), colours(1)
    centres = np.stack([seen[labels == label].mean(0) for label in range(8)])
    guesses = np.linalg.norm(unseen[:, None] - centres[None], axis=2).argmin(1)
    assert (guesses == truth).mean() > 4 / 8


def test_a_set_that_is_there_is_kept_and_another_is_refused(tmp_path: Path) -> None:
    path = make_images(tmp_path / "set", SMALL)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    assert make_images(path, SMALL) == path
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    with pytest.raises(ConfigError, match="holds another data set"):
        make_images(path, ImageSet(num_images=12, num_classes=3, seed=99))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not a data set that we made"):
        make_images(tmp_path / "mine", SMALL)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


def test_one_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    for num_workers in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            make_images(tmp_path / "set", SMALL, num_workers=num_workers, on_progress=stop)
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_maker_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".set.making-elsewhere-1"
    left.mkdir()
    (left / "half").write_text("x")
    make_images(tmp_path / "set", SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_images(tmp_path / "set", SMALL, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 12) for done in range(13)]


@pytest.mark.parametrize(
    ("images", "match"),
    [((0, 1, 0), "0 images"), ((2, 3, 0), "3 classes of 2 images"), ((2, 0, 0), "0 classes"), ((2, 1, -1), "seed -1")],
)
def test_impossible_sets_are_refused(images: tuple[int, int, int], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ImageSet(num_images=images[0], num_classes=images[1], seed=images[2])


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format 'hdf5' is not known: choose folder, shards, lmdb"):
        make_images(tmp_path / "set", SMALL, to="hdf5")  # type: ignore[arg-type]


def test_readers_need_no_torch(tmp_path: Path) -> None:
    made = make_images(tmp_path / "set", SMALL, to="lmdb")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from scalewright.data.opening import open_samples\n"
        f"print(len(open_samples(Path({str(made)!r})).read(3)[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == len(GeneratedImages(SMALL).read(3)[0])


def test_a_missing_lmdb_is_named_before_any_work(tmp_path: Path) -> None:
    source = make_images(tmp_path / "set", SMALL)
    code = (
        "import sys; sys.modules['lmdb'] = None\n"
        "from pathlib import Path; from scalewright.data.writing import convert\n"
        f"convert(Path({str(source)!r}), Path({str(tmp_path / 'new')!r}), to='lmdb')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "lmdb is not installed: install it with: pip install 'scalewright[data]'" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_copy_is_whole_and_made_once(tmp_path: Path) -> None:
    source = make_images(tmp_path / "set", SMALL)
    ram = tmp_path / "ram"
    ram.mkdir()
    answers: list[CopiedSet] = []
    threads = [threading.Thread(target=lambda: answers.append(copy_set(source, ram))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.path for answer in answers}) == 1
    assert [answer.is_new for answer in answers].count(True) == 1
    copied = snapshot(answers[0].path)
    assert {name: content for name, content in copied.items() if name != "copied.json"} == snapshot(source)
    remove_copy(answers[0])
    assert list(ram.iterdir()) == []


def test_a_source_that_changed_is_copied_anew(tmp_path: Path) -> None:
    source = make_images(tmp_path / "set", SMALL)
    ram = tmp_path / "ram"
    ram.mkdir()
    first = copy_set(source, ram)
    image = next((source / "class-0000").iterdir())
    os.utime(image, ns=(1, image.stat().st_mtime_ns + 10**9))
    assert copy_set(source, ram).path != first.path


def test_a_copy_without_room_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_images(tmp_path / "set", SMALL)
    ram = tmp_path / "ram"
    ram.mkdir()
    monkeypatch.setattr(room.os, "statvfs", lambda path: little_room(free_bytes=80 * 2**20, free_inodes=10**6))
    copy_set(source, ram)
    monkeypatch.setattr(room.os, "statvfs", lambda path: little_room(free_bytes=65 * 2**20, free_inodes=10**6))
    os.utime(source / "dataset.json")
    with pytest.raises(
        EnvironmentFailedError, match=r"do not fit in 65\.0 MiB of free space with a reserve of 64\.0 MiB for others"
    ):
        copy_set(source, ram)
    monkeypatch.setattr(room.os, "statvfs", lambda path: little_room(free_bytes=80 * 2**20, free_inodes=10))
    with pytest.raises(EnvironmentFailedError, match="18 files do not fit in 10 free inodes; use shards or LMDB"):
        copy_set(source, ram)
    assert len(list(ram.iterdir())) == 1


def test_links_are_followed_and_broken_ones_named(tmp_path: Path) -> None:
    source = make_images(tmp_path / "set", SMALL)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "cats").symlink_to(source / "class-0000", target_is_directory=True)
    ram = tmp_path / "ram"
    ram.mkdir()
    assert len(open_samples(copy_set(linked, ram).path)) == 4
    (linked / "cats.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(DocumentError, match=r"cats.jpg: cannot be read: No such file or directory"):
        copy_set(linked, ram)


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/slurm/job_7/step_0", "slurm/job_7", "memory.max", "memory.current"),
        ("9:memory:/slurm/job_7", "memory/slurm/job_7", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
    ids=["v2", "v1"],
)
def test_memory_of_the_job_bounds_a_ram_disk(tmp_path: Path, line: str, folder: str, limit: str, used: str) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    1000 kB\n")
    (proc / "self" / "cgroup").write_text(f"4:cpu,cpuacct:/other\n{line}\n")
    (cgroups / folder).mkdir(parents=True)
    (cgroups / folder / limit).write_text("700000\n")
    (cgroups / folder / used).write_text("200000\n")
    (cgroups / folder).parent.joinpath(limit).write_text("max\n")
    assert sorted(memory_left_bytes(proc=proc, cgroups=cgroups)) == [500_000, 1_024_000]


def little_room(*, free_bytes: int, free_inodes: int) -> SimpleNamespace:
    block = 4096
    return SimpleNamespace(
        f_frsize=block, f_bavail=free_bytes // block, f_blocks=2**30 // block, f_files=10**6, f_favail=free_inodes
    )


def test_room_is_asked_of_the_folder_that_will_hold_it(tmp_path: Path) -> None:
    assert room_at(tmp_path / "not" / "there" / "yet").whole_bytes == room_at(tmp_path).whole_bytes
    with pytest.raises(EnvironmentFailedError, match="do not fit"):
        check_room(tmp_path, num_bytes=10**18, num_files=1)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with rights_of_a_user(), pytest.raises(EnvironmentFailedError, match="cannot be written by this user"):
        check_room(tmp_path / "set", num_bytes=1, num_files=1)


def test_converting_twice_keeps_the_first_and_refuses_a_changed_source(tmp_path: Path) -> None:
    source = make_images(tmp_path / "set", SMALL)
    target = convert(source, tmp_path / "shards", to="shards")
    before = snapshot(target)
    assert convert(source, target, to="shards") == target
    assert snapshot(target) == before
    with pytest.raises(ConfigError, match="holds another data set"):
        convert(source, target, to="lmdb")
