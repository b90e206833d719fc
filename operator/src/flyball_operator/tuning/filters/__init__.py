"""PURE. What a wanted policy must pass before engines are told: hysteresis and pace, canary, stall."""
