"""The controller over real sockets on loopback, with fake engines and a fake trainer."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from fake_roles import (
    LONGEST,
    FakeEngine,
    FakeRecord,
    FakeTask,
    FakeTrainer,
    check_trained,
    log_prob_of,
    right_tokens,
    run_roles,
    serving,
    settings_of,
)
from scalewright.records.run_directory import RunDirectory
from scalewright.run.hybrid.client import ControllerClient
from scalewright.run.hybrid.messages import (
    MOST_BYTES,
    PROTOCOL,
    ControllerLostError,
    ControllerRefusedError,
    LeaseLostError,
    ProgressRow,
    encoded,
    receive,
)

MODES = [
    pytest.param(0, 0, id="sync"),
    pytest.param(0, 150, id="sync-budget"),
    pytest.param(1, 0, id="one-step-off"),
    pytest.param(1, 150, id="one-step-off-budget"),
    pytest.param(3, 150, id="async-budget"),
]


@pytest.mark.parametrize(("staleness", "token_budget"), MODES)
def test_a_run_trains_every_answer_once_within_its_bound(tmp_path: Path, staleness: int, token_budget: int) -> None:
    settings = settings_of(staleness=staleness, token_budget=token_budget, max_open=12, retention=3)
    with serving(tmp_path, settings) as controller:
        trainer, engines = run_roles(tmp_path, num_engines=2, num_steps=6, work_s=0.02)
        state, record = controller.state, controller._record
    check_trained(trainer.batches)
    assert sum(len(batch.groups) for batch in trainer.batches) >= 2
    assert state.is_over
    assert isinstance(record, FakeRecord)
    assert [line["step"] for line in record.steps] == list(range(6))
    for batch, line in zip(trainer.batches, record.steps, strict=True):
        for group in batch.groups:
            for one in group.answers:
                behind = batch.step - min(one.rollout.versions)
                assert 0 <= behind <= (staleness or 3), "a cut rollout of a synchronous run is bounded by retention"
        assert line["num_trained_tokens"] == sum(
            len(one.rollout.tokens) for group in batch.groups for one in group.answers
        )
        assert line["train_s"] == 0.5
        failures = [one.failure or "ok" for group in batch.groups for one in group.answers]
        assert line["sandbox_outcomes"] == {kind: failures.count(kind) for kind in set(failures)}
    if not token_budget:
        assert all(len(batch.groups) == 4 and len(batch.groups[0].answers) == 4 for batch in trainer.batches)
        assert min(one.rollout.versions[0] for group in trainer.batches[5].groups for one in group.answers) == (
            5 - staleness
        )
    decoded = sum(line["num_decoded_tokens"] for line in record.steps)
    assert decoded <= sum(one.num_written for one in engines)


def test_engines_wait_in_a_synchronous_run_and_run_ahead_by_the_bound_only(tmp_path: Path) -> None:
    for staleness in (0, 1, 2):
        folder = tmp_path / str(staleness)
        with serving(folder, settings_of(staleness=staleness)) as controller:
            trainer = FakeTrainer(folder, num_steps=6)
            trainer.resume()
            engine = FakeEngine(folder, 0, capacity=64)
            engine.join()
            for _ in range(200):
                engine.turn()
            orders = engine.client.poll()
            assert orders.state == "pause"
            assert controller.state.step == staleness + 1, "iterations that were written without any training"


def test_engines_get_rollouts_by_capacity(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of(num_prompts=4, num_answers=5, max_open=64)):
        FakeTrainer(tmp_path, num_steps=1).resume()
        large, small = FakeEngine(tmp_path, 0, capacity=12), FakeEngine(tmp_path, 1, capacity=4)
        for engine in (large, small):
            engine.join()
        for engine in (large, small):
            engine.turn()  # takes the weights
        works = [engine.client.pull(engine.capacity) for engine in (large, small)]
        assert [len(work) for work in works] == [12, 4]
        again = small.client.pull(4)
        assert again == []


def test_a_pull_whose_answer_was_lost_is_repeated(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of()):
        FakeTrainer(tmp_path, num_steps=1).resume()
        engine = FakeEngine(tmp_path, 0)
        engine.join()
        engine.turn()
        first = engine.client.pull(4)
        engine.client._num_sent.clear()  # as if the answer had never come
        assert engine.client.pull(4) == first


def test_a_repeated_report_counts_once(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of()) as controller:
        FakeTrainer(tmp_path, num_steps=1).resume()
        engine = FakeEngine(tmp_path, 0)
        engine.join()
        engine.turn()
        (work,) = engine.client.pull(1)
        row = ProgressRow(id=work.id, tokens=[5, 6], log_probs=[-0.5, -0.25], version=0)
        engine.client.progress([row])
        engine.client._num_sent[work.id] = 0
        longer = ProgressRow(id=work.id, tokens=[5, 6, 7], log_probs=[-0.5, -0.25, -1.0], version=0)
        engine.client.progress([longer])
        assert controller.state.pool.opened(work.id).tokens == [5, 6, 7]
        engine.client._num_sent[work.id] = 9  # tokens before these never came: nothing can be appended
        engine.client.progress([row])
        assert controller.state.pool.opened(work.id).tokens == [5, 6, 7]


def test_a_silent_engine_loses_its_rollouts_and_its_late_messages_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of(num_prompts=1, num_answers=2), lease_s=8.0) as controller:
        FakeTrainer(tmp_path, num_steps=1).resume()
        first, second = FakeEngine(tmp_path, 0, capacity=2), FakeEngine(tmp_path, 1, capacity=2)
        first.join()
        first.turn()
        (one, other) = first.client.pull(2)
        tokens = right_tokens(one.id)[:1]
        report = [ProgressRow(id=one.id, tokens=tokens, log_probs=[log_prob_of(tokens[0])], version=0)]
        first.client.progress(report)
        controller.leases.heard(0, time.monotonic() - 60.0)  # as if it had been silent since
        deadline_s = time.monotonic() + 30
        while controller.state.engines:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        with second.client.beating(0.5):
            second.join()
            second.turn()
            taken = {work.id: work for work in second.client.pull(2)}
            assert set(taken) == {one.id, other.id}
            assert taken[one.id].prefix == tuple(tokens), "from the last progress of the dead engine"
            with pytest.raises(LeaseLostError, match="engine 0 was given up"):
                first.client.progress([ProgressRow(id=one.id, tokens=[9], log_probs=[-1.0], version=0)])
            assert controller.state.pool.opened(one.id).tokens == tokens
            first.join()
            assert first.client.pull(2) == []


def test_a_rollout_never_goes_to_an_engine_with_older_weights(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of(staleness=3, num_prompts=1, num_answers=2, token_budget=40)) as controller:
        trainer = FakeTrainer(tmp_path, num_steps=6)
        trainer.resume()
        old, new = FakeEngine(tmp_path, 0, capacity=2), FakeEngine(tmp_path, 1, capacity=64)
        old.join()
        old.turn()
        new.join()
        while not trainer.client.batch(0, wait_s=0.0):
            new.turn()
        trainer.client.done(0, 1, ["a"], "peers")
        while new.version < 1:
            new.turn()
        new.turn()
        written_new = [one.id for one in controller.state.pool.open if one.version_runs and one.versions[-1] == 1]
        assert written_new
        new.join()  # it starts again: all it held is free
        assert not {work.id for work in old.client.pull(64)} & set(written_new)


def test_the_batch_of_a_step_is_the_same_after_a_trainer_crash_and_a_controller_restart(tmp_path: Path) -> None:
    settings = settings_of(token_budget=150, max_open=12)
    trainer = FakeTrainer(tmp_path, num_steps=6, checkpoint_every=4)
    with serving(tmp_path, settings):
        trainer.resume()
        engine = FakeEngine(tmp_path, 0)
        engine.join()
        while len(trainer.batches) < 3:
            engine.turn()
            batch = trainer.client.batch(len(trainer.weights), wait_s=0.0)
            if batch is not None:
                trainer.step()
    before = [(one.step, one.version, one.groups) for one in trainer.batches]
    with serving(tmp_path, settings) as controller:
        trainer.resume()  # no checkpoint yet: from step 0
        assert trainer.weights == []
        for _ in range(3):
            trainer.step()
        assert [(one.step, one.version, one.groups) for one in trainer.batches] == before
        assert any(groups for _, _, groups in before)
        assert controller.state.num_done == 3


def test_bad_steps_and_versions_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of(token_budget=150, max_open=12)):
        trainer, engine = FakeTrainer(tmp_path, num_steps=6, checkpoint_every=2), FakeEngine(tmp_path, 0)
        trainer.resume()
        engine.join()
        while len(trainer.weights) < 2:
            engine.turn()
            if trainer.client.batch(len(trainer.weights), wait_s=0.0) is not None:
                trainer.step()
        client = trainer.client
        cases = [
            (lambda: client.resume(1), r"starts before step 1: batches are kept .* before step 2"),
            (lambda: client.batch(0), "needs the batch of step 0: batches are kept from its last checkpoint"),
            (lambda: client.batch(6), "needs the batch of step 6"),
            (lambda: client.resume(9), "starts before step 9"),
            (lambda: client.done(2, 5, [], "peers"), "step 2 makes version 3, not 5"),
            (lambda: client.done(5, 6, [], "peers"), "has done step 5"),
            (lambda: client.publish(7, [], "peers"), "offers version 7, and 2 batches"),
            (lambda: client.checkpointed(4), "a checkpoint before step 4, and 2 steps are done"),
            (lambda: engine.client.synced(2, {}, rank_versions=[1, 2]), "hold versions 1 and 2: one answer must come"),
            (lambda: engine.client.synced(5, {}), "says it has version 5, and the newest is 2"),
        ]
        for call, why in cases:
            with pytest.raises(ControllerRefusedError, match=why) as caught:
                call()
            assert caught.value.exit_code == 2
            assert "\n" not in str(caught.value)
        engine.turn()
        row = ProgressRow(id="0:0", tokens=[1], log_probs=[-1.0], version=99)
        with pytest.raises(ControllerRefusedError, match="wrote rollout 0:0 with version 99"):
            engine.client.progress([row])


def test_what_comes_over_a_connection_hurts_nobody_else(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with serving(tmp_path, settings_of(), hello_s=0.3, message_s=0.3) as controller:
        token = directory.controller_token.read_text()
        assert directory.controller_token.stat().st_mode & 0o777 == 0o600
        body = json.loads(directory.controller_address.read_text())
        hello = {"protocol": PROTOCOL, "token": token, "role": "engine", "rank": 0}
        strangers = [
            b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
            b"\x00" * 64,
            b"\xff" * 64,
            b"\x00\x00",  # half of a length
            struct.pack(">I", 100) + b'{"protocol"',  # half of a message
            struct.pack(">I", 5000) + b" " * 5000,  # too long for a first message
            struct.pack(">I", 8) + b"not json",
            struct.pack(">I", 2) + b"[]",
            struct.pack(">I", 4000) + b"[" * 4000,
            encoded({**hello, "token": "0" * 64}),
            encoded({**hello, "token": 7}),
            encoded({**hello, "protocol": "scalewright.controller/0"}),
        ]
        known = [
            struct.pack(">I", MOST_BYTES + 1),
            struct.pack(">I", 1000) + b"{",
            struct.pack(">I", 4) + b"{{{{",
        ]
        sockets = []
        for content in (*strangers, *(encoded(hello) + one for one in known)):
            peer = socket.create_connection((body["host"], body["port"]), timeout=10)
            peer.sendall(content)
            sockets.append(peer)
        slow = [socket.create_connection((body["host"], body["port"]), timeout=10) for _ in range(100)]
        time.sleep(0.6)
        before_s = time.monotonic()
        trainer, _ = run_roles(tmp_path, num_engines=2, num_steps=6)
        assert time.monotonic() - before_s < 60
        check_trained(trainer.batches)
        for peer in (*sockets, *slow):
            peer.settimeout(5)
            while peer.recv(1 << 16):
                pass  # every one of these connections was closed by the controller
            peer.close()
        assert controller.state.is_over


def test_messages_of_wrong_types_change_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of()) as controller:
        FakeTrainer(tmp_path, num_steps=1).resume()
        engine = FakeEngine(tmp_path, 0)
        engine.join()
        engine.turn()
        (work,) = engine.client.pull(1)
        row = {"id": work.id, "start": 0, "tokens": [1], "log_probs": [-1.0], "version": 0}
        bad = [
            {"call": "fly"}, {"call": ["join"]}, {"call": "join", "engine": "a", "capacity": 1, "version": 0},
            {"call": "join", "engine": 0, "capacity": 0, "version": 0}, {"call": "pull"},
            {"call": "batch", "step": 1.5},
            {"call": "progress", "rows": [{**row, "tokens": ["a"]}]},
            {"call": "progress", "rows": [{**row, "tokens": [1.5]}]},
            {"call": "progress", "rows": [{**row, "tokens": [2**31]}]},
            {"call": "progress", "rows": [{**row, "tokens": [-1]}]},
            {"call": "progress", "rows": [{**row, "log_probs": []}]},
            {"call": "progress", "rows": [{**row, "log_probs": ["x"]}]},
            {"call": "progress", "rows": [{**row, "start": -1}]},
            {"call": "progress", "rows": [{**row, "version": None}]},
            {"call": "progress", "rows": [{**row, "id": 7}]},
            {"call": "progress", "rows": 3},
            {"call": "finished", "rows": [{**row, "reason": 3}]},
            {"call": "done", "step": 0, "version": 1, "addresses": 3, "way": "peers", "seconds": {}},
        ]  # fmt: skip
        number = controller.journal.next
        for message in bad:
            call = message.pop("call")
            given = {"engine": 0, "lease": engine.client._lease, "held": [], **message}
            with pytest.raises(ControllerRefusedError):
                engine.client.request(call, **given)  # type: ignore[arg-type]
        nan = b'{"number":1,"call":"progress","engine":0,"lease":0,"held":[],"rows":[%b]}' % (
            json.dumps(row).encode().replace(b"-1.0", b"NaN")
        )
        connection = engine.client._connected()
        connection.sendall(struct.pack(">I", len(nan)) + nan)
        assert receive(connection)["kind"] == "input"
        assert controller.journal.next == number


def test_a_slow_reward_delays_batches_and_no_message(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of(staleness=1), task=FakeTask(reward_s=2.0)):
        trainer, engine = FakeTrainer(tmp_path, num_steps=6), FakeEngine(tmp_path, 0, capacity=64, stride=LONGEST)
        trainer.resume()
        engine.join()
        for _ in range(4):
            engine.turn()
        slowest_s = 0.0
        for _ in range(20):
            before_s = time.monotonic()
            engine.client.heartbeat()
            slowest_s = max(slowest_s, time.monotonic() - before_s)
        assert slowest_s < 0.8, "the reward takes 2 s"
        assert trainer.client.batch(0, wait_s=0.0) is None
        batch = None
        while batch is None:
            batch = trainer.client.batch(0)
        assert len(batch.groups) == 4


def test_heartbeats_measure_the_clock(tmp_path: Path) -> None:
    with serving(tmp_path, settings_of()) as controller:
        controller._now_s = lambda: time.time() + 1000.0
        client = ControllerClient(tmp_path, "trainer", 0)
        for _ in range(4):
            client.heartbeat()
        assert client.clock_offset_s == pytest.approx(1000.0, abs=0.05)
        client.close()


def test_a_client_waits_for_a_controller_and_gives_up_in_one_sentence(tmp_path: Path) -> None:
    client = ControllerClient(tmp_path, "trainer", 0, patience_s=0.2)
    with pytest.raises(ControllerLostError, match=r"the controller has not answered for 0\.2 s") as caught:
        client.heartbeat()
    assert caught.value.exit_code == 3
    patient = ControllerClient(tmp_path, "trainer", 0, patience_s=30)
    answers: list[float] = []
    thread = threading.Thread(target=lambda: answers.append(patient.heartbeat()))
    thread.start()
    time.sleep(0.2)
    with serving(tmp_path, settings_of()):
        thread.join(timeout=10)
    assert len(answers) == 1
    patient.close()


def test_a_batch_longer_than_a_message_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.run.hybrid.messages.pages.__kwdefaults__", {"most": 1000})
    with serving(tmp_path, settings_of()):
        trainer, engine = FakeTrainer(tmp_path, num_steps=6), FakeEngine(tmp_path, 0)
        trainer.resume()
        engine.join()
        while (batch := trainer.client.batch(0, wait_s=0.0)) is None:
            engine.turn()
        assert trainer.client.request("batch", step=0, page=0, wait_s=0.0)["num_pages"] > 1
    check_trained([batch])
    assert len(batch.groups) == 4
