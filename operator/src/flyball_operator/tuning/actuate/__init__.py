"""Writes a setpoint to engines, and reads it back until they confirm it. `canary` and `generation_bounds` are PURE."""
