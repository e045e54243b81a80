"""Shards as training programs read them: Megatron's indexed files, .npy, Parquet, JSON lines, tar."""
