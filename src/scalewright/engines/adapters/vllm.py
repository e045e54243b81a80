"""vLLM: its OpenAI server on every node, one copy of the model for each tensor-parallel group."""

from __future__ import annotations

from scalewright.engines.adapters.pieces import missing
from scalewright.engines.types import EngineJob, EngineRequest, refusal

NAME = "vLLM"
PRECISIONS = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "bf16-lean": "bfloat16",
    "bf16-pure": "bfloat16",
}
PORT = "8000"


def refuse_what_it_lacks(request: EngineRequest) -> None:
    layout = request.layout
    if request.task != "generate":
        raise refusal(NAME, f"task {request.task}", "it generates", "use --task generate, or an engine that trains")
    for knob in ("vpp", "cp"):
        if int(getattr(layout, knob)) > 1:
            why = "it splits matrices, layers and requests"
            raise refusal(NAME, f"{knob}={getattr(layout, knob)}", why, f"use {knob}=1")
    if request.recipe.name not in PRECISIONS:
        why = "narrow weights are a property of the checkpoint there"
        raise refusal(NAME, f"precision {request.recipe.name}", why, "use --precision bf16 and quantised weights")
    inside = int(layout.tp) * int(layout.pp)
    if request.num_local_gpus % inside:
        why = f"a server of one node has {request.num_local_gpus} devices, and copies may not cross nodes here"
        raise refusal(NAME, f"tp={layout.tp},pp={layout.pp}", why, "make tp x pp a divisor of the devices of a node")
    if int(layout.ep) not in (1, int(layout.tp) * request.num_local_gpus // inside):
        raise refusal(NAME, f"ep={layout.ep}", "experts are spread over all devices of a server, or not at all",
                      "use ep=1, or ep of the devices of a node")  # fmt: skip


def render(request: EngineRequest) -> EngineJob:
    layout = request.layout
    copies = request.num_local_gpus // (int(layout.tp) * int(layout.pp))
    arguments: list[tuple[str, ...]] = [
        ("--tensor-parallel-size", str(layout.tp)),
        ("--pipeline-parallel-size", str(layout.pp)),
        ("--data-parallel-size", str(copies)),
        ("--max-model-len", str(request.seq_len)),
        ("--dtype", PRECISIONS[request.recipe.name]),
        ("--seed", str(request.seed)),
        ("--host", "0.0.0.0"),
        ("--port", PORT),
    ]
    if int(layout.ep) > 1:
        arguments.append(("--enable-expert-parallel",))
    if request.tokenizer:
        arguments.append(("--tokenizer", request.tokenizer))
    for key, text in request.settings.items():
        flag = f"--{key.removeprefix('--')}"
        arguments.append((flag,) if text in ("", "true") else (flag, text))
    model = request.load or "MODEL"
    words = [word for one in arguments for word in one]
    return EngineJob(
        engine="vllm",
        files={},
        command=(
            request.engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *words,
            *request.extra_args,
        ),
        started_by="node",
        variables={"VLLM_CPU_KVCACHE_SPACE": "1"} if request.device == "cpu" else {},
        placeholders=missing(request, "load"),
        notes=(f"each node serves on port {PORT} until the time limit; bench generate --url measures it",),
    )  # fmt: skip
