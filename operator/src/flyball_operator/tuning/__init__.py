"""From signals to setpoints: observe → estimate → predict → optimise → filters → actuate → report.

Each folder or module of that name is a stage. `decide` puts the PURE ones together; `service_tuner` runs all of them
for one service, `tuner` for all services.
"""
