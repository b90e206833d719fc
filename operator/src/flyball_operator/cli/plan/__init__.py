"""`flyball plan`: what limits the services of a fleet, and how many replicas would hold their objectives."""
