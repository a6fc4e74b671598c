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

OBJECT_STORE_BYTES = 100_000_000


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
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()
