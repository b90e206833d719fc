"""The figures of `hack/bench law` for people: one page, nothing loaded."""
