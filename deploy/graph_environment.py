"""What the processes of a graph share: one DDS domain, threads, and where these packages are."""

from __future__ import annotations

import os
import socket
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from real.errors import FerryError

#: Highest domain id whose ports lie below Linux's ephemeral range: 7400 + 250 * 101 = 32650
#: (OMG DDSI-RTPS 2.5, section 9.6.2.3; ip_local_port_range starts at 32768).
HIGHEST_DOMAIN = 101


def graph_environment(*, simulated: bool, domain_id: int | None) -> dict[str, str]:
    """Variables that every process of a graph gets, on top of the inherited ones.

    Args:
        simulated: whether nothing real can move.
        domain_id: of DDS; None takes a free one if simulated, and else what is inherited.

    Raises:
        FerryError: no domain is free.
    """
    profile = str(Path(__file__).with_name("fastdds.xml"))
    # One thread per process: five processes share the robot's cores.
    out = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for name in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"):
        out[name] = os.environ.get(name, profile)
    if simulated:
        # A demonstration must never move a robot on the network. Peers and discovery servers that
        # the user's shell names are asked whatever the range; empty is the same as not set.
        out["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        out["ROS_STATIC_PEERS"] = out["ROS_DISCOVERY_SERVER"] = ""
        out["ROS_DOMAIN_ID"] = str(free_domain_id() if domain_id is None else domain_id)
    elif domain_id is not None:
        out["ROS_DOMAIN_ID"] = str(domain_id)
    # From a clone, the processes must find these packages wherever they are started.
    root = Path(__file__).parents[1]
    if root != Path(sysconfig.get_paths()["purelib"]):
        given = os.environ.get("PYTHONPATH", "")
        out["PYTHONPATH"] = os.pathsep.join([str(root), *([given] if given else [])])
    return out


def free_domain_id(candidates: Iterable[int] | None = None) -> int:
    """A DDS domain in which nobody on this computer is, 1 to :data:`HIGHEST_DOMAIN`.

    Two graphs started at the same moment begin their search at different ids.

    Args:
        candidates: ids to try, in order; all of them, from one that the process id gives, if None.

    Raises:
        FerryError: all are in use.
    """
    start = os.getpid()
    tried = (
        [1 + (start + i) % HIGHEST_DOMAIN for i in range(HIGHEST_DOMAIN)]
        if candidates is None
        else list(candidates)
    )
    for domain in tried:
        if not _in_use(domain):
            return domain
    raise FerryError(f"no free DDS domain id among {tried}; stop other ROS graphs")


def _in_use(domain: int) -> bool:
    """Whether a participant of this domain runs here: the first ones hold these ports.

    Unicast ports of participant p: 7410 + 250 domain + 2 p (discovery).
    """
    for participant in range(3):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", 7410 + 250 * domain + 2 * participant))
            except OSError:
                return True
    return False
