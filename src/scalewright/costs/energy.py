"""Energy, money and carbon: board power by what the board does, the node around it, the building around that."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.types import Constants
from scalewright.costs.breakdown import Breakdown, joules_term


@dataclass(frozen=True, slots=True, kw_only=True)
class Facility:
    """What surrounds the devices: the building, the grid and the bill."""

    pue_frac: float
    """Facility energy over IT energy, 1 or more."""
    kgco2e_per_j: float | None
    """None: no grid is known, so there is no carbon figure."""
    usd_per_s_per_gpu: float | None
    """None: no price is known, so there is no money figure."""
    usd_per_eur: float | None = None
    """None: no exchange rate is known, so there is no figure in euros."""
    price_words: str = ""
    """The price and its date, or how to give one."""
    billed_unit: str = ""
    """What the site bills in; empty: its profile does not say."""
    billed_note: str = ""
    """What one unit is."""
    billed_per_node_s: float | None = None
    """Units for one node and second."""
    notes: tuple[str, ...] = ()
    """What a reader must know of these figures: which are missing, what the price is."""


def product_activity_frac(*, achieved_flop_per_s: float, best_flop_per_s: float) -> float:
    """How hard the matrix units work, 1 being large products one after another.

    Equation  a = achieved / best rate, never above 1
    Source    benchmarks/results/h200_decode_power.jsonl: power follows the share of time products run
    Assumes   what is achieved counts recomputed work: a model's HFU x peak
    Checked   tests/costs/test_energy.py: the H200's five duty cycles
    """
    return min(achieved_flop_per_s / best_flop_per_s, 1.0)


def board_power_w(*, tdp_w: float, activity_frac: float, memory_frac: float, constants: Constants) -> float:
    """Mean power of one accelerator board.

    Equation  P = TDP min(1, i + d a + m b),  a share of the best product rate, b share of datasheet bandwidth
    Source    benchmarks/results/h200_decode_power.jsonl, one H200 of 700 W
    Assumes   the shares of one H200 hold for other boards; a device that waits for the network draws idle power;
              the driver holds the board at its rating
    Checked   tests/costs/test_energy.py: the H200 within 7 %, and the stated means of BLOOM and GPT-3
    """
    c = constants
    dynamic = c.dynamic_power_share.value * activity_frac + c.memory_power_share.value * memory_frac
    return tdp_w * min(1.0, c.idle_power_share.value + dynamic)


def node_overhead_w(*, tdp_w: float, num_devices: float, constants: Constants) -> float:
    """Hosts, NICs and fans around the boards.

    Equation  P = n s TDP
    Source    luccioni2022 (arXiv:2211.02001), section 4: idle consumption of BLOOM's nodes
    Assumes   it does not depend on load and grows with the rating of the boards
    Checked   tests/costs/test_energy.py: BLOOM's idle carbon
    """
    return num_devices * constants.node_power_share.value * tdp_w


def energy_use(*, time_s: float, num_devices: float, device_w: float, overhead_w: float, pue_frac: float) -> Breakdown:
    """Joules of a step or of a whole run.

    Equation  E = t (n P + P_node) PUE
    Source    patterson2021 (arXiv:2104.10350), section 2
    Assumes   mean powers over the time; storage and the shared network are part of the facility's overhead
    Checked   tests/costs/test_energy.py: BLOOM 433 MWh and GPT-3 1287 MWh from their stated inputs
    """
    devices, nodes = time_s * num_devices * device_w, time_s * overhead_w

    return Breakdown(
        name="energy",
        unit="j",
        formula="energy.energy_use",
        parts=(
            joules_term("devices", devices, "energy.board_power_w", power_w=device_w, num_devices=num_devices),
            joules_term("nodes", nodes, "energy.node_overhead_w", power_w=overhead_w),
            joules_term("facility", (devices + nodes) * (pue_frac - 1.0), "energy.energy_use", pue_frac=pue_frac),
        ),
    )


def energy_j_per_token(*, energy_j: float, num_tokens: float) -> float:
    """Energy of one token.

    Equation  e = E / T
    Source    patterson2021 (arXiv:2104.10350), section 2, per unit of work
    Assumes   all energy of the stage is charged to the tokens it trains on or generates
    Checked   tests/costs/test_energy.py: the inverse of tokens per joule
    """
    return energy_j / num_tokens


def num_tokens_per_j(*, energy_j: float, num_tokens: float) -> float:
    """Tokens that one joule pays for.

    Equation  T / E
    Source    patterson2021 (arXiv:2104.10350), section 2, per unit of energy
    Assumes   as `energy_j_per_token`
    Checked   tests/costs/test_energy.py: the inverse of joules per token
    """
    return num_tokens / energy_j


def rental_usd(*, time_s: float, num_devices: float, usd_per_s_per_gpu: float) -> float:
    """Money for the devices' time.

    Equation  M = t n p
    Source    DeepSeek-V3 Technical Report (arXiv:2412.19437), Table 1: 2.788 M GPU-hours at 2 USD
    Assumes   a price per device and time that holds energy, staff and idle nodes
    Checked   tests/costs/test_energy.py: 5.576 M USD
    """
    return time_s * num_devices * usd_per_s_per_gpu


def billed_units(*, time_s: float, num_nodes: float, billed_per_node_s: float) -> float:
    """What a site takes from an allocation, in its own unit.

    Equation  B = t n u
    Source    the accounting of the catalogued sites, [billing] of their profiles
    Assumes   whole nodes are charged from start to end, as in `campaign.device_time_s`
    Checked   tests/planner/test_whole_run.py: 10 nodes of LUMI for 6 h are 240 GPU-hours of cards
    """
    return time_s * num_nodes * billed_per_node_s


def carbon_kgco2e(*, energy_j: float, kgco2e_per_j: float) -> float:
    """Carbon of the electricity.

    Equation  C = E g
    Source    patterson2021 (arXiv:2104.10350), section 2
    Assumes   the grid's mean intensity; no embodied carbon, no offsets
    Checked   tests/costs/test_energy.py: BLOOM 24.7 t and GPT-3 552 t
    """
    return energy_j * kgco2e_per_j
