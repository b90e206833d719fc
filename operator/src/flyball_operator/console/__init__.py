"""EFFECT. The console: pages for people, read only. `server.py` is its port, the rest is PURE."""
