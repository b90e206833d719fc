"""What a tick of the tuner costs by the number of services."""
