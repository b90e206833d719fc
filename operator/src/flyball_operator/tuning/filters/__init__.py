"""PURE. What a proposed policy must pass before engines are told. Their order is `FILTERS`.

`canary` stands behind them: it decides how a policy that passed reaches the pods.
"""
