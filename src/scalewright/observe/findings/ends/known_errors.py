"""What helps against errors that many people meet: the words of the error, and what to change."""

from __future__ import annotations

import re

_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (r"finished reduction in the prior iteration|find_unused_parameters",
         "some parameters got no gradient: freeze or remove what the loss does not use, or pass "
         "find_unused_parameters=True to DistributedDataParallel"),
        (r"marked (as )?ready (twice|only once)",
         "a parameter is used twice in one backward pass: use non-reentrant checkpointing (use_reentrant=False), or "
         "static_graph=True"),
        (r"too many open files|errno 24\b",
         "raise `ulimit -n` in the job script, or use fewer loader workers "
         "(torch.multiprocessing.set_sharing_strategy('file_system'))"),
        (r"can't start new thread|resource temporarily unavailable|pthread_create failed",
         "the limit of processes is reached: set OMP_NUM_THREADS, use fewer loader workers, or raise `ulimit -u`"),
        (r"same device|is on cpu|at least two devices",
         "move the model and every input to the rank's own device before the call"),
        (r"(mat1 and mat2|tensors?).{0,60}(shape|size).{0,80}(multiplied|match)|shape '.*' is invalid for input"
         r"|size of tensor .* must match",
         "two sizes of the model or the batch do not fit: compare the configuration with the checkpoint and tokenizer"),
        (r"index out of range in self|out of bounds for dimension|srcIndex < srcSelectDimSize",
         "an index is beyond its table: compare the tokenizer's size with the embedding, and the positions with the "
         "longest sequence"),
        (r"(expected|must have the same|mismatch).{0,60}dtype|dtype.{0,60}(expected|mismatch)"
         r"|but found (Half|Float|BFloat)",
         "two precisions meet: cast the inputs or run the call under autocast"),
        (r"does not require grad and does not have a grad_fn",
         "nothing is trained: unfreeze parameters, or call model.enable_input_require_grads() with checkpointing"),
        (r"cannot re-initialize CUDA in forked subprocess",
         "set the start method of worker processes to spawn, or do not touch CUDA before workers start"),
        (r"compiled with .{0,40}LLVM|triton|inductor|torch\._dynamo|BackendCompilerFailed",
         "run once without torch.compile; if that works, report the graph that fails"),
        (r"ninja|nvcc|error (compiling|building) (objects|extension)|CUDAExtension",
         "an extension could not be built: load the CUDA and compiler modules of this torch, and build on one "
         "node first"),
        (r"placement group|ray.{0,40}(resource|insufficient)|not enough (gpu|resource)s",
         "ask Ray for no more GPUs and CPUs than the job has (`ray status`)"),
        (r"unable to create.*lock|filelock|Resource.*locked",
         "let one rank prepare the file, and the others wait for it"),
    )
)  # fmt: skip


def known_advice(text: str) -> str:
    """What helps against this error; empty if it is not known."""
    return next((advice for pattern, advice in _KNOWN if pattern.search(text)), "")
