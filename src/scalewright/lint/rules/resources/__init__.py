"""Rules about what the job requests: time, memory, CPUs and GPUs, and whether the model fits in them."""
