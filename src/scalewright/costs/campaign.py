"""The whole run: from one step to days, checkpoints, failures, slices of a queue, energy, money and carbon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scalewright import units
from scalewright.catalog.constant_types.campaign import CampaignConstants
from scalewright.costs import failures
from scalewright.costs.breakdown import Breakdown, joules_term, seconds_term
from scalewright.errors import ConfigError

MAX_SAVE_OVER_MTTF = 5
"""A job that fails this often while it saves and restarts once makes no progress: it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What one checkpoint of this run is and costs."""

    size_bytes: float
    write_s: float
    """Until it is on disk."""
    stall_s: float
    """For which training stops."""
    read_s: float
    """To restore it."""

    @property
    def exposed_s(self) -> float:
        """Time after the stall during which the checkpoint is not yet on disk, so that a failure loses it."""
        return max(self.write_s - self.stall_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How often the job stops, and how long it takes to come back."""

    mttf_s: float
    restart_s: float
    """Without reading the checkpoint."""
    startup_s: float
    """Of a planned job, without reading the checkpoint."""


SAVE_EVERY_S = (
    *(minutes * units.MINUTE_S for minutes in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(hours * units.HOUR_S for hours in (1, 2, 3, 4, 6, 8, 12, 24)),
)
"""Intervals between checkpoints that people set."""
SAVE_COST_FRACS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Costs of checkpoints that advice is given for: the least of them with a choice of intervals."""
LEAST_RANGE = 12.0
"""Longest over shortest interval of an advice, where the run is long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRange:
    """Intervals between checkpoints that all cost little."""

    shortest_s: float
    longest_s: float
    every_s: float
    """The one of them that costs least, in whole steps."""
    most_frac: float
    """What stalls and lost work cost at most, over the work."""


def save_cost_frac(*, every_s: float, saving: Saving, interruptions: Interruptions) -> float:
    """Stalls and lost work over the work, if it is saved every `every_s`.

    Equation  Daly's wall time for one interval, less the work and the restarts, plus the write beside training / M
    Source    daly2006 (FGCS 22), equation 20
    Assumes   a failure loses the work since the last checkpoint on disk
    Checked   tests/costs/test_campaign.py: half an interval a failure, one stall an interval
    """
    c, w = saving, interruptions
    again_s = w.restart_s + c.read_s + c.exposed_s
    wall = failures.wall_time(
        work_s=every_s, interval_s=every_s, checkpoint_s=c.stall_s, restart_s=again_s, mttf_s=w.mttf_s
    )
    return (wall.saving_s + wall.lost_s) / every_s + c.exposed_s / w.mttf_s


def save_range(
    *, saving: Saving, interruptions: Interruptions, step_s: float, work_s: float, max_writing_frac: float
) -> SaveRange:
    """Intervals between checkpoints to choose from, and what they cost at most.

    Equation  all t of a list with cost(t) <= f, for the least f of a list with max t / min t >= 12;  t >= w / f_w or
              Daly's interval of a write that is waited for; counted with Daly's interval, kept within them
    Source    daly2006 (FGCS 22), equation 20: the cost is flat around its least
    Assumes   a job that writes beside training keeps a shared file system busy for at most f_w of the
              time, or as long as one that waits for each write would
    Checked   tests/costs/test_campaign.py: none outside the range is cheaper than its limit; never before a write ends
    """
    waited_s = failures.daly_interval_s(checkpoint_s=saving.write_s, mttf_s=interruptions.mttf_s)
    least_s = max(saving.write_s, min(saving.exposed_s / max_writing_frac, waited_s), step_s)
    choices = [t for t in SAVE_EVERY_S if least_s <= t <= work_s] or [max(least_s, min(work_s, SAVE_EVERY_S[0]))]
    costs = {t: save_cost_frac(every_s=t, saving=saving, interruptions=interruptions) for t in choices}
    widest = min(LEAST_RANGE, choices[-1] / choices[0])
    for most_frac in (*SAVE_COST_FRACS, max(costs.values())):
        cheap = [t for t, cost in costs.items() if cost <= most_frac]
        if cheap and cheap[-1] / cheap[0] >= widest:
            break
    best_s = failures.daly_interval_s(checkpoint_s=saving.stall_s, mttf_s=interruptions.mttf_s)
    every_s = max(round(min(max(best_s, cheap[0]), cheap[-1]) / step_s), 1) * step_s
    return SaveRange(shortest_s=cheap[0], longest_s=cheap[-1], every_s=every_s, most_frac=most_frac)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What a campaign costs beside planned steps, failures and checkpoints."""

    shares_frac: Mapping[str, float]
    """Over the time of the steps, by name."""
    factor_frac: float
    """All hours over those that have a name."""
    factor_low_frac: float
    factor_high_frac: float


NO_CAMPAIGN = Campaign(shares_frac={}, factor_frac=1.0, factor_low_frac=1.0, factor_high_frac=1.0)


def campaign_of(*, steps_device_s: float, is_searched: bool, constants: CampaignConstants) -> Campaign:
    """Shares and factor for a run whose planned steps take `steps_device_s` of device time.

    Equation  share x v, factor^v;  v = 1 - e^(-D/D0), D device time of the steps, D0 campaign_device_time;
              the layout gap only for the best of a search
    Source    published/campaign_runs.toml, fitted by benchmarks/fit_campaign.py
    Assumes   a job of a few GPU-hours runs as its steps predict, a campaign of thousands meets what published ones
              met; the same work on more devices meets no less of it
    Checked   validate --kind campaign: published runs with their family left out; tests/costs/test_campaign.py: smooth,
              and the same for the same device time
    """
    c, v = constants, -math.expm1(-steps_device_s / constants.campaign_device_time.value)
    shares = {
        "layout_gap": c.layout_gap_share.value if is_searched else 0.0,
        "slow_steps": c.slow_step_share.value,
        "evaluation": c.evaluation_share.value,
        "ramp_up": c.ramp_up_share.value,
        "rollbacks": c.rollback_share.value,
    }
    return Campaign(
        shares_frac={name: share * v for name, share in shares.items()},
        factor_frac=c.campaign_factor.value**v,
        factor_low_frac=c.campaign_factor_low.value**v,
        factor_high_frac=c.campaign_factor_high.value**v,
    )


def run_time(
    *, num_steps: float, step_s: float, every_s: float, saving: Saving, interruptions: Interruptions, num_jobs: int,
    num_epochs: float = 0.0, epoch_fixed_s: float = 0.0, campaign: Campaign = NO_CAMPAIGN,
) -> Breakdown:  # fmt: skip
    """Expected time on the machine from the first job's start to the last one's end.

    Equation  T = r [M e^(R/M) (e^((t + C)/M) - 1) W / t + jobs x (start + restore + last checkpoint)];
              W = steps (1 + shares) + epochs
    Source    daly2006 (FGCS 22), equation 20; shares and r from published runs, `campaign_of`
    Assumes   a failure loses the work since the last checkpoint on disk; waiting in the queue is not counted
    Checked   tests/costs/test_campaign.py: parts add up; a run without failures is its steps and stalls
    """
    c, w, steps_s = saving, interruptions, num_steps * step_s
    extra = tuple(
        seconds_term(name, share * steps_s, "campaign.campaign_of", share_frac=share)
        for name, share in campaign.shares_frac.items()
    )
    work = steps_s + num_epochs * epoch_fixed_s + sum(float(term.total) for term in extra)
    again_s = w.restart_s + c.read_s + c.exposed_s
    if again_s + c.stall_s > MAX_SAVE_OVER_MTTF * w.mttf_s:
        raise ConfigError(
            f"a failure every {w.mttf_s:,.0f} s leaves no time to save ({c.stall_s:,.0f} s) and restart "
            f"({again_s:,.0f} s): use fewer devices or faster storage"
        )
    wall = failures.wall_time(
        work_s=work, interval_s=min(every_s, work), checkpoint_s=c.stall_s, restart_s=again_s, mttf_s=w.mttf_s
    )
    undone_s = wall.restart_s * c.exposed_s / again_s if again_s else 0.0

    named = (
        seconds_term("steps", steps_s, "campaign.run_time", num_steps=num_steps, step_s=step_s),
        seconds_term("epoch_ends", num_epochs * epoch_fixed_s, "storage.epoch_time_s", num_epochs=num_epochs),
        *extra,
        seconds_term("checkpoint_stalls", wall.saving_s, "storage.stall_time_s", every_s=every_s, stall_s=c.stall_s),
        seconds_term("lost_work", wall.lost_s + undone_s, "failures.wall_time", num_failures=wall.num_failures),
        seconds_term("restarts", wall.restart_s - undone_s, "failures.wall_time", restart_s=w.restart_s + c.read_s),
        seconds_term("job_starts", num_jobs * (w.startup_s + c.read_s), "campaign.run_time", num_jobs=num_jobs),
        seconds_term("last_checkpoints", num_jobs * c.write_s, "storage.write_time_s", num_jobs=num_jobs),
    )
    named_s = sum(float(term.total) for term in named)
    rest = seconds_term(
        "unexplained", named_s * (campaign.factor_frac - 1.0), "campaign.campaign_of", factor_frac=campaign.factor_frac
    )
    parts = (*named, rest) if campaign.factor_frac != 1.0 else named
    return Breakdown(name="whole_run", unit="s", formula="campaign.run_time", parts=parts)


def num_failures(*, time_s: float, mttf_s: float) -> float:
    """Interruptions to expect.

    Equation  n = T / M
    Source    kokolis2024 (arXiv:2410.21680), section IV
    Assumes   constant hazard
    Checked   tests/costs/test_campaign.py: Llama 3's 419 in 54 days
    """
    return time_s / mttf_s


def slice_parts(*, limit_s: float, saving: Saving, interruptions: Interruptions, margin_frac: float) -> Breakdown:
    """What one job of a queue with a time limit is made of.

    Equation  L = start + restore + work + last checkpoint + margin
    Source    the guides of the catalogued sites: request what is expected plus 10 to 20 %
    Assumes   every job restores; the last checkpoint is written before the limit, so nothing is lost between jobs
    Checked   tests/costs/test_campaign.py: parts add up to the limit; a limit too short is refused
    """
    start, margin = interruptions.startup_s, limit_s * margin_frac / (1.0 + margin_frac)
    work = limit_s - margin - start - saving.read_s - saving.write_s
    if work <= 0.0:
        raise ConfigError(
            f"a limit of {limit_s:,.0f} s leaves no time to work: start, restore, last checkpoint and margin take "
            f"{limit_s - work:,.0f} s; ask for a longer queue or faster storage"
        )
    parts = {
        "start_up": start,
        "restore": saving.read_s,
        "work": work,
        "last_checkpoint": saving.write_s,
        "margin": margin,
    }
    terms = tuple(Breakdown(name=n, unit="s", value=v, formula="campaign.slice_parts") for n, v in parts.items())
    return Breakdown(name="slice", unit="s", formula="campaign.slice_parts", parts=terms)


def walltime_request_s(*, expected_s: float, margin_frac: float) -> float:
    """Time to ask a queue for.

    Equation  ceil(t (1 + m)) to a whole minute
    Source    the guides of the catalogued sites: steps x time per step plus 10 to 20 %
    Assumes   the margin covers what the prediction does not
    Checked   tests/golden/test_budget.py: 1000 steps of 2.7 s ask for 50 min
    """
    minutes = expected_s * (1.0 + margin_frac) / units.MINUTE_S
    return math.ceil(round(minutes, 6)) * units.MINUTE_S


def memory_request_bytes(*, peak_bytes: float, margin_frac: float) -> float:
    """Memory to ask a queue for.

    Equation  M (1 + m)
    Source    the guides of the catalogued sites: peak plus 10 to 20 %
    Assumes   the margin covers what the prediction does not
    Checked   tests/golden/test_budget.py: between 1.1 and 1.2 times the peak
    """
    return peak_bytes * (1.0 + margin_frac)


def device_time_s(*, num_nodes: float, num_devices_per_node: float, time_s: float) -> float:
    """What an allocation is charged: device-seconds, printed as GPU-hours.

    Equation  nodes x devices x time
    Source    the accounting of the catalogued sites: whole nodes are charged
    Assumes   nodes are not shared
    Checked   tests/golden/test_budget.py: 4 nodes of 8 for 6 h are 192 GPU-hours
    """
    return num_nodes * num_devices_per_node * time_s


WAITING = ("epoch_ends", "checkpoint_stalls", "restarts", "job_starts", "last_checkpoints")
"""Terms of `run_time` while which no step runs."""


def run_energy(
    *, time: Breakdown, num_devices: float, busy_w: float, waiting_w: float, overhead_w: float, pue_frac: float
) -> Breakdown:  # fmt: skip
    """Joules of the whole run.

    Equation  E = [n (P_busy T_busy + P_idle T_rest) + P_node T] PUE,  busy while steps run, for the first time or again
              or beside the plan
    Source    patterson2021 (arXiv:2104.10350), section 2
    Assumes   devices draw idle power while state is saved, restored or jobs start; all else draws that of steps
    Checked   tests/costs/test_campaign.py: equals the energy of its steps when there is nothing else
    """
    total_s = float(time.total)
    busy_s = total_s - sum(float(time.part(name).total) for name in WAITING)
    devices = num_devices * (busy_w * busy_s + waiting_w * (total_s - busy_s))
    nodes = overhead_w * total_s

    return Breakdown(
        name="energy",
        unit="j",
        formula="campaign.run_energy",
        parts=(
            joules_term("steps", num_devices * busy_w * busy_s, "energy.board_power_w", power_w=busy_w),
            joules_term(
                "waiting", num_devices * waiting_w * (total_s - busy_s), "energy.board_power_w", power_w=waiting_w
            ),
            joules_term("nodes", nodes, "energy.node_overhead_w", power_w=overhead_w),
            joules_term("facility", (devices + nodes) * (pue_frac - 1.0), "energy.energy_use", pue_frac=pue_frac),
        ),
    )
