"""PURE. The step-time model, the workload and the margins, out of what was seen."""
