"""A Ray cluster of this process alone, for trying things out. It ends with the process.

Ray asks its callers for a token, which it takes from RAY_AUTH_TOKEN or ~/.ray/auth_token, and makes there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import ray

from deploy.cluster.ray_fleet import NAMESPACE
from protos.errors import Unavailable

OBJECT_STORE_BYTES = 100_000_000
ATTEMPTS = 3


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[str]:
    """Starts one, yields its address, ends it.

    Args:
        num_cpus: what it counts; more than the machine has is fine for small models.
    """
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # What runs in a worker is the product itself: it is no background work.
        "RAY_worker_niceness": "0",
        # A machine that is busy with small models is slow, not broken.
        "RAY_worker_register_timeout_seconds": "240",
        "RAY_health_check_timeout_ms": "60000",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    _start(num_cpus)
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def _start(num_cpus: int) -> None:
    """Tries a few times: Ray gives its node 30 s to start, which a busy machine may need and more.

    Raises:
        Unavailable: it does not start.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        except Exception as error:  # Ray raises no class of its own
            ray.shutdown()
            if attempt == ATTEMPTS:
                raise Unavailable(f"Ray does not start: {error}") from error
