"""Nominal values of catalogued systems, and requests on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, DocumentError
from scalewright.launch.preflight.request import with_nominal
from scalewright.records.documents import document, write_document
from scalewright.records.preflight import REQUEST_KIND, PreflightRequest, read_request

CATALOG = Catalog((packaged_data(),))


def test_lumi_has_four_ports_of_200_gbit() -> None:
    request = with_nominal(PreflightRequest(), CATALOG, system="lumi", num_nodes=4, ranks_per_node=8)
    assert (request.nic_bytes_per_s, request.num_nics) == (25e9, 4)
    assert request.node_s is not None
    assert request.pair_s is not None
    assert request.world_s is not None
    assert 0 < request.node_s < request.pair_s <= request.world_s < 1.0


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="one rank per device"):
        with_nominal(PreflightRequest(), CATALOG, system="lumi", num_nodes=1, ranks_per_node=9)


def test_a_request_survives_the_disk(tmp_path: Path) -> None:
    request = PreflightRequest(num_spares=2, folders=("/a", "/b"), nic_bytes_per_s=25e9)
    write_document(tmp_path / "r.json", request.as_document())
    assert read_request(tmp_path / "r.json") == request
    assert read_request(tmp_path / "none.json") == PreflightRequest()
    write_document(tmp_path / "r.json", document(REQUEST_KIND, {"speed": 1}))
    with pytest.raises(DocumentError, match="speed"):
        read_request(tmp_path / "r.json")
