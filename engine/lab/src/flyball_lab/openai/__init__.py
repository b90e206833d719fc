"""The HTTP face that every engine of our own has: OpenAI's routes, vLLM's metrics, the control port beside them.

vLLM has a face of its own. An engine is a `Backend` here and a `TunableEngine` to the control port; what it does with a
request is its own affair. Imports neither vLLM nor torch, nor any engine.
"""
