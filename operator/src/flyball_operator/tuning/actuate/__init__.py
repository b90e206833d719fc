"""Writes a setpoint to engines and reads it back until they confirm it. PURE: `setpoint_trial`, `generation_bounds`."""
