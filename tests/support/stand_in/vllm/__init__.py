"""In vLLM's place where vLLM is not installed: only its load generator, and of that only what `flyball-bench` uses.

Its requests are real, to a real server. That the options mean to vLLM what they mean here is held by the engine level.
"""

print("INFO: as vLLM does, on standard output")  # noqa: T201 – see above
