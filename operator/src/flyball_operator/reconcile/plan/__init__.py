"""PURE. Snapshot to plan: what must exist, one module per owned kind, and what the status says."""
