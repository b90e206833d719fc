"""EFFECT. Queries to signals."""
