"""Grafana dashboards, made in code. Pure: one module for each dashboard, and what they share.

`flyball_lab.tools.generate` writes them into the chart. They ask only for Flyball's own series, so that they also work
where vLLM's port is not scraped.
"""
