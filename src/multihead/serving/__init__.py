"""A translator behind HTTP: batching, limits, streaming, metrics, reloads.

Reading order: `server` (the process: socket, signals, HTTP), `app` (middleware and routes), `requests` (reading and
checking), `scheduler` (admission and life of a request), `loaded_model`, `queue` and `search_threads` (the searches),
`responses` (results to texts), `schema` (the JSON). Nothing here trains, and the searches are those of `engine` and
`decoding`.
"""
