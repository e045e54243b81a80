"""The steps of a Ray job, in bash: a head and workers that last as long as the job, and the program beside the head."""

from __future__ import annotations

from scalewright.launch.script import parts
from scalewright.launch.script.quoting import quote
from scalewright.launch.script.resolved_job import ResolvedJob
from scalewright.launch.script.steps import CALL, CALL_ASKING, command_words, python_of, srun_flags

JOIN_S = 600
"""How long nodes may take to join: a cold start of Python from a busy file system takes minutes."""
STOP_S = 60

WAIT = r"""
import sys, time, ray
address, wanted, limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ray.init(address=address, log_to_driver=False, logging_level="error")
deadline = time.monotonic() + limit_s
while (joined := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"{joined} of {wanted} nodes joined Ray within {limit_s:.0f} s")
    time.sleep(0.5)
print(f"{joined} nodes joined Ray", file=sys.stderr)
""".strip("\n")
"""Run on the head: ends when all nodes have joined."""

SETUP = r"""
# Ray lets everybody who reaches its ports run code as this user. The token keeps other users of the cluster out.
token_file=$run_dir/.ray-token-$SLURM_JOB_ID
(umask 077 && od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >"$token_file")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token_file
# Sockets are inside, and their paths must be short. Each node has a folder of its own.
ray_dir=/tmp/ray-$(id -u)-$SLURM_JOB_ID
export ray_dir run_dir
ray_ip=$(getent ahostsv4 "${hosts[0]}" | awk 'NR == 1 { print $1 }') || true
if [[ -z $ray_ip ]]; then
    ray_ip=$(scontrol -o show node "${hosts[0]}" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p') || true
fi
# A port that nobody listens on, from the id of the job.
for ((tries = 0; tries < 20; tries++)); do
    ray_port=$((@FIRST@ + (SLURM_JOB_ID + 977 * tries) % @NUM@))
    (exec 3<>"/dev/tcp/$ray_ip/$ray_port") 2>/dev/null || break
done
export RAY_ADDRESS=$ray_ip:$ray_port
"""

NODE = r"""
# Once per node: Ray's processes until the step ends. --block keeps the step alive; afterwards its logs are kept.
ray_node() {
    local own=$ray_dir/$SLURMD_NODENAME ray='' code=0 interrupted=0
    (umask 077 && mkdir -p -- "$own")
    [[ -O $ray_dir ]] || { printf '%s: %s belongs to another user\n' "$SLURMD_NODENAME" "$ray_dir" >&2 && exit 1; }
    # USR1 asks to end in order: srun passes it on, and would kill the step at TERM. Ray itself must not see it.
    trap 'interrupted=1; [[ -z $ray ]] || kill -TERM "$ray" 2>/dev/null || true' TERM USR1
    (trap '' USR1 && exec ray start --block --disable-usage-stats --num-cpus="$SLURM_CPUS_ON_NODE" \
        --temp-dir="$own" "$@") &
    ray=$!
    while :; do
        interrupted=0
        if wait "$ray"; then code=0; else code=$?; fi
        ((interrupted)) || break
    done
    mkdir -p -- "$run_dir/logs/ray/$SLURMD_NODENAME"
    cp -r -- "$own"/session_2*/logs/. "$run_dir/logs/ray/$SLURMD_NODENAME" 2>/dev/null || true
    rm -rf -- "$own"
    rmdir -- "$ray_dir" 2>/dev/null || true
    exit "$code"
}
"""

STOP = r"""
# Workers first, so that the head does not take them for lost.
ray_stop() {
    local pid waited_s
    for pid in $ray_workers $ray_head_step; do
        kill -USR1 "$pid" 2>/dev/null || true
        for ((waited_s = 0; waited_s < @STOP@; waited_s++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 1
        done
        kill -TERM "$pid" 2>/dev/null || true
    done
    ray_workers='' ray_head_step=''
    rm -f -- "$token_file"
}

# ray_failed REASON: the head or the nodes did not come up.
ray_failed() {
    ((noticed == 0)) || requeue 'asked to stop'
    ((cancelled == 0)) || exit 143
    reason=$1
    say "$reason: see logs"
    exit 3
}
"""

START = r"""
srun "${head_flags[@]}" @OUTER@@NODE@ \
    --head --port="$ray_port" --node-ip-address="$ray_ip" --include-dashboard=false @GPUS@ &
ray_head_step=$!
for ((tries = 0; tries < 2 * @JOIN@; tries++)); do
    if (exec 3<>"/dev/tcp/$ray_ip/$ray_port") 2>/dev/null; then break; fi
    kill -0 "$ray_head_step" 2>/dev/null || ray_failed 'the head of Ray did not start'
    ((noticed == 0 && cancelled == 0)) || ray_failed 'asked to stop'
    sleep 0.5
done
@WORKERS@
# Ready when all nodes have joined. A worker step that ends before that ends the waiting.
srun "${driver_flags[@]}" @OUTER@@PYTHON@ -c "$ray_wait" "$RAY_ADDRESS" "$SLURM_NNODES" @JOIN@ &
step=$!
while kill -0 "$step" 2>/dev/null; do
    ((noticed == 0 && cancelled == 0)) || { kill -TERM "$step" 2>/dev/null || true; }
    for pid in $ray_head_step $ray_workers; do
        kill -0 "$pid" 2>/dev/null || { kill -TERM "$step" 2>/dev/null || true; }
    done
    sleep 0.5
done
if wait "$step"; then step=''; else step='' && ray_failed 'not all nodes joined Ray'; fi
"""

WORKERS = r"""
# A lost worker ends neither the other workers nor the job: Ray runs its tasks again elsewhere.
srun "${worker_flags[@]}" @OUTER@@NODE@ \
    --address="$RAY_ADDRESS" @GPUS@ &
ray_workers=$!
"""

CLEAN = "    ray_stop"


def ray_functions() -> str:
    """What the script defines before its traps are set, so that every end stops Ray."""
    return "ray_workers='' ray_head_step='' token_file=''\n" + STOP.strip("\n").replace("@STOP@", str(STOP_S))


def ray_steps(job: ResolvedJob, on_rank: str, *, first_port: int, num_ports: int) -> str:
    """Start Ray on all nodes, wait until they have joined, and run the program beside the head."""
    nodes = job.request.num_nodes
    outer = f"{CALL.replace('NAME', 'on_rank')} \\\n    " if on_rank else ""
    node = CALL.replace("NAME", "ray_node")
    gpus = f"--num-gpus={job.gpus}" if job.gpus else ""
    start = START.replace("@WORKERS@\n", WORKERS.strip("\n") + "\n" if nodes > 1 else "")
    for mark, text in (("@OUTER@", outer), ("@NODE@", node), ("@GPUS@", gpus), ("@PYTHON@", python_of(job)),
                       ("@JOIN@", str(JOIN_S))):  # fmt: skip
        start = start.replace(mark, text)
    run = " \\\n    ".join([
        'run_step "${driver_flags[@]}"', *([CALL.replace("NAME", "on_rank")] if on_rank else []),
        CALL_ASKING.replace("NAME", "shield") + ' "$hold_s" "$exit_requeue"', '"${command[@]}"',
    ])  # fmt: skip
    finish = parts.FINISH.strip("\n").replace("@LOST@", "").replace("@RUN@", run).replace("the ranks", "the program")
    sections = [
        f"command=({' '.join(command_words(job))})",
        _arrays(job),
        SETUP.strip("\n").replace("@FIRST@", str(first_port)).replace("@NUM@", str(num_ports)),
        f"ray_wait={quote(WAIT)}",
        NODE.strip("\n"),
        start.strip("\n"),
        parts.CAUSE.strip("\n"),
        finish,
    ]
    return "\n\n".join(sections)


def _arrays(job: ResolvedJob) -> str:
    """Flags of the three steps. --overlap: the program shares the head's CPUs and GPUs with Ray."""
    nodes = job.request.num_nodes
    # Without it, the step may ask for memory that Ray's step has; some sites forbid the flag and share memory anyway.
    memory = [] if any(rule.flag == "--mem" for rule in job.site.forbidden) else ["--mem=0"]
    keeps = ["--kill-on-bad-exit=0", "--no-kill", "--wait=0"]
    arrays = {
        "head_flags": [*_without_kill(srun_flags(job, 1)), *keeps],
        "worker_flags": [*_without_kill(srun_flags(job, nodes - 1)), *keeps] if nodes > 1 else [],
        "driver_flags": ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--overlap", *memory],
    }
    places = {"head_flags": '--nodelist="${hosts[0]}"', "worker_flags": '--exclude="${hosts[0]}"',
              "driver_flags": '--nodelist="${hosts[0]}"'}  # fmt: skip
    return "\n".join(
        "\n".join([f"{name}=(", *(f"    {quote(flag)}" for flag in flags), f"    {places[name]}", ")"])
        for name, flags in arrays.items()
        if flags
    )


def _without_kill(flags: list[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith("--kill-on-bad-exit")]
