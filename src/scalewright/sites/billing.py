"""How a system is billed: the unit of the site whose profile names it."""

from __future__ import annotations

from pathlib import Path

from scalewright.errors import DocumentError
from scalewright.sites.loader import load_site, site_files
from scalewright.sites.types import Billing


def billing_of(system: str, extra: Path | None = None) -> Billing | None:
    """The billing of the first profile for a catalogued system; None where none says.

    A broken profile is passed over: it must not break a plan.
    """
    for path in site_files(extra).values():
        try:
            site = load_site(path)
        except DocumentError:
            continue
        if site.system == system and site.billing is not None:
            return site.billing
    return None
