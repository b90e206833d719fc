"""EFFECT. The vLLM plugin; the only importer of vLLM."""
