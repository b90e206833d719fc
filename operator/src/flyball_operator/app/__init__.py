"""EFFECT. The process: kopf's watches, settings, health, its own metrics."""
