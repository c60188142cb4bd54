"""What can go wrong in a sweep."""

from __future__ import annotations

from facegraph_client import SetupError


class AnalyzerMissingError(SetupError):
    """There is no perf_analyzer that runs on this machine, and none can be fetched; the message says what to do."""


class AnalyzerError(SetupError):
    """perf_analyzer did not measure a case; the message ends with what it said."""


class SweepError(SetupError):
    """The sweep cannot start: the server does not answer as it should, or there is nothing to measure."""
