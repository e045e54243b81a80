"""Energy, money and carbon of a predicted stage."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Price
from scalewright.costs import energy
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.machine import Machine
from scalewright.sites.billing import billing_of
from scalewright.workload.precision import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Energy, money and carbon of a stage."""

    energy: Breakdown
    money: Breakdown | None
    """Rent of the devices; None where no price is known."""
    carbon: Breakdown | None
    """Of the electricity; None where no grid is known."""
    board_w: float
    """Mean power of one device."""
    energy_j_per_token: float
    """Per image in vision."""
    num_tokens_per_j: float

    @property
    def cost_usd(self) -> float | None:
        return None if self.money is None else float(self.money.total)

    @property
    def carbon_kgco2e(self) -> float | None:
        return None if self.carbon is None else float(self.carbon.total)


def footprint(
    *, machine: Machine, recipe: Recipe, facility: energy.Facility, time_s: float, num_gpus: int, num_tokens: float,
    hardware_flop: float, memory_frac: float = 0.0,
) -> Footprint:  # fmt: skip
    """What `time_s` on `num_gpus` devices costs when they do `hardware_flop` of work in all."""
    constants, tdp = machine.constants, machine.accelerator.tdp.value
    activity = energy.product_activity_frac(
        achieved_flop_per_s=hardware_flop / time_s / num_gpus,
        best_flop_per_s=machine.matmul_flop_per_s(recipe.matmul),
    )
    board = energy.board_power_w(tdp_w=tdp, activity_frac=activity, memory_frac=memory_frac, constants=constants)
    overhead = energy.node_overhead_w(tdp_w=tdp, num_devices=num_gpus, constants=constants)
    used = energy.energy_use(
        time_s=time_s, num_devices=num_gpus, device_w=board, overhead_w=overhead, pue_frac=facility.pue_frac
    )
    joules = float(used.total)
    return Footprint(
        energy=used,
        money=_money(facility, time_s=time_s, num_gpus=num_gpus),
        carbon=_carbon(facility, energy_j=joules),
        board_w=board,
        energy_j_per_token=energy.energy_j_per_token(energy_j=joules, num_tokens=num_tokens),
        num_tokens_per_j=energy.num_tokens_per_j(energy_j=joules, num_tokens=num_tokens),
    )


def _money(facility: energy.Facility, *, time_s: float, num_gpus: int) -> Breakdown | None:
    price = facility.usd_per_s_per_gpu
    if price is None:
        return None
    return Breakdown(
        name="rent", unit="usd", formula="energy.rental_usd",
        value=energy.rental_usd(time_s=time_s, num_devices=num_gpus, usd_per_s_per_gpu=price),
        inputs={"num_devices": num_gpus, "usd_per_s_per_gpu": price},
    )  # fmt: skip


def _carbon(facility: energy.Facility, *, energy_j: float) -> Breakdown | None:
    intensity = facility.kgco2e_per_j
    if intensity is None:
        return None
    return Breakdown(
        name="electricity", unit="kgco2e", formula="energy.carbon_kgco2e",
        value=energy.carbon_kgco2e(energy_j=energy_j, kgco2e_per_j=intensity), inputs={"kgco2e_per_j": intensity},
    )  # fmt: skip


def facility_of(catalog: Catalog, system_name: str, accelerator_id: str) -> energy.Facility:
    """Building, grid and price around a system, with notes on what is missing."""
    system = catalog.system(system_name)
    prices, notes = catalog.prices(accelerator_id, system.id), []
    billing = billing_of(system.id)
    if system.pue is None:
        notes.append("PUE not published: energy of the machine only, not of its building")
    if system.grid is None:
        notes.append("no grid: carbon left out")
    broken = catalog.broken_prices()
    own = next((problem for problem in broken if f"/{system.id}.toml: " in problem), "")
    words = price_words(prices[0]) if prices else no_price_words(accelerator_id, system.id, own=own)
    notes.append(f"money at {words}" if prices else f"{words}; money left out")
    notes += [f"price left out: {problem}" for problem in broken if prices or problem != own]
    rate = prices[0].exchange_rate if prices else None
    return energy.Facility(
        pue_frac=1.0 if system.pue is None else system.pue.value,
        kgco2e_per_j=None if system.grid is None else catalog.grid(system.grid).carbon_intensity.value,
        usd_per_s_per_gpu=prices[0].usd_per_s if prices else None,
        usd_per_eur=(rate or catalog.constants().exchange_rate).value,
        price_words=words,
        billed_unit="" if billing is None else billing.unit,
        billed_note="" if billing is None else billing.note,
        billed_per_node_s=None if billing is None else billing.per_node_hour / units.HOUR_S,
        notes=tuple(notes),
    )


def price_words(price: Price) -> str:
    """A price with its basis and date."""
    return f"{price.per_accelerator} a device ({price.basis}, {price.valid_on.isoformat()})"


def no_price_words(accelerator_id: str, system_id: str, *, own: str = "") -> str:
    """How to give the price that is missing; `own`: what is wrong with the file that has the system's name."""
    advice = f"give one with scalewright catalog new price {system_id}"
    return f"no price of {accelerator_id} on {system_id}: {own or advice}"
