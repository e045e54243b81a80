"""Megatron-LM: pretrain_gpt.py of a checkout with every argument; on CPUs a program of ours with Megatron-Core."""

from __future__ import annotations

from pathlib import Path

from scalewright.engines.adapters.pieces import missing, program_job, refuse_modes, refuse_splits
from scalewright.engines.files import megatron as file
from scalewright.engines.files.megatron_details import number
from scalewright.engines.types import EngineJob, EngineRequest, Placeholder, refusal

CHECKOUT = Placeholder(name="engine-dir", what="a checkout of Megatron-LM, the folder with pretrain_gpt.py")
TOKENIZERS = {".model": "Llama2Tokenizer", ".json": "TikTokenizer"}
"""Its name for a tokenizer by the suffix of the file; a folder is Hugging Face's."""


def refuse_what_it_lacks(request: EngineRequest) -> None:
    if request.device == "cpu":
        refuse_splits("Megatron-Core on CPUs", request, "tp")
        refuse_modes("Megatron-Core on CPUs", request)
        if request.recipe.name != "fp32":
            raise refusal("Megatron-Core on CPUs", f"precision {request.recipe.name}", "it was run in fp32", "use fp32")
        if request.layout.zero:
            why = "the program that starts it copies the optimizer to every rank"
            raise refusal("Megatron-Core on CPUs", f"zero={request.layout.zero}", why, "use zero=0")
        return
    file.refuse_what_it_lacks(request)


def render(request: EngineRequest) -> EngineJob:
    if request.device == "cpu":
        return program_job("megatron", "train_megatron_core", request, placeholders=missing(request, "data"))
    arguments = [*file.layout_arguments(request), *run_arguments(request), *setting_arguments(request)]
    script = str(Path(request.engine_dir or "MEGATRON") / "pretrain_gpt.py")
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if file.needs_one_connection(request) else {}
    return EngineJob(
        engine="megatron",
        files={},
        command=(
            request.engine_python, script, *(word for one in arguments for word in one), *request.extra_args,
        ),
        variables=variables,
        checkpoint_dir=request.checkpoint_dir,
        saves_on_notice=True,
        resume=f"the next attempt loads the newest checkpoint in {request.checkpoint_dir}",
        placeholders=(*(() if request.engine_dir else (CHECKOUT,)), *missing(request, "indexed", "tokenizer")),
        notes=tuple(file.padding_notes(request)),
    )  # fmt: skip


def run_arguments(request: EngineRequest) -> file.Arguments:
    """Length, data, optimizer, checkpoints and log of the run."""
    optimizer, folder = request.optimizer, str(request.checkpoint_dir)
    arguments: file.Arguments = [
        ("--train-iters", str(request.num_steps)),
        ("--seed", str(request.seed)),
        *data_arguments(request),
        ("--lr", number(optimizer.learning_rate)),
        ("--min-lr", number(optimizer.min_learning_rate)),
        ("--lr-decay-style", "cosine"),
        ("--lr-warmup-iters", str(optimizer.num_warmup_steps)),
        ("--adam-beta1", number(optimizer.beta1)),
        ("--adam-beta2", number(optimizer.beta2)),
        ("--adam-eps", number(optimizer.epsilon)),
        ("--weight-decay", number(optimizer.weight_decay)),
        ("--clip-grad", number(optimizer.clip_norm)),
        ("--save", folder),
        ("--load", folder),
        ("--save-interval", str(request.checkpoint_every or request.num_steps)),
        # On the notice before the time limit it saves and ends with 0.
        ("--exit-signal-handler",),
        ("--exit-signal", "SIGUSR1"),
        ("--eval-iters", "0"),
        ("--log-interval", "1"),
        ("--log-throughput",),
        ("--distributed-timeout-minutes", "30"),
    ]
    if request.load:
        arguments.append(("--pretrained-checkpoint", request.load))
    return arguments


def data_arguments(request: EngineRequest) -> file.Arguments:
    if request.is_synthetic:
        # This tokenizer adds a token of its own.
        return [("--mock-data",), ("--tokenizer-type", "NullTokenizer"), ("--vocab-size", str(request.shape.vocab - 1))]
    kind = TOKENIZERS.get(Path(request.tokenizer).suffix, "HuggingFaceTokenizer")
    return [
        ("--data-path", request.data or "DATA"),
        ("--split", "99,1,0"),
        ("--tokenizer-type", kind),
        ("--tokenizer-model", request.tokenizer or "TOKENIZER"),
        # The tokenizer may know fewer tokens than the model has rows.
        ("--padded-vocab-size", str(file.padded_vocab(request))),
    ]


def setting_arguments(request: EngineRequest) -> file.Arguments:
    """`--set key=value` as arguments: `true` or nothing is a flag alone."""
    return [
        (f"--{key.removeprefix('--')}",) if text in ("", "true") else (f"--{key.removeprefix('--')}", text)
        for key, text in request.settings.items()
    ]
