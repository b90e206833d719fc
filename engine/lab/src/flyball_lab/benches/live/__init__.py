"""The tuner on a real vLLM under a load that shifts, against limits that never move."""
