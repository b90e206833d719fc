"""EFFECT. Makes, publishes and rotates the signing key."""
