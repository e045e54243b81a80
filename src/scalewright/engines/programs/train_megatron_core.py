"""Train a Llama or GPT of Megatron-Core with tensor and data parallelism, on the samples of the run's file.

    python train_megatron_core.py --config engine/engine.json

Megatron-LM's own script is no package. This program has its step lines, and none of its data sets and checkpoints. On a
CPU, Megatron-Core takes buffers for exchange from the current CUDA device: `for_cpu` names the CPU instead.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
import torch.distributed as dist
from engine_setup import TokenWindows, fail, leave, num_ranks, parameter_groups, read_config, say
from step_traces import StepTraces


class NoStates:
    """Stands for the generators of a CUDA device, which dropout forks even where its share is 0."""

    def fork(self, *_: Any) -> Any:
        return contextlib.nullcontext()


def for_cpu() -> None:
    """Buffers, and tensors that are moved, stay on the CPU; without dropout no generator is needed."""
    from megatron.core import tensor_parallel

    torch.cuda.current_device = lambda: "cpu"
    torch.Tensor.cuda = lambda self, *_, **__: self
    tensor_parallel.get_cuda_rng_tracker = lambda *_, **__: NoStates()


def build(config: dict[str, Any]) -> Any:
    """The model of the run's file, without dropout and without kernels that need Transformer Engine or Apex."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    model, layout = config["model"], config["layout"]
    if model["model_type"] not in ("llama", "mistral", "qwen2", "gpt2"):
        fail(f"Megatron-Core trains Llamas and GPTs here, and the model is {model['model_type']}: use another engine")
    is_gpt = model["model_type"] == "gpt2"
    settings = TransformerConfig(
        **(gpt_sizes(model) if is_gpt else llama_sizes(model)),
        tensor_model_parallel_size=int(layout["tp"]), sequence_parallel=bool(int(layout.get("sp", 0))),
        use_cpu_initialization=config["device"] == "cpu", hidden_dropout=0.0, attention_dropout=0.0,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, apply_rope_fusion=False, persist_layer_norm=False,
    )  # fmt: skip
    return GPTModel(
        config=settings, transformer_layer_spec=get_gpt_layer_local_spec(normalization=settings.normalization),
        vocab_size=int(model["vocab_size"]), max_sequence_length=int(model.get("n_positions") or config["sequence"]),
        position_embedding_type="learned_absolute" if is_gpt else "rope",
        rotary_base=int(model.get("rope_theta") or 10000), parallel_output=True,
        share_embeddings_and_output_weights=bool(model["tie_word_embeddings"]),
    )  # fmt: skip


def llama_sizes(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_layers": int(model["num_hidden_layers"]), "hidden_size": int(model["hidden_size"]),
        "num_attention_heads": int(model["num_attention_heads"]),
        "num_query_groups": int(model["num_key_value_heads"]), "ffn_hidden_size": int(model["intermediate_size"]),
        "kv_channels": int(model["head_dim"]), "normalization": "RMSNorm", "gated_linear_unit": True,
        "layernorm_epsilon": float(model["rms_norm_eps"]), "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
    }  # fmt: skip


def gpt_sizes(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_layers": int(model["n_layer"]), "hidden_size": int(model["n_embd"]),
        "num_attention_heads": int(model["n_head"]), "ffn_hidden_size": int(model["n_inner"]),
        "normalization": "LayerNorm", "layernorm_epsilon": float(model["layer_norm_epsilon"]),
        "activation_func": torch.nn.functional.gelu, "add_bias_linear": True,
    }  # fmt: skip


def clip(params: list[torch.nn.Parameter], largest: float, tensor_group: Any) -> float:
    """Scale gradients to the largest norm. Parts of a tensor-parallel weight lie on all ranks of its group."""
    split = [one.grad for one in params if getattr(one, "tensor_model_parallel", False) and one.grad is not None]
    whole = [one.grad for one in params if not getattr(one, "tensor_model_parallel", False) and one.grad is not None]
    squares = sum((grad.float().pow(2).sum() for grad in split), torch.zeros(()))
    dist.all_reduce(squares, group=tensor_group)
    squares = squares + sum((grad.float().pow(2).sum() for grad in whole), torch.zeros(()))
    norm = float(squares.sqrt())
    if largest and norm > largest:
        for grad in (*split, *whole):
            grad.mul_(largest / norm)
    return norm


def main() -> None:
    config = read_config()
    layout, settings = config["layout"], config["optimizer"]
    if config["load"]:
        fail("this program of Megatron-Core reads no Hugging Face weights: leave out --load, or choose deepspeed")
    on_cpu = config["device"] == "cpu"
    if on_cpu:
        for_cpu()
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    dist.init_process_group("gloo" if on_cpu else "nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=int(layout["tp"]))
    torch.manual_seed(int(config["seed"]))
    if not on_cpu:
        model_parallel_cuda_manual_seed(int(config["seed"]))
    model = build(config)
    model.train()
    optimizer = torch.optim.AdamW(
        parameter_groups(model, float(settings["weight_decay"])), lr=float(settings["learning_rate"]),
        betas=(float(settings["beta1"]), float(settings["beta2"])), eps=float(settings["epsilon"]),
    )  # fmt: skip
    train(model, optimizer, config, parallel_state)
    dist.destroy_process_group()


def train(model: Any, optimizer: torch.optim.Optimizer, config: dict[str, Any], state: Any) -> None:
    samples, params = TokenWindows(config), list(model.parameters())
    data_group, dp_rank = state.get_data_parallel_group(), state.get_data_parallel_rank()
    num_micro, steps = int(config["num_micro_batches"]), int(config["steps"])
    rate, largest = float(config["optimizer"]["learning_rate"]), float(config["optimizer"]["clip_norm"])
    positions = torch.arange(samples.length).unsqueeze(0)
    hidden = torch.ones(samples.length, samples.length).triu(1).bool()[None, None]  # Megatron-Core's own is on a GPU
    traces = StepTraces(config)
    for step in range(steps):
        with traces.step(step):
            started_s = time.perf_counter()
            total = torch.zeros(())
            for micro in range(num_micro):
                window = torch.from_numpy(samples.micro_batch(step, micro, dp_rank))
                tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
                losses = model(tokens, positions.expand(len(window), -1), hidden, labels=targets)
                loss = losses.float().mean()
                (loss / num_micro).backward()
                total += loss.detach() / num_micro
            for param in params:
                if param.grad is not None:
                    dist.all_reduce(param.grad, group=data_group)
                    param.grad.div_(samples.dp)
            dist.all_reduce(total, group=data_group)
            norm = clip(params, largest, state.get_tensor_model_parallel_group())
            optimizer.step()
            optimizer.zero_grad()
            took_s = time.perf_counter() - started_s
        parts = (
            f" iteration {step + 1:8d}/{steps:8d}", f"consumed samples: {(step + 1) * samples.gbs:12d}",
            f"elapsed time per iteration (s): {took_s:.6f}", f"learning rate: {rate:.6E}",
            f"global batch size: {samples.gbs:5d}", f"lm loss: {float(total) / samples.dp:.6E}",
            f"grad norm: {norm:.3f}", "number of skipped iterations:   0 |",
        )  # fmt: skip
        say(" | ".join(parts))
    say(f"{num_ranks()} ranks, tp={config['layout']['tp']}, done")


if __name__ == "__main__":
    main()
    leave()
