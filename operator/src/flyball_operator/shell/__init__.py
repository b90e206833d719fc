"""EFFECT. kopf handlers, queue, loops, settings, own telemetry."""
