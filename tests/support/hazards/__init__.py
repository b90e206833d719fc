"""Each hazard of changing vLLM's limits live, twice: as a person would change them, and as Flyball does."""
