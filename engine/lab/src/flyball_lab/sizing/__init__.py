"""PURE. What a model needs of a device: weights, KV cache, activations, the time of a step, and start-up limits."""
