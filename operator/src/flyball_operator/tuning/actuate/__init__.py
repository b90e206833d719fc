"""EFFECT. Engines are told a setpoint, and read back until they confirm it."""
