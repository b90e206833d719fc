"""Downloads one model into a folder, once: `python3 -m flyball_engine.download`."""
