"""PURE. What a proposed policy must pass before engines get it. Their order is `FILTERS`."""
