"""The language benchmark: GPT and Llama families in plain PyTorch and its own distributed package."""
