"""The transport between nodes: the choice for a site, and the environment variables that force it.

FORCED has the variables of each transport of the catalogue that a job can choose. A site's profile lists which ones
it has.
"""

from __future__ import annotations

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.sites.types import Site, SiteTransport

NO_FAST_INTERFACES = "^ib,hsn,lo,docker"
"""In NCCL's syntax: any interface whose name does not start with one of these."""


def choose(site: Site, requested_name: str) -> tuple[SiteTransport | None, bool]:
    """The transport, and whether it is forced. `tcp` means sockets over any network of the site."""
    if requested_name == "auto":
        return (site.transports[0] if site.transports else None), False
    offered = {t.id: t for t in site.transports}
    if requested_name in offered:
        return offered[requested_name], True
    if requested_name == "tcp":
        if "tcp-slingshot" in offered:
            return offered["tcp-slingshot"], True
        return SiteTransport(id="tcp", source=site.node_local.source), True
    if requested_name not in FORCED:
        hint = f"{site.id} has {', '.join(offered)}"
        raise UnknownNameError("transport", requested_name, [*offered, "tcp"], hint=hint)
    choices = ", ".join(dict.fromkeys([*offered, "tcp"]))
    raise ConfigError(f"--transport {requested_name}: {site.name} does not have it; choose {choices}")


def forced_variables(site: Site, transport: str) -> dict[str, str]:
    """Variables of NCCL or RCCL, UCX, libfabric and Gloo that exclude every other transport."""
    settings = dict(FORCED[transport])
    interfaces = () if site.interfaces is None else site.interfaces.value
    if transport in ("ipoib", "tcp-slingshot"):
        names = interfaces or (("ib0",) if transport == "ipoib" else ("hsn0",))
        settings["NCCL_SOCKET_IFNAME"] = ",".join(names)
        settings["GLOO_SOCKET_IFNAME"] = names[0]
    return settings


_SOCKET = {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1", "UCX_TLS": "tcp,sm,self"}
FORCED: dict[str, dict[str, str]] = {
    "rdma": {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "UCX_TLS": "^tcp"},
    "rdma-host": {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "LOC", "UCX_TLS": "^tcp"},
    "ipoib": {**_SOCKET, "FI_PROVIDER": "tcp"},
    "tcp": {**_SOCKET, "FI_PROVIDER": "tcp", "NCCL_SOCKET_IFNAME": NO_FAST_INTERFACES},
    "tcp-slingshot": {**_SOCKET, "FI_PROVIDER": "tcp"},
    "ofi-plugin": {"NCCL_NET": "AWS Libfabric", "FI_PROVIDER": "cxi"},
}
"""With a name in NCCL_NET, a run without that network fails at its start. Without it, NCCL silently uses sockets."""
