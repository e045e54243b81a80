"""`scalewright doctor` finds out whether it may make network namespaces, and survives when it may not."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Cli

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

# Root without CAP_SYS_ADMIN instead of another user, who might not be able to read the checkout.
WITHOUT_SYS_ADMIN = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


def namespace_state(stdout: str) -> str:
    checks = {check["name"]: check for check in json.loads(stdout)["checks"]}
    return str(checks["network namespaces"]["state"])


def test_root_may_make_network_namespaces(cli: Cli) -> None:
    result = cli("doctor", "--json")
    assert result.returncode == 0, result.stderr
    assert namespace_state(result.stdout) == "ok"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_denied_without_the_capability_is_a_finding_not_a_failure(cli: Cli) -> None:
    result = cli("doctor", "--json", prefix=WITHOUT_SYS_ADMIN)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert namespace_state(result.stdout) == "denied"
