"""EFFECT. The flyball command."""
