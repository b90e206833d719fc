"""EFFECT. The Kubernetes API: cache, apply, election."""
