"""`hack/bench`: the figures that documents and notes quote, measured anew."""
