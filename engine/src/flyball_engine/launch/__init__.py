"""The entry point of governed engine pods: `python3 -m flyball_engine.launch`.

It decides how vLLM is started, and then runs it in the same process, so that signals, exit codes and child processes
are vLLM's own. So vLLM is loaded once: loading it takes 5 to 15 s of a core. It imports neither vLLM nor torch before
the environment is as vLLM shall find it, because both read variables while they load.
"""
