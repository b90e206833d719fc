"""EFFECT. Sign, push and read back setpoints."""
