"""How ranks reach each other across nodes, and the variables that force one way.

Each transport of the catalogue that a job can choose has its settings here; a site says which of them it has.
"""

from __future__ import annotations

from scalewright.errors import ConfigError, UnknownNameError
from scalewright.sites.types import Site, SiteTransport

SOCKETS = ("ipoib", "tcp", "tcp-slingshot")
NO_FAST_INTERFACES = "^ib,hsn,lo,docker"
"""NCCL's way to say: any interface whose name does not start so."""


def choose(site: Site, wanted: str) -> tuple[SiteTransport | None, bool]:
    """The transport, and whether it is forced. `tcp` means sockets over whatever the site has."""
    if wanted == "auto":
        return (site.transports[0] if site.transports else None), False
    offered = {t.id: t for t in site.transports}
    if wanted in offered:
        return offered[wanted], True
    if wanted == "tcp":
        if "tcp-slingshot" in offered:
            return offered["tcp-slingshot"], True
        return SiteTransport(id="tcp", source=site.node_local.source), True
    if wanted not in FORCED:
        raise UnknownNameError("transport", wanted, [*offered, "tcp"], hint=f"{site.id} has {', '.join(offered)}")
    raise ConfigError(
        f"--transport {wanted} is not one of {site.name}'s: choose {', '.join(dict.fromkeys([*offered, 'tcp']))}"
    )


def forced_variables(site: Site, transport: str) -> dict[str, str]:
    """Variables of NCCL or RCCL, UCX, libfabric and Gloo that leave no other way."""
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
"""With the plugin's or InfiniBand's name in NCCL_NET a run fails at start where it would silently go over sockets."""
