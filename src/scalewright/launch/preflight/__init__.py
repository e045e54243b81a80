"""The pre-flight check of nodes: what is expected of them, and how the check is started."""
