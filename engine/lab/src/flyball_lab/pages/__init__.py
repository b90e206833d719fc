"""Pages for people: `charts` draws figures with matplotlib, `render` fills the templates with jinja2.

A page is one file: it has no script and loads nothing. Import this only where a page is written: `flyball-bench` also
runs under a vLLM Python, which may have neither library.
"""
