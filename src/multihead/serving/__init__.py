"""A translator behind HTTP: requests of different clients share batches; limits, streaming, metrics, reload, drain.

Reading order: `schema` (what is asked and answered), `app` (routes; `described` for OpenAPI), `desk` (admission and the
life of a request), `work` (sentences on their way), `lanes` and `eager` (where they are searched), `generation` (one
loaded model), `server` (the process: signals, draining). Nothing here trains or searches by itself.
"""
