"""Who writes which rollouts, what an engine does next, and when an iteration begins and ends. Decisions only.

An engine has a lease from `join` on. Each message and heartbeat renews it. An engine that is silent for longer than
`lease_s` is given up: its rollouts are free, and others go on from its last progress. If it was only slow, its next
message carries a lease that no longer counts, so nothing that it wrote meanwhile counts twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from scalewright.run.hybrid.messages import BYTES_PER_TOKEN, PAGE_BYTES, LeaseLostError
from scalewright.run.hybrid.state import ControllerState, EngineLease
from scalewright.workload.reasoning.rollout_pool import OpenRollout, RolloutId

LEASE_S = 30.0
RUNS_AHEAD = 2
"""From this bound of staleness on, engines take new weights at once, not only between iterations."""


class LeaseClock:
    """When each engine was last heard of. A restarted controller gives every engine a whole lease again."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._heard_s: dict[int, float] = {}

    def heard(self, engine: int, now_s: float) -> None:
        self._heard_s[engine] = now_s

    def expired(self, engines: Collection[int], now_s: float) -> list[int]:
        return [engine for engine in engines if now_s - self._heard_s.setdefault(engine, now_s) > self.lease_s]


def checked_lease(state: ControllerState, engine: int, lease: int) -> EngineLease:
    """The engine's lease, if it still counts."""
    own = state.engines.get(engine)
    if own is None or own.lease != lease:
        raise LeaseLostError(
            f"engine {engine} was given up or started again, and others write its rollouts: drop them, then join again"
        )
    return own


def next_operation(state: ControllerState) -> str | None:
    """Whether an iteration begins or ends now.

    In step s engines write with weights of version s - staleness or newer, so a step begins when so many are done.
    """
    if state.pool.is_running:
        return "end" if state.pool.is_over else None
    is_left = state.step < state.settings.num_steps and state.version >= 0
    return "begin" if is_left and state.num_done >= state.settings.least_version(state.step) else None


def may_write(state: ControllerState, own: EngineLease) -> bool:
    return state.pool.is_running and own.version >= state.settings.least_version(state.step)


def rollouts_for(state: ControllerState, engine: int, *, most: int, held: Collection[RolloutId]) -> list[OpenRollout]:
    """Rollouts for an engine: those that it owns and does not know of, then free ones up to its share by capacity.

    A rollout never goes to an engine with older weights than drew its last token.
    """
    own = state.engines[engine]
    if not may_write(state, own):
        return []
    known = set(held)
    opened = state.pool.open
    chosen = [one for one in opened if state.owners.get(one.id) == engine and one.id not in known]
    total = sum(lease.capacity for lease in state.engines.values())
    share = min(-(-len(opened) * own.capacity // total), own.capacity)
    num_owned = Counter(state.owners.values())[engine]
    room = min(share - num_owned, most - len(chosen))
    for one in opened if room > 0 else ():
        if one.id not in state.owners and state.last_version(one) <= own.version:
            chosen.append(one)
            room -= 1
            if not room:
                break
    return _within_a_message(chosen[:most])


def _within_a_message(chosen: list[OpenRollout]) -> list[OpenRollout]:
    total = 0
    for place, one in enumerate(chosen):
        total += BYTES_PER_TOKEN * one.num_tokens
        if place and total > PAGE_BYTES:
            return chosen[:place]
    return chosen


def orders_for(state: ControllerState, engine: int, held: Collection[RolloutId]) -> dict[str, Any]:
    """The row of `messages.Orders` for an engine that holds these rollouts."""
    own = state.engines[engine]
    cut = [rollout for rollout in held if state.owners.get(rollout) != engine]
    status = "stop" if state.is_over else "go" if may_write(state, own) else "pause"
    return {
        "state": status,
        "sync": _sync_for(state, own),
        "cut": cut,
        "step": state.step if state.pool.is_running else -1,
    }


def _sync_for(state: ControllerState, own: EngineLease) -> dict[str, Any] | None:
    """New weights between two iterations; at once where engines run ahead, or where these are too old to write with."""
    offer = state.offer
    if offer is None or offer.version <= own.version or state.is_over:
        return None
    is_due = (
        state.settings.staleness >= RUNS_AHEAD
        or not state.pool.is_running
        or own.version < max(state.pool.version, state.settings.least_version(state.step))
    )
    if not is_due:
        return None
    return {"version": offer.version, "way": offer.way, "addresses": list(offer.addresses)}
