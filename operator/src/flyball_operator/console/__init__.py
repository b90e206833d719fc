"""PURE, but for its port (`server.py`). The console: pages for people, read only."""
