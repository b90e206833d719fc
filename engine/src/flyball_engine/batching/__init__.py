"""PURE. Batching policies: what a step and a request may take."""
