"""A real vLLM, and the simulated engine beside it: what limits, order and gate cost, and how far they are kept."""
