"""From signals to setpoints: observe → estimate → predict → optimise → filters → actuate → report.

Each folder or module of that name is a stage; `prometheus` asks for what is observed, and `optimise` calls `predict`.
`decide` puts the PURE stages together. `service_tuner` runs all for one service, `tuner` for all services.
"""
