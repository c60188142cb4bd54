"""What is measured: one case is one model under one load, over one protocol, in one profile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from facegraph_server.paths import NETWORKS

PHOTO_MODELS = ("face_landmarks", "face_reconstruction", "face_tracking")
"""The public models: one photo or frame a request, so their batch is always 1."""

MODELS = (*PHOTO_MODELS, *NETWORKS)
PROTOCOLS = ("grpc", "http")
SHARED_MEMORY = ("none", "system", "cuda")


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        profile: the server's.
        model: one of :data:`MODELS`.
        protocol: ``grpc`` or ``http``.
        shared_memory: how tensors travel: ``none`` means in the request.
        batch: rows of one request.
        concurrency: requests under way at any time; None where the load is a rate.
        rate_per_s: requests sent a second, answered or not; None where the load is a concurrency.

    """

    profile: str
    model: str
    protocol: str
    shared_memory: str = "none"
    batch: int = 1
    concurrency: int | None = None
    rate_per_s: float | None = None

    @property
    def load(self) -> str:
        """The load in words."""
        load = f"concurrency {self.concurrency}" if self.concurrency is not None else f"{self.rate_per_s:g} requests/s"
        return load if self.batch == 1 else f"{load}, batch {self.batch}"

    @property
    def images_at_once(self) -> int | None:
        """Images under way at any time, in however many requests; None where the load is a rate."""
        return None if self.concurrency is None else self.concurrency * self.batch

    @property
    def transport(self) -> str:
        """How the tensors travel, in words."""
        return self.protocol if self.shared_memory == "none" else f"{self.protocol}, {self.shared_memory} shm"

    def in_profile(self, profile: str) -> Case:
        """Return the same case of another profile."""
        return replace(self, profile=profile)

    def __str__(self) -> str:
        return f"{self.profile} {self.model} {self.transport}, {self.load}"


def make_cases(
    profile: str,
    models: Sequence[str],
    served: Collection[str],
    *,
    protocols: Sequence[str],
    shared_memory: Sequence[str],
    batches: Sequence[int],
    concurrencies: Sequence[int],
    rates_per_s: Sequence[float] = (),
) -> list[Case]:
    """Return every combination that exists.

    Args:
        profile: of the server.
        models: which ones.
        served: what the profile serves: ``fused`` has no networks by themselves.
        protocols: some of :data:`PROTOCOLS`.
        shared_memory: some of :data:`SHARED_MEMORY`.
        batches: for the networks; a public model takes one photo a request, and so appears once.
        concurrencies: the loads, unless ``rates_per_s`` has some.
        rates_per_s: requests a second.

    """
    loads: list[tuple[int | None, float | None]] = [(None, rate) for rate in rates_per_s]
    loads = loads or [(concurrency, None) for concurrency in concurrencies]
    return [
        Case(profile, model, protocol, memory, batch, concurrency, rate)
        for model in models
        if model in served
        for protocol in protocols
        for memory in shared_memory
        for batch in (batches if model in NETWORKS else (1,))
        for concurrency, rate in loads
    ]
