"""The engine side of Flyball: the contract, the step-time model, batching policies and the vLLM plugin."""

__version__ = "0.1.0"
