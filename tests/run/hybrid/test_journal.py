"""The journal: random histories of a run, cut off at any byte, lose nothing that was acknowledged."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_roles import log_prob_of, right_tokens, settings_of
from scalewright.errors import EnvironmentFailedError
from scalewright.run.hybrid.journal import Journal, body_of, line_of
from scalewright.run.hybrid.leases import next_operation, orders_for, rollouts_for
from scalewright.run.hybrid.messages import ControllerRefusedError
from scalewright.run.hybrid.state import ControllerState, StateSettings

MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ENGINES = 3


def rows_of(state: ControllerState) -> Any:
    """The state as it is on disk, to compare."""
    return json.loads(json.dumps(state.to_document()))


class History:
    """A run without sockets and clocks: numbers choose what happens next. Every operation goes to the journal."""

    def __init__(self, folder: Path, config: StateSettings, *, keeps_states: bool = True) -> None:
        self._keeps_states = keeps_states
        self.state = ControllerState(config)
        self.journal = Journal(folder / "journal.jsonl", folder / "snapshot.json", is_synced=False)
        self.journal.open()
        self.states = [rows_of(self.state)]
        """After each operation."""
        self.first = 0
        """Operations before this one are in the snapshot."""
        self.num_acknowledged = 0
        self.ended: list[tuple[int, str]] = []
        """Rollouts whose end was acknowledged, with the number of the operation."""
        self.trained: dict[int, list[str]] = {}
        """What the trainer got for each step."""
        self.step = 0
        self.time_s = 0.0
        self.held: dict[int, dict[str, int]] = {}

    def apply(self, operation: Mapping[str, Any]) -> None:
        self.state.check(operation)
        self._apply(operation)
        while (call := next_operation(self.state)) is not None:
            self.time_s += 1.0
            self._apply({"call": call, "time_s": self.time_s})

    def _apply(self, operation: Mapping[str, Any]) -> None:
        self.state.apply(operation)
        self.journal.append(json.dumps(operation).encode())
        self.states.append(rows_of(self.state) if self._keeps_states else None)

    def do(self, action: int, engine: int, amount: int) -> None:
        kinds = (
            self.join,
            self.sync,
            self.pull,
            self.write,
            self.write,
            self.write,
            self.expire,
            self.train,
            self.crash,
        )
        engine %= ENGINES
        if kinds[action % len(kinds)] in (self.sync, self.pull, self.write) and engine not in self.state.engines:
            self.join(engine, amount)
        kinds[action % len(kinds)](engine, amount)
        self.journal.write(self.journal.take())
        check_state(self)

    def join(self, engine: int, amount: int) -> None:
        self.apply({"call": "join", "engine": engine, "capacity": 1 + amount % 7, "version": -1})
        self.held[engine] = {}

    def sync(self, engine: int, amount: int) -> None:
        order = orders_for(self.state, engine, [])["sync"]
        if order is not None:
            version = order["version"]
            self.apply({"call": "synced", "engine": engine, "version": version, "ranks": [version], "result": {}})

    def pull(self, engine: int, amount: int) -> None:
        self.sync(engine, 0)
        held = self.held[engine]
        for rollout in orders_for(self.state, engine, list(held))["cut"]:
            del held[rollout]
        chosen = rollouts_for(self.state, engine, most=1 + amount % 7, held=list(held))
        fresh = [one.id for one in chosen if one.id not in self.state.owners]
        if fresh:
            self.apply({"call": "lease", "engine": engine, "ids": fresh})
        held.update({one.id: one.num_tokens for one in chosen})

    def write(self, engine: int, amount: int) -> None:
        self.pull(engine, amount)
        rows, version = [], self.state.engines[engine].version
        for rollout, num in list(self.held[engine].items()):
            right = right_tokens(rollout)
            tokens = right[num : num + 1 + amount % 9]
            row = {"id": rollout, "start": num, "tokens": tokens, "version": version,
                   "log_probs": [log_prob_of(token) for token in tokens]}  # fmt: skip
            if num + len(tokens) == len(right):
                row["reason"] = "stop"
                del self.held[engine][rollout]
            else:
                self.held[engine][rollout] = num + len(tokens)
            rows.append(row)
        owned = [row["id"] for row in rows if "reason" in row and self.state.owners.get(row["id"]) == engine]
        self.apply({"call": "finished", "engine": engine, "rows": rows})
        self.ended += [(len(self.states) - 1, rollout) for rollout in owned]
        if amount % 5 == 0:  # the answer was lost: the message comes again
            self.apply({"call": "finished", "engine": engine, "rows": rows})

    def expire(self, engine: int, amount: int) -> None:
        if engine in self.state.engines:
            self.apply({"call": "expire", "engine": engine})

    def train(self, engine: int, amount: int) -> None:
        if self.state.offer is None:
            self.apply({"call": "resume", "step": self.step})
            self.apply({"call": "publish", "version": self.step, "addresses": ["a"], "way": "peers"})
        unscored = [[one.rollout.id, 1.0, True, "", ""] for one in self.state.unscored()]
        if unscored:
            self.apply({"call": "scored", "rows": unscored, "seconds": 0.5})
        if not self.state.is_ready(self.step):
            return
        ids = self.state.batches[self.step].ids()
        assert self.trained.setdefault(self.step, ids) == ids, "a step has one batch"
        self.time_s += 1.0
        self.apply({"call": "done", "step": self.step, "version": self.step + 1, "addresses": ["a"], "way": "peers",
                    "seconds": {"train_s": 1.0}, "time_s": self.time_s})  # fmt: skip
        self.step += 1
        if amount % 3 == 0:
            self.apply({"call": "checkpointed", "step": self.step})
            self.journal.write(self.journal.take())
            self.journal.compact(self.state.to_document())
            self.first = len(self.states) - 1

    def crash(self, engine: int, amount: int) -> None:
        """The trainer dies and goes back to its checkpoint."""
        self.step = self.state.checkpoint_step
        self.apply({"call": "resume", "step": self.step})


def check_state(history: History) -> None:
    """No rollout is in two places, and none that ended has gone."""
    state = history.state
    places = [one.rollout.id for one in state.pool.ended]
    for step, batch in state.batches.items():
        places += batch.ids()
        for group in batch.groups:
            for one in group.answers:
                assert one.rollout.tokens == right_tokens(one.rollout.id)
                least = step - state.settings.staleness if state.settings.staleness else 0
                assert min(one.rollout.versions) >= least
    given = [rollout for step, ids in history.trained.items() if step not in state.batches for rollout in ids]
    places += given
    assert len(set(places)) == len(places)
    assert not {one.id for one in state.pool.open} & set(places)
    late = {row["id"] for row in state._late if "reason" in row}
    gone = {rollout for _, rollout in history.ended} - set(places) - late
    if not state.settings.staleness:
        ended_of = Counter(rollout.split(":")[0] for _, rollout in history.ended)
        for group, num in Counter(rollout.split(":")[0] for rollout in gone).items():
            assert num == 1, "only an answer that is left alone is dropped"
            assert ended_of[group] == 1 or state.settings.pool.groups == "parts"
    assert set(state.owners) <= {one.id for one in state.pool.open}


CONFIGS = st.builds(
    settings_of,
    num_steps=st.just(6), staleness=st.integers(0, 3), token_budget=st.sampled_from([0, 30, 90]),
    num_prompts=st.integers(1, 3), num_answers=st.integers(2, 3), max_open=st.integers(2, 9),
    retention=st.integers(1, 3), groups=st.sampled_from(["whole", "parts"]),
)  # fmt: skip
ACTIONS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(0, 20)), min_size=20, max_size=50)


@MANY
@given(config=CONFIGS, actions=ACTIONS, cuts=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_journal_cut_at_any_byte_gives_the_state_of_its_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, config: StateSettings, actions: list[tuple[int, int, int]],
    cuts: list[float], seed: int,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("journal")
    history = History(folder, config)
    history.train(0, 1)
    for action in actions:
        history.do(*action)
    history.journal.close()
    content = (folder / "journal.jsonl").read_bytes()
    head = content.index(b"\n") + 1
    for cut in sorted(cuts, reverse=True):
        size = head + round(cut * (len(content) - head))
        torn = bytes(random.Random(seed).randbytes(3)) if seed % 3 == 0 else b""
        (folder / "journal.jsonl").write_bytes(content[:size] + torn)
        journal = Journal(folder / "journal.jsonl", folder / "snapshot.json", is_synced=False)
        snapshot, operations = journal.open()
        state = ControllerState(config) if snapshot is None else ControllerState.from_document(snapshot)
        for operation in operations:
            state.apply(operation)
        whole = content[head:size].count(b"\n")
        assert len(operations) == whole
        assert rows_of(state) == history.states[history.first + whole]
        assert journal.next == history.first + whole
        journal.append(b'{"call":"checkpointed","step":0}')
        journal.write(journal.take())
        journal.close()
        again = Journal(folder / "journal.jsonl", folder / "snapshot.json", is_synced=False)
        assert len(again.open()[1]) == whole + 1, "what follows a cut is read again"
        again.close()


@MANY
@given(config=CONFIGS, actions=ACTIONS)
def test_a_run_can_go_on_from_every_state(
    tmp_path_factory: pytest.TempPathFactory, config: StateSettings, actions: list[tuple[int, int, int]]
) -> None:
    """After any history, one engine and the trainer bring the run to its end."""
    history = History(tmp_path_factory.mktemp("journal"), config, keeps_states=False)
    history.train(0, 1)
    for action in actions:
        history.do(*action)
    history.state = ControllerState.from_document(rows_of(history.state))
    for engine in range(ENGINES):
        history.expire(engine, 0)
    for number in range(400):
        if history.state.is_over:
            break
        history.do(3 if number % 2 else 7, 0, 8)
    history.journal.close()
    assert history.state.is_over
    assert history.step == 6


def test_compaction_survives_a_kill_between_its_two_steps(tmp_path: Path) -> None:
    history = History(tmp_path, settings_of(num_steps=6))
    history.train(0, 1)
    for number in range(60):
        history.do((3, 7, 3)[number % 3], number, 7)
    before = (tmp_path / "journal.jsonl").read_bytes()
    history.journal.compact(history.state.to_document())
    history.journal.close()
    for old in (before, (tmp_path / "journal.jsonl").read_bytes(), before[: len(before) // 2], b""):
        (tmp_path / "journal.jsonl").write_bytes(old)
        journal = Journal(tmp_path / "journal.jsonl", tmp_path / "snapshot.json")
        snapshot, operations = journal.open()
        journal.close()
        assert snapshot is not None
        assert operations == []
        assert rows_of(ControllerState.from_document(snapshot)) == history.states[-1]
        assert not list(tmp_path.glob(".*.tmp"))


def test_damage_that_no_kill_does_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, tmp_path / "snapshot.json")
    journal.open()
    for step in range(3):
        journal.append(b'{"call":"checkpointed","step":%d}' % step)
    journal.write(journal.take())
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b"1", b"7"), lines[3]]))
    with pytest.raises(EnvironmentFailedError, match="line 3 is damaged and whole lines follow it"):
        Journal(path, tmp_path / "snapshot.json").open()
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b"2", b"9")]))
    cut = Journal(path, tmp_path / "snapshot.json")
    assert len(cut.open()[1]) == 2
    cut.close()
    (tmp_path / "snapshot.json").write_bytes(b'["00000000",{}]\n')
    with pytest.raises(EnvironmentFailedError, match="is damaged"):
        Journal(path, tmp_path / "snapshot.json").open()


def test_a_disk_that_cannot_be_written_is_the_environments_fault(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", tmp_path / "snapshot.json")
    journal.open()
    os.close(journal._handle)
    journal._handle = os.open("/dev/full", os.O_WRONLY)
    journal.append(b"{}")
    with pytest.raises(
        EnvironmentFailedError, match="the journal cannot be written: No space left on device"
    ) as caught:
        journal.write(journal.take())
    assert caught.value.exit_code == 3
    journal.close()


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4), st.integers(0, 200))
def test_a_line_is_whole_or_nothing(body: dict[str, Any], place: int) -> None:
    line = line_of(json.dumps(body).encode())
    assert body_of(line) == body
    assert all(body_of(line[:end]) is None for end in range(len(line)))
    place %= len(line)
    changed = bytes([*line[:place], line[place] ^ 1, *line[place + 1 :]])
    assert body_of(changed) is None


def test_operations_that_no_role_may_do_change_nothing(tmp_path: Path) -> None:
    history = History(tmp_path, settings_of(num_steps=6, token_budget=90, max_open=4))
    history.train(0, 1)
    for number in range(60):
        history.do((3, 7, 3)[number % 3], number, 7)
    before = rows_of(history.state)
    for operation in (
        {"call": "publish", "version": 99, "addresses": [], "way": ""},
        {"call": "done", "step": 50, "version": 51, "addresses": [], "way": "", "seconds": {}, "time_s": 0.0},
        {"call": "resume", "step": 50},
        {"call": "checkpointed", "step": 50},
    ):
        with pytest.raises(ControllerRefusedError):
            history.state.check(operation)
    assert rows_of(history.state) == before
    history.journal.close()
