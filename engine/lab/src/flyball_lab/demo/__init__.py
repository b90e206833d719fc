"""The demo: real load on a governed engine, with tuning off and on by turns on the same pod, and what came of it."""
