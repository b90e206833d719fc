"""The entry point of governed engine pods: `python3 -m flyball_engine.launch`.

It decides how vLLM is started and then becomes vLLM (`exec`), so that signals, exit codes and child processes are
vLLM's own. It imports neither vLLM nor torch: what the installed version can do is asked of a child process
(`flyball_engine.vllm.arguments`), whose imports and side effects on the environment end with it.
"""
