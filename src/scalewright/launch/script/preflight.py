"""The pre-flight check as the first step of a job script, in bash.

The script reads the result file of rank 0 and ignores the exit code of the step. torchrun turns every failure into 1,
and an image without scalewright writes no result; a job that does not need scalewright must still run there.
"""

from __future__ import annotations

PREFLIGHT = r"""
# Pre-flight: before the run, ranks report where they are and measure each other. Skipped without scalewright.
rm -f -- "$run_dir/preflight/result.json"
if_installed='"$0" -c "import scalewright" 2>/dev/null || exit 0; exec "$0" "$@"'
# A failing node must not end the step: the other nodes decide without it.
@RUN@ || true
if ((noticed)); then requeue 'asked to stop'; fi
if ((cancelled)); then exit 143; fi
bad_nodes=$(cat -- "$run_dir/preflight/exclude.txt" 2>/dev/null) || true
checked=$(sed -n 's/^  "code": \([0-9]*\),$/\1/p' "$run_dir/preflight/result.json" 2>/dev/null) || true
case ${checked:-none} in
    0) ;;
    none) say 'pre-flight did not run: going on without it' ;;
    "$exit_requeue")
        say "pre-flight: not on these nodes (${bad_nodes:-none named}), see preflight/result.json"
        requeue 'pre-flight found bad nodes'
        ;;
    *)
        reason='pre-flight: the job is asked for wrongly, see preflight/result.json'
        say "$reason"
        exit "$checked"
        ;;
esac
"""

EXCLUDE = r"""    if [[ -n ${bad_nodes-} ]]; then
        excluded=$(scontrol -o show job "$SLURM_JOB_ID" | sed -n 's/.* ExcNodeList=\([^ ]*\).*/\1/p') || true
        [[ ${excluded:-(null)} == '(null)' ]] || bad_nodes=$excluded,$bad_nodes
        scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$bad_nodes" || say 'the bad nodes could not be excluded'
    fi
"""
"""Runs after the requeue. Without it the job could get the same bad nodes again."""


SPARES = r"""
# The job has spare nodes: the run uses good ones, and the others stay idle.
if [[ ${checked:-none} == 0 ]]; then IFS=, read -ra hosts <"$run_dir/preflight/nodes.txt"; fi
hosts=("${hosts[@]:0:@NUM@}")
node_list=$(IFS=, && printf '%s' "${hosts[*]}")
say "running on $node_list"
"""


def preflight_step(outer: list[str], python: str, *, num_spares: int) -> str:
    """The step that runs the check. `outer` is what the ranks' step runs around its command: rank, image, torchrun."""
    spares = f" --spares {num_spares}" if num_spares else ""
    check = f'bash -c "$if_installed" {python} -m scalewright.run preflight --run-dir "$run_dir"{spares}'
    words = ['run_step "${step_flags[@]}" --kill-on-bad-exit=0', *outer, check]
    return PREFLIGHT.strip("\n").replace("@RUN@", " \\\n    ".join(words))


def take_good_nodes(num_nodes: int, rendezvous: str, arrays: str) -> str:
    """The nodes that passed the check, the address of rank 0 on them, and the flags of a step on them."""
    return SPARES.strip("\n").replace("@NUM@", str(num_nodes)) + f"\n{rendezvous}{arrays}"
