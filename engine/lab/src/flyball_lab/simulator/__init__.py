"""A simulated engine: vLLM's scheduling over a step-time law, in virtual time for benchmarks or served in real time.

`core` is the one engine of both; it is driven with a clock that is a parameter, and decides with the same policies as
the vLLM plugin (`flyball_engine.batching`). Only `server` reads a clock and opens ports.
"""
