"""Whether Flyball should serve encoders in padded batches of its own: against vLLM's runner, and what vLLM lacks."""
