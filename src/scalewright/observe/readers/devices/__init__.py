"""What devices and kernels say: nvidia-smi, rocm-smi, dmesg."""
