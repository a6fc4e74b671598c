"""A whole cluster on this machine, under load, to look at."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.cluster.local_ray import local_ray
from deploy.cluster.ray_cluster import Cluster
from deploy.cluster.spec import ClusterSpec

NAME = "local"


@dataclass(frozen=True)
class DemoOptions:
    """What to bring up.

    Args:
        target, drafter: model folders.
        tapped_layers: that the drafter reads.
        num_targets, num_drafters: replicas.
        load: flags of `dlite loadtest` besides the address.
        stay: until Ctrl-C, once the load has been sent.
    """

    target: Path
    drafter: Path
    tapped_layers: tuple[int, ...]
    num_targets: int = 2
    num_drafters: int = 2
    load: tuple[str, ...] = ()
    stay: bool = True

    def spec(self) -> ClusterSpec:
        """One compute thread each."""
        layers = ",".join(map(str, self.tapped_layers))
        return ClusterSpec.model_validate(
            {
                "name": NAME,
                "target": {
                    "model": str(self.target),
                    "replicas": self.num_targets,
                    "flags": ["--tapped-layers", layers],
                },
                "draft": {"model": str(self.drafter), "replicas": self.num_drafters},
            }
        )


def run_demo(options: DemoOptions, say: Callable[[str], None]) -> int:
    """Brings it up, sends it load, stays, brings it down.

    Returns:
        The exit code of the load test; 0 when it was interrupted later.
    """
    spec = options.spec()
    num_actors = options.num_targets + options.num_drafters + 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say("starting Ray")
    with local_ray(num_actors) as address:
        cluster = Cluster(spec.name)
        try:
            found = cluster.up(spec, 600.0, say)
            return _look_and_load(found, address, options, say)
        finally:
            cluster.down(say)


def _look_and_load(
    found: dict[str, list[dict[str, str]]], ray_address: str, options: DemoOptions, say: Callable[[str], None]
) -> int:
    for each in found["members"]:
        say(f"{each['name']:<22} {each['address']}")
    door = next(each for each in found["members"] if each["kind"] == "coordinator")
    say("from another terminal:")
    say(f"  dlite top --address {door['address']}")
    say(f"  dlite generate --address {door['address']} 'Hello'")
    say(f"  dlite deploy status {NAME} --ray-address {ray_address}   (also: scale, logs, drain)")
    say(f"  curl http://{door['admin_address']}/metrics")
    command = (sys.executable, "-m", "deploy.cli", "loadtest", "--address", door["address"], *options.load)
    code = subprocess.run(command, check=False).returncode
    if options.stay and code == 0:
        say("Ctrl-C ends the cluster")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return code
