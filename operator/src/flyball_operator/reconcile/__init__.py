"""EFFECT. From an InferenceService to its objects: read, plan, apply, until nothing is left to do."""
