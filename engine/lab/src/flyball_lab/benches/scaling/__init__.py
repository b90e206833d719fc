"""`hack/bench scaling`: rules for the number of replicas, on a fleet of simulated engines."""
