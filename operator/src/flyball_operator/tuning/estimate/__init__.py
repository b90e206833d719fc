"""PURE. The step-time model and the workload, out of what was seen."""
