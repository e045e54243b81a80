"""Trainer and engines as roles: synchronous ones learn as one process does, others stay within the bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.role_cases import SFT, check_whole, curve, grpo, record

from scalewright.records.hybrid import read_timeline
from scalewright.records.reasoning import read_stage
from scalewright.records.run_directory import RunDirectory

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, shared_cli_with_ranks: Cli) -> Path:
    """A model that solves some problems."""
    path = tmp_path_factory.mktemp("hybrid") / "sft"
    done = shared_cli_with_ranks(*SFT, "--run-dir", str(path))
    assert done.returncode == 0, done.stderr
    return path


def test_synchronous_roles_learn_as_one_process_does(cli: Cli, started: Path, tmp_path: Path) -> None:
    one, roles = tmp_path / "one", tmp_path / "roles"
    assert cli(*grpo(started, steps=4, run_dir=one)).returncode == 0
    done = cli(*grpo(started, steps=4, run_dir=roles), "--engines", "2")
    assert done.returncode == 0, done.stderr
    check_whole(roles, steps=4)
    for mine, theirs in zip(curve(roles), curve(one), strict=True):
        assert (mine.reward_mean, mine.length_mean) == (theirs.reward_mean, theirs.length_mean)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-3)
    assert any((point.grad_norm or 0.0) > 0.0 for point in curve(one)), "nothing was learnt, so nothing is compared"
    assert read_stage(RunDirectory(roles)).accuracy == read_stage(RunDirectory(one)).accuracy
    syncs = record(roles).syncs
    assert {(sync.version, sync.engine) for sync in syncs} >= {(version, e) for version in range(4) for e in range(2)}
    for version in range(4):
        assert len({sync.checksum for sync in syncs if sync.version == version}) == 1
    lanes = {span.lane for span in read_timeline(RunDirectory(roles)) if span.kind in ("decode", "train")}
    assert lanes == {"engine-0", "engine-1", "trainer-0"}


def test_roles_of_several_ranks_learn_as_one_process_does(cli: Cli, started: Path, tmp_path: Path) -> None:
    """A sharded trainer, and an engine that two ranks share: weights are resharded on the way, down a chain."""
    one, roles = tmp_path / "one", tmp_path / "roles"
    assert cli(*grpo(started, steps=2, run_dir=one)).returncode == 0
    several = ("--layout", "dp=2,zero=3", "--engines", "1", "--engine-tp", "2", "--sync", "broadcast")
    done = cli(*grpo(started, steps=2, run_dir=roles), *several)
    assert done.returncode == 0, done.stderr
    check_whole(roles, steps=2)
    for mine, theirs in zip(curve(roles), curve(one), strict=True):
        assert (mine.reward_mean, mine.length_mean) == (theirs.reward_mean, theirs.length_mean)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-3)
    assert {sync.way for sync in record(roles).syncs} == {"broadcast"}


def test_asynchronous_roles_stay_within_the_bound(cli: Cli, started: Path, tmp_path: Path) -> None:
    path = tmp_path / "roles"
    done = cli(*grpo(started, steps=6, run_dir=path), "--engines", "1", "--staleness", "2", "--sync", "file")
    assert done.returncode == 0, done.stderr
    check_whole(path, steps=6, staleness=2)
    whole = record(path)
    assert whole.settings.mode == "async"
    assert {sync.way for sync in whole.syncs} == {"file"}
    assert max(step.staleness_max for step in whole.steps) > 0, "engines never ran ahead"
