"""Data sets without torch: readers, tar shards, LMDB, converters, shard sizing, copies to RAM or node-local disk."""
