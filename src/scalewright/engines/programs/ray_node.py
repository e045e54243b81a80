"""Start Ray on every node of a job, run a driver on the first one, and end with the driver's exit code.

    python ray_node.py -- python -m verl.trainer.main_ppo ...

Started once per node, with SLURM_NODEID, SLURM_NNODES, MASTER_ADDR and MASTER_PORT. It runs where Ray is installed and
imports nothing but the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

WAIT_S = 600
POLL_S = 2.0
_COUNT = "import ray; ray.init(address='auto', log_to_driver=False); print(len([n for n in ray.nodes() if n['Alive']]))"


def ray_command() -> str:
    """The ray beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name("ray")
    return str(beside) if beside.exists() else "ray"


def num_alive() -> int:
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False)
    lines = done.stdout.split()
    return int(lines[-1]) if done.returncode == 0 and lines and lines[-1].isdigit() else 0


def wait_for_nodes(num_nodes: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while num_alive() < num_nodes:
        if time.monotonic() > until_s:
            sys.exit(f"error: fewer than {num_nodes} nodes joined Ray within {WAIT_S} s")
        time.sleep(POLL_S)


def first_node(driver: list[str], port: str, num_nodes: int) -> int:
    address = os.environ["MASTER_ADDR"]
    head = [ray_command(), "start", "--head", f"--node-ip-address={address}", f"--port={port}", "--disable-usage-stats"]
    subprocess.run(head, check=True)
    try:
        wait_for_nodes(num_nodes)
        return subprocess.run(driver, check=False, env=os.environ | {"RAY_ADDRESS": f"{address}:{port}"}).returncode
    finally:
        subprocess.run([ray_command(), "stop"], check=False)


def other_node(port: str) -> int:
    """Serve until the head is gone. Ray then ends with an error, which is none of this node's."""
    join = [ray_command(), "start", f"--address={os.environ['MASTER_ADDR']}:{port}", "--block", "--disable-usage-stats"]
    until_s = time.monotonic() + WAIT_S
    while True:
        started_s = time.monotonic()
        subprocess.run(join, check=False)
        if time.monotonic() - started_s > POLL_S * 10 or time.monotonic() > until_s:
            return 0  # it had joined, or nobody was there to join
        time.sleep(POLL_S)


def main() -> None:
    words = sys.argv[1:]
    if len(words) < 2 or words[0] != "--":
        sys.exit("error: give the driver's command after --")
    port, num_nodes = os.environ["MASTER_PORT"], int(os.environ.get("SLURM_NNODES", "1"))
    is_first = int(os.environ.get("SLURM_NODEID", "0")) == 0
    sys.exit(first_node(words[1:], port, num_nodes) if is_first else other_node(port))


if __name__ == "__main__":
    main()
