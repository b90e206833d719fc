"""Other rules that adapt the limits of an engine, each written from its paper or its published rule.

A baseline is a value: it has limits, and is another value after a window of traffic (`baseline.Baseline`). Pure;
`loop` runs one around a simulated engine. A rule that its authors put into the scheduler is asked before each step
instead (`ppas`).
"""
