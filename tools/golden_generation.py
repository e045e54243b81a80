"""Make tests/golden/generation: tiny random models saved by transformers, with the tokens that its `generate` gives.

    python -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers
    /tmp/golden/bin/python tools/golden_generation.py

The tests read the folders with our own reader and compare; they do not need transformers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

TARGET = Path(__file__).resolve().parent.parent / "tests" / "golden" / "generation"
NUM_TOKENS = 16
SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 67,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3_SCALING = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES, rope_parameters=LLAMA3_SCALING, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False, rms_norm_eps=1e-6),
    "gpt2": GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=64, vocab_size=67),
}


def answers(model: Any) -> list[dict[str, Any]]:
    rows = []
    for number, length in enumerate((1, 2, 7, 16, 17, 33)):
        generator = torch.Generator().manual_seed(number)
        prompt = torch.randint(67, (1, length), generator=generator)
        out = model.generate(
            prompt, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0,
            attention_mask=torch.ones_like(prompt), output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        tokens = out.sequences[0, length:].tolist()
        log_probs = [float(s[0].log_softmax(-1)[t]) for s, t in zip(out.scores, tokens, strict=True)]
        rows.append({"prompt": prompt[0].tolist(), "tokens": tokens, "log_probs": log_probs})
    return rows


def main() -> None:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for name, config in CONFIGS.items():
        torch.manual_seed(len(name))
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for param in model.parameters():
                param.add_(torch.randn_like(param), alpha=0.3 if param.dim() > 1 else 0.1)
        shutil.rmtree(TARGET / name, ignore_errors=True)
        model.save_pretrained(TARGET / name)
        document = {"made_with": versions, "answers": answers(model)}
        (TARGET / name / "expected.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(name, sum(p.numel() for p in model.parameters()), "parameters")


if __name__ == "__main__":
    main()
