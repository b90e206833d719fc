"""The padded engine: batches as people run them with plain transformers, behind the API and control port of the others.

Requests wait in a queue, a strategy of `flyball_engine.batching` forms a batch of them, and transformers' `generate`
runs it, padded to its longest prompt, to the end of its last row. Only `generator` imports torch and transformers, so
that all else can be tested without them.
"""
