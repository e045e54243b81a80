"""Constants of RL steps; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Fraction, Id, Seconds, Strict


class RlConstants(Strict):
    """What an RL framework adds to generation and training, and the interval of its steps."""

    answer_spread: Fraction
    """Standard deviation over mean of answers whose longest is known, before it cuts them off: at least."""
    answers_at_limit: Fraction
    """Share of the answers that are as long as the longest: at least."""
    rl_move_share: Fraction
    """Rate at which one device's trainer state goes to its host and back, over that of the link between them."""
    rl_engine_step_time: Seconds
    """What an iteration of the generator takes more inside an RL framework than in serving alone."""
    rl_hosts_step_time: Seconds
    """What an iteration takes beyond that where the devices of one copy belong to several hosts."""
    rl_expert_time: Seconds
    """Forward pass of one expert of a layer beyond its products: RL frameworks run a rank's experts one by one."""
    rl_training_factor: Fraction
    """Time of scoring and updates over that of pretraining with the same tokens and layout."""
    rl_tensor_time: Seconds
    """What a weight sync through one rank takes for each tensor beside its message: name, shape, shards."""
    rl_controller_time: Seconds
    """What a step takes beside its parts: samples collected, advantages, workers woken and put to sleep."""
    rl_interval_low: Fraction
    """Lower end of the 90 % interval of an RL step."""
    rl_interval_high: Fraction
    rl_asynchronous_power: Fraction
    """Power of both ends for asynchronous steps, which published ones show to be predicted worse."""
    rl_seen_accelerators: tuple[Id, ...]
    """Devices of the published steps behind the interval; elsewhere it is wider."""
    rl_seen_precisions: tuple[str, ...]
