"""Code that may be hostile runs in processes with limits: `pool` runs it, `protections` tries what the host permits."""
