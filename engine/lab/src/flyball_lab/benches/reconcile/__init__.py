"""`hack/bench reconcile`: what the operator costs on a real API server, by the number of services."""
