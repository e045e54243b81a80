"""Fixed pieces of a job script, in bash. `render.py` and `steps.py` put them together and fill in quoted values.

srun must never run in the foreground: bash runs a trap only after the foreground command has ended, and by then Slurm
has killed the job. So srun runs in the background, and the shell waits for it.
"""

from __future__ import annotations

SIGNALS = r"""
say() { printf '%s %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }

step='' watcher='' interrupted=0 noticed=0 cancelled=0 ended=0 reason=''

ask_ranks() {
    kill -USR1 "$step" 2>/dev/null || true
    (sleep "$grace_s" && kill -TERM "$step") >/dev/null 2>&1 &
    watcher=$!
}

# Slurm sends USR1 before the time limit and before preemption: the ranks save and exit.
on_notice() {
    interrupted=1 noticed=1
    say 'notice: asking the ranks to save and leave'
    [[ -z $step ]] || ask_ranks
}

# TERM without USR1 before it comes from scancel: pass it on, and do not requeue a cancelled job.
on_term() {
    interrupted=1
    ((noticed)) || cancelled=1
    say 'TERM: passing it on to the ranks'
    [[ -z $step ]] || kill -TERM "$step" 2>/dev/null || true
}

# srun runs in the background. A signal ends `wait` early; then wait again.
run_step() {
    local code=0
    srun "$@" &
    step=$!
    ((noticed == 0)) || ask_ranks
    while :; do
        interrupted=0
        if wait "$step"; then code=0; else code=$?; fi
        ((interrupted)) || break
    done
    step=''
    return "$code"
}
""".strip("\n")

END = r"""
# Runs once, at any end of the job: writes how it ended. The rename makes sure that the file is complete.
record_end() {
    ((ended == 0)) || return 0
    ended=1
    [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
@CLEAN@
    [[ ! -e $run_dir/exit_info.json ]] || return 0
    {
        printf '{"schema": "scalewright.exit-info/1", "code": %d, ' "$1"
        printf '"reason": "%s", ' "${reason:-the script ended with exit code $1: see logs}"
        printf '"job": "%s", "attempt": %d, "rank": -1, ' "$SLURM_JOB_ID" "$attempt"
        printf '"last_checkpoint": null, "time": %d}\n' "$(date +%s)"
    } >"$run_dir/.exit_info.$SLURM_JOB_ID"
    mv -T -- "$run_dir/.exit_info.$SLURM_JOB_ID" "$run_dir/exit_info.json"
}
trap 'record_end "$?"' EXIT
trap on_notice USR1
trap on_term TERM
"""

REQUEUE = r"""
requeue() {
    if ((attempt >= max_requeues)); then
        reason="queued again $attempt times already: look before the next one"
        say "$reason"
        exit "$exit_requeue"
    fi
    reason="$1: queued again to resume"
    record_end "$exit_requeue"
    say "$reason"
    trap '' TERM
    scontrol requeue "$SLURM_JOB_ID" || say 'scontrol requeue failed: submit the script again to resume'
@EXCLUDE@
    exit "$exit_requeue"
}
"""

NO_REQUEUE = r"""
requeue() {
    reason="$1: submit the script again to resume"
    say "$reason"
    exit "$exit_requeue"
}
"""

COPY_FUNCTION = r"""
# copy_near FOLDER SOURCE...: once per node. Copies under another name, then renames: a partial copy is never used.
copy_near() {
    set -euo pipefail
    local folder=$1 source target need have
    shift
    mkdir -p -- "$folder"
    for source in "$@"; do
        target=$folder/$(basename -- "$source")
        [[ ! -e $target ]] || continue
        need=$(du -sbL -- "$source" | cut -f 1)
        have=$(df -B 1 --output=avail -- "$folder" | tail -n 1)
        if ((need >= have)); then
            printf '%s: %s bytes do not fit into the %s free in %s\n' "$(hostname)" "$need" "$have" "$folder" >&2
            return 1
        fi
        cp -rL -- "$source" "$target.part.$$"
        mv -T -- "$target.part.$$" "$target"
    done
}
"""

COPY_CALL = r"""
if ! run_step "${per_node[@]}" --kill-on-bad-exit=1 \
    bash -c "$(declare -f copy_near); copy_near \"\$@\"" copy_near "$copy_dir" "${copied[@]}"; then
    ((noticed == 0)) || requeue 'asked to stop'
    reason='copying to the nodes failed: see logs'
    exit 3
fi
"""

COPY_CLEAN = r"""    [[ -z ${copy_dir-} ]] || timeout 60 srun "${per_node[@]}" rm -rf -- "$copy_dir" || true"""

HOSTS = r"""
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
"""

RENDEZVOUS = {
    "name": r"""export MASTER_ADDR=${hosts[0]}
""",
    "address": r"""MASTER_ADDR=$(getent ahostsv4 "${hosts[0]}" | awk 'NR == 1 { print $1 }') || true
export MASTER_ADDR=${MASTER_ADDR:-${hosts[0]}}
""",
}
"""Address of rank 0, by the `rendezvous` of the site's profile."""

PORT = r"""
# A port by the job's id: jobs that share a node do not share it. If somebody listens there on this node, the first,
# take one far from those of the next jobs. State 0A is a listener.
export MASTER_PORT=$((@FIRST@ + SLURM_JOB_ID % @NUM@))
while grep -qE ":$(printf %04X "$MASTER_PORT") [0-9A-F]+:[0-9A-F]+ 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
    MASTER_PORT=$((@FIRST@ + (MASTER_PORT - @FIRST@ + 4177) % @NUM@))
done
"""

PROVENANCE = r"""
{
    printf 'job %s, attempt %s, on %s, at %s\n' "$SLURM_JOB_ID" "$attempt" "$SLURM_JOB_NODELIST" "$(date -u +%FT%TZ)"
    printf 'script sha256 %s\n' "$(sha256sum <"$0" | cut -d ' ' -f 1)"
    printf 'commit %s\n' "$(git rev-parse HEAD 2>/dev/null || echo none)"
    git status --porcelain --untracked-files=no 2>/dev/null || true
    printf 'modules %s\n' "${LOADEDMODULES:-none}"
    env | grep -E '^(SLURM|NCCL|RCCL|FI|UCX|GLOO|OMP|MIOPEN|HSA|CUDA|ROCR|MASTER)_' |
        grep -vE 'TOKEN|SECRET|JWT|KEY' | sort
} >"$run_dir/logs/job-$SLURM_JOB_ID-$attempt.txt" || true
""".strip("\n")

ON_RANK_HEAD = r"""
# Once per task: set its rank, print where it runs, and become the command.
on_rank() {
"""

RANK_VARIABLES = r"""    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_RANK=@LOCAL_RANK@ LOCAL_WORLD_SIZE=@LOCAL_WORLD_SIZE@
"""

RANK_PLACE = r"""    printf 'rank %s on %s: CPUs %s, devices %s\n' "$SLURM_PROCID" "${SLURMD_NODENAME:-unknown}" \
        "$(awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status)" \
        "${ROCR_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-all}}"
"""

CATCHES_USR1 = r"""
# Whether a process has a handler for USR1: bit 0x200 of its SigCgt. Without one, USR1 would kill it.
catches_usr1() {
    local key mask
    while read -r key mask; do
        [[ $key != SigCgt: ]] || return "$(((0x$mask & 0x200) == 0))"
    done 2>/dev/null <"/proc/$1/status"
    return 1
}
""".strip("\n")

ON_NODE = r"""
# Once per node. USR1 would end torchrun, so torchrun ignores it and each rank gets the signal directly, once, as
# soon as it catches it.
on_node() {
    local agent asking='' code=0 interrupted=0
    (trap '' USR1 && exec "$@") &
    agent=$!
    ask_ranks() {
        local asked=' ' rank ranks
        trap '' USR1
        while kill -0 "$agent"; do
            read -d '' -ra ranks < <(cat "/proc/$agent"/task/*/children) || true
            for rank in "${ranks[@]}"; do
                if [[ $asked != *" $rank "* ]] && catches_usr1 "$rank" && kill -USR1 "$rank"; then asked+="$rank "; fi
            done
            sleep 0.2
        done 2>/dev/null
    }
    trap 'interrupted=1; [[ -n $asking ]] || { ask_ranks & asking=$!; }' USR1
    trap 'interrupted=1; kill -TERM "$agent" 2>/dev/null || true' TERM
    while :; do
        interrupted=0
        if wait "$agent"; then code=0; else code=$?; fi
        ((interrupted)) || break
    done
    exit "$code"
}
""".strip("\n")

SHIELD = r"""
# Around each rank. Exit code 75 means saved. It is delayed a little: at the first code that is not 0, srun and torchrun
# kill the ranks that are still saving. USR1 is passed on when the rank catches it: one that starts has no handler yet,
# and one that leaves has none any more.
shield() {
    local hold_s=$1 held=$2 child='' asking='' code=0 interrupted=0 terminated=0
    shift 2
    ask_rank() {
        trap '' USR1
        until catches_usr1 "$child"; do
            kill -0 "$child" 2>/dev/null || return 0
            sleep 0.2
        done
        kill -USR1 "$child" 2>/dev/null || true
    }
    pass_on_notice() {
        interrupted=1
        if [[ -z $child ]]; then asking=later; elif [[ -z $asking ]]; then ask_rank & asking=$!; fi
    }
    pass_on_term() {
        interrupted=1 terminated=1
        [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
    }
    trap pass_on_notice USR1
    trap pass_on_term TERM
    "$@" &
    child=$!
    ((terminated == 0)) || kill -TERM "$child" 2>/dev/null || true
    if [[ $asking == later ]]; then ask_rank & asking=$!; fi
    while :; do
        interrupted=0
        if wait "$child"; then code=0; else code=$?; fi
        ((interrupted)) || break
    done
    ((code != held)) || sleep "$hold_s"
    exit "$code"
}
""".strip("\n")

UNIGNORE = "import os, signal, sys; signal.signal(signal.SIGUSR1, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
"""Ranks inherit the ignored USR1 of torchrun. bash cannot undo that; Python can."""

LOST_NODES = r"""
# When a node dies, the ranks on other nodes fail first, before Slurm notices. Slurm requeues the job when it notices; a
# job that ends before that counts as failed. So wait here.
lost_nodes() {
    local said=$run_dir/logs/lost-$SLURM_JOB_ID-$attempt.txt waited_s
    if run_step --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 true 2>"$said"; then
        rm -f -- "$said"
        return 1
    fi
    bad_nodes=$({
        sed -n 's/.* failed on node \([^:]*\):.*/\1/p' "$said"
        sinfo -h -N -n "$SLURM_JOB_NODELIST" -t down,no_respond -o %N || true
    } | sort -u | paste -sd , -)
    [[ -n $bad_nodes ]] || return 1
    say "$bad_nodes does not answer: waiting until Slurm sees it too"
    for ((waited_s = 0; waited_s < 900 && cancelled == 0; waited_s += 5)); do
        sleep 5 &
        wait "$!" || true
    done
}
"""
"""A node counts as lost only if srun or the controller names it. Other failures have other causes."""

IF_LOST = r"""elif ((cancelled == 0)) && lost_nodes; then
    reason="$bad_nodes is lost"
    ((cancelled)) || requeue "$reason"
"""

CAUSE = r"""
# recorded KEY: what a rank of this attempt wrote about its end. The script removes older records at its start.
recorded() {
    sed -n 's/^ *"'"$1"'": "\{0,1\}\(.*[^",]\)"\{0,1\},\{0,1\}$/\1/p' "$run_dir/exit_info.json" 2>/dev/null || true
}

# srun returns the largest code of its tasks: often 137, of a rank that it killed because another one had left. The
# cause is the rank that wrote why it ended. One that only lost another is not: Slurm may have said why it killed one.
find_cause() {
    local code out_of_memory='oom[-_ ]kill|out of memory'
    code=$(recorded code)
    if [[ -n $code && $code != 0 && $(recorded lost_another) != true ]]; then
        status=$code why=$(recorded reason)
        return 0
    fi
    if [[ -f /proc/$$/fd/2 ]] && tail -c "+$((log_bytes + 1))" "/proc/$$/fd/2" | grep -aqiE "$out_of_memory"; then
        why='out of memory: a rank took more host memory than the job has; ask for more with --directive mem=64G'
    fi
    [[ -z $why ]] || rm -f -- "$run_dir/exit_info.json"
}
"""

FINISH = r"""
if ((noticed)); then requeue 'asked to stop'; fi
status=0 why=''
log_bytes=$(stat -Lc %s "/proc/$$/fd/2" 2>/dev/null) || log_bytes=0
@RUN@ || status=$?
((status == 0)) || find_cause
if ((status == 0)); then
    reason=finished
elif ((noticed || (status == exit_requeue && cancelled == 0))); then
    why=${why%%: *}
    requeue "${why:-asked to stop}"
@LOST@else
    reason="${why:-the ranks ended with exit code $status: see logs}"
    say "$reason"
fi
exit "$status"
"""
