"""The load test: `dlite loadtest`.

Pure parts: `arrivals` (when), `workload` and `datasets` (what), `samples` (one request), `distribution`,
`speculation`, `sessions`, `comparison`, `warmth` (what it says), `result`, `console`, `report` (how it is
shown). I/O: `runner` sends, `execution` strings a run together, `saving` writes files, `cli` has the flags.
"""
