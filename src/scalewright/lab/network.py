"""Network namespaces behind one bridge, with links shaped to a rate and a latency.

    with ShapedNetwork(("a", "b"), rate_bytes_per_s=25e6) as network:
        subprocess.run(network.command("a", ["python", "server.py", network.address("a")]))

Every name gets a namespace with one interface `eth0`, connected to a bridge of the host (`network.gateway`). Both ends
of a link are shaped, so the rate applies in each direction.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.lab.spec import search_path

FIRST_INDEX, LAST_INDEX = 100, 250
COMMAND_TIMEOUT_S = 30.0
# A bucket smaller than the largest packet that the kernel passes on would drop that packet.
MIN_BURST_BYTES = 64 * units.KIB
BURST_S = 2e-3
QUEUE_S = 50e-3
MTU_BYTES = 1500
ETHERNET_BYTES, IPV4_BYTES, TCP_BYTES, TIMESTAMPS_BYTES = 14, 20, 20, 12
"""Headers of a segment. tbf counts the Ethernet header too. Linux sends timestamps (RFC 7323) by default."""


def payload_frac(mtu_bytes: int = MTU_BYTES) -> float:
    """Share of a shaped rate that is TCP payload: a full segment without its headers.

    Equation  (MTU - 20 - 20 - 12) / (MTU + 14)
    Source    RFC 791, RFC 9293, RFC 7323; tc-tbf(8) counts Ethernet frames without preamble and checksum
    Assumes   full segments, as in long messages; the kernel passes several on as one, but qdisc_pkt_len_init counts
              the headers of each. Acknowledgements use the other direction: if that is full of data too, one of 66
              bytes for every two segments takes up to 2 % more
    Checked   tests/netns/test_collectives_netns.py: rates of collectives over links shaped to three rates
    """
    headers = IPV4_BYTES + TCP_BYTES + TIMESTAMPS_BYTES
    return (mtu_bytes - headers) / (mtu_bytes + ETHERNET_BYTES)


class ShapedNetwork:
    """Namespaces and their links. `up` creates them, `down` removes exactly these."""

    def __init__(
        self,
        names: Sequence[str],
        rate_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        *,
        index: int = 0,
    ) -> None:
        """`latency_s` is one way, from name to name. `index` is that of an existing network: 10.INDEX.0.0/16."""
        if len(set(names)) != len(names) or not 1 <= len(names) <= 250:
            raise ConfigError(f"{len(names)} names for namespaces: give 1 to 250 different names")
        if rate_bytes_per_s is not None and rate_bytes_per_s < 1000:
            raise ConfigError(f"a link cannot be shaped to {rate_bytes_per_s:g} bytes/s: choose 1 kB/s or more")
        self.names = tuple(names)
        self.rate_bytes_per_s = rate_bytes_per_s
        self.latency_s = latency_s
        self.index = index

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def bridge(self) -> str:
        return f"swlab{self.index}"

    @property
    def gateway(self) -> str:
        """The host's address in the network."""
        return f"10.{self.index}.0.1"

    def address(self, name: str) -> str:
        return f"10.{self.index}.1.{self.names.index(name) + 1}"

    def namespace(self, name: str) -> str:
        return f"{self.bridge}-{name}"

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` inside the namespace of `name`."""
        return ["ip", "netns", "exec", self.namespace(name), *argv]

    def up(self, on_claim: Callable[[int], None] = lambda _: None) -> None:
        """Create the network. `on_claim` gets the index as soon as it is reserved, before anything else can fail."""
        missing = [program for program in ("ip", "tc") if shutil.which(program, path=search_path()) is None]
        if missing:
            raise EnvironmentFailedError(f"{' and '.join(missing)} not installed: apt-get install iproute2")
        self._claim()
        try:
            on_claim(self.index)
            _ip("addr", "add", f"{self.gateway}/16", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for number, name in enumerate(self.names, start=1):
                self._add(number, name)
                self.shape(name, self.rate_bytes_per_s, self.latency_s)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Remove the namespaces, their links and the bridge. Parts that are already gone are ignored."""
        if not self.index:
            return
        for name in self.names:
            _run("ip", "netns", "del", self.namespace(name))
        for number in range(1, len(self.names) + 1):
            _run("ip", "link", "del", self._host_end(number))
        _run("ip", "link", "del", self.bridge)

    def shape(self, name: str, rate_bytes_per_s: float | None, latency_s: float = 0.0) -> None:
        """Change rate and latency of the link of `name`, also while it is in use."""
        host_end = self._host_end(self.names.index(name) + 1)
        no_prefix: list[str] = []
        for prefix, device in ((no_prefix, host_end), (self.command(name, []), "eth0")):
            _run(*prefix, "tc", "qdisc", "del", "dev", device, "root")
            parent = ["root"]
            if latency_s:
                # A packet passes two shaped ends from name to name, so each end delays by half.
                _delay(prefix, device, latency_s / 2, rate_bytes_per_s)
                parent = ["parent", "1:1"]
            if rate_bytes_per_s is not None:
                burst_bytes = max(MIN_BURST_BYTES, rate_bytes_per_s * BURST_S)
                limit_bytes = burst_bytes + rate_bytes_per_s * QUEUE_S
                bucket = ["rate", f"{rate_bytes_per_s * 8:.0f}bit", "burst", f"{burst_bytes:.0f}b"]
                _must(
                    *prefix,
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    *parent,
                    "tbf",
                    *bucket,
                    "limit",
                    f"{limit_bytes:.0f}b",
                )

    def _claim(self) -> None:
        """Reserve an index by creating its bridge. If two processes try at once, the kernel lets one succeed."""
        routes = _must("ip", "-4", "route", "show", "table", "all")
        for index in range(FIRST_INDEX, LAST_INDEX):
            if f"10.{index}." in routes:
                continue
            done = _run("ip", "link", "add", f"swlab{index}", "type", "bridge")
            if done.returncode == 0:
                self.index = index
                return
            if "exists" not in done.stderr:
                why = done.stderr.strip() or "ip link add failed"
                raise EnvironmentFailedError(
                    f"a bridge cannot be created here: {why}; shaped networks need root and namespaces"
                )
        raise EnvironmentFailedError(f"all networks from 10.{FIRST_INDEX} to 10.{LAST_INDEX - 1} are in use: free one")

    def _add(self, number: int, name: str) -> None:
        namespace, host_end = self.namespace(name), self._host_end(number)
        _ip("netns", "add", namespace)
        _ip("link", "add", host_end, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", host_end, "master", self.bridge, "up")
        _ip("-n", namespace, "addr", "add", f"{self.address(name)}/16", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", namespace, "link", "set", "lo", "up")

    def _host_end(self, number: int) -> str:
        return f"{self.bridge}v{number}"


def _delay(prefix: Sequence[str], device: str, latency_s: float, rate_bytes_per_s: float | None) -> None:
    in_flight = int((rate_bytes_per_s or 1.25e9) * latency_s / MTU_BYTES)
    limit = ["limit", str(1000 + 2 * in_flight)]
    done = _run(
        *prefix, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "netem",
        "delay", f"{latency_s / units.MICRO:.0f}us", *limit,
    )  # fmt: skip
    if done.returncode:
        why = done.stderr.strip() or "tc failed"
        raise EnvironmentFailedError(
            f"links cannot be delayed here: {why}; load the kernel module sch_netem, or leave the latency at 0"
        )


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={"PATH": search_path()}, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )


def _must(*argv: str) -> str:
    done = _run(*argv)
    if done.returncode:
        raise EnvironmentFailedError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _ip(*argv: str) -> None:
    _must("ip", *argv)
