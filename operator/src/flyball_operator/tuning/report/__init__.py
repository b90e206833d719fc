"""What a service's status, events and metrics say of its tuning."""
