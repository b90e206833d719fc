"""What no engine pod needs: a simulated and a padded engine, sizing, `flyball-bench`, baselines, benches, the demo.

`simulator`, `padded`, `openai`, `sizing` and `benchmark` know nothing of the operator. `baselines`, `benches` (what
`hack/bench` runs), `demo`, `harness` (real parts, started and stopped) and `tools` (what `hack/gen` runs) do, and need
a checkout.
"""
