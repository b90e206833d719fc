"""The exercise, `flyball-bench`: a live endpoint under rising load and every batching strategy.

Decisions (`points`, `arguments`, `requests`, `measurements`, `other_tools`, `series`, `tokenizer`, `knee`, `advice`,
`report`, `table`, `page`) are pure; `endpoint`, `control`, `load`, `log`, `files`, `writing`, `watch`, `sweep` and
`main` reach the network, processes, files and the clock. `generator` alone imports vLLM: it runs in a process of its
own, by the Python that has vLLM. `page` is imported when it is written: it alone needs matplotlib and jinja2.
"""
