"""Engines beside the trainer: what the options mean, and which are refused."""

from __future__ import annotations

import json

import pytest

from scalewright.errors import ConfigError
from scalewright.workload.reasoning.role_settings import RoleSettings, from_body, role_settings


@pytest.mark.parametrize(
    ("engines", "engine_tp", "staleness", "ranks", "mode"),
    [
        (0, "1", 0, (), "co-located"),
        (2, 1, 0, (1, 1), "sync"),
        (2, "2", 1, (2, 2), "one-step-off"),
        (3, "4,1,1", 4, (4, 1, 1), "async"),
    ],
)
def test_staleness_names_the_mode(
    engines: int, engine_tp: str | int, staleness: int, ranks: tuple[int, ...], mode: str
) -> None:
    settings, _ = role_settings(engines=engines, engine_tp=engine_tp, staleness=staleness, sync="auto")
    assert (settings.engine_ranks, settings.mode) == (ranks, mode)
    assert (settings.num_engines, settings.num_engine_ranks) == (engines, sum(ranks))


def test_the_trainers_own_engine_takes_the_largest_size() -> None:
    assert role_settings(engines=2, engine_tp="2,1", staleness=0, sync="peers")[1] == 2
    assert role_settings(engines=0, engine_tp=2, staleness=0, sync="auto")[1] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engines": -1}, "--engines -1: give 0"),
        ({"engine_tp": "0"}, "--engine-tp 0: give ranks of an engine, 1 or more"),
        ({"engine_tp": "two"}, "--engine-tp two"),
        ({"engines": 3, "engine_tp": "2,1"}, "names 2 engines, and --engines is 3"),
        ({"engines": 1, "staleness": -1}, "--staleness -1: give 0"),
        ({"staleness": 1}, "--staleness 1: the trainer's own ranks write the answers"),
        ({"sync": "file"}, "--sync file: the trainer's own ranks"),
        ({"engines": 1, "sync": "pigeon"}, "sync 'pigeon' is not known: choose auto, broadcast, peers, file"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    given = {"engines": 0, "engine_tp": "1", "staleness": 0, "sync": "auto", **options}
    with pytest.raises(ConfigError) as error:
        role_settings(**given)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_settings_survive_json() -> None:
    settings = RoleSettings(engine_ranks=(2, 1), staleness=3, sync="peers", progress_every=8)
    body = {name: getattr(settings, name) for name in ("engine_ranks", "staleness", "sync", "progress_every")}
    assert from_body(json.loads(json.dumps(body))) == settings
