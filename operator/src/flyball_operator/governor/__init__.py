"""PURE. The brain: signals, identification, the law and its guards."""
