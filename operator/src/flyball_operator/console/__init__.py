"""PURE. The console: pages for people, read only."""
