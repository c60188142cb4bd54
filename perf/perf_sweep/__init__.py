"""The sweep of ``perf/sweep.py``: perf_analyzer over models, protocols, loads, shared memory and profiles."""
