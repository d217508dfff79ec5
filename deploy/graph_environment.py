"""What the processes of a graph share: one DDS domain, threads, and where these packages are."""

from __future__ import annotations

import contextlib
import os
import socket
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from real.errors import FerryError

#: Highest domain id whose ports lie below Linux's ephemeral range: 7400 + 250 * 101 = 32650
#: (OMG DDSI-RTPS 2.5, section 9.6.2.3; ip_local_port_range starts at 32768).
HIGHEST_DOMAIN = 101

#: Where Fast DDS looks for profiles, of Jazzy and of Kilted.
PROFILES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")

#: That of simulated graphs.
LOCAL_PROFILE = Path(__file__).with_name("fastdds_local.xml")

#: The name of Fast DDS in ``RMW_IMPLEMENTATION``.
FAST_DDS = "rmw_fastrtps_cpp"


def graph_environment(*, simulated: bool, domain_id: int | None) -> dict[str, str]:
    """Variables that every process of a graph gets, on top of the inherited ones.

    Args:
        simulated: whether nothing real can move.
        domain_id: of DDS; None takes a free one if simulated, and else what is inherited.

    Raises:
        FerryError: no domain is free.
    """
    # One thread per process: five processes share the robot's cores.
    out = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if simulated:
        # A demonstration must never move a robot on the network.
        out |= _on_this_computer()
        out["ROS_DOMAIN_ID"] = str(free_domain_id() if domain_id is None else domain_id)
    else:
        out |= _profiles("fastdds.xml")
        if domain_id is not None:
            out["ROS_DOMAIN_ID"] = str(domain_id)
    # From a clone, the processes must find these packages wherever they are started.
    root = Path(__file__).parents[1]
    if root != Path(sysconfig.get_paths()["purelib"]):
        given = os.environ.get("PYTHONPATH", "")
        out["PYTHONPATH"] = os.pathsep.join([str(root), *([given] if given else [])])
    return out


def _on_this_computer() -> dict[str, str]:
    """Variables with which nobody beyond this computer is heard or told.

    ROS's own range LOCALHOST adds shared memory, see ``fastdds.xml``; so Ferry's profile binds UDP
    to the loopback interface, and ROS is told to leave it as it is. That needs Fast DDS, the
    default of Jazzy and Kilted. Where the user chose another, or a profile, LOCALHOST holds, which
    leaves peers that the profile names.
    """
    # Peers and discovery servers that the user's shell names are asked whatever the range, and the
    # range's predecessor would hide it; empty is the same as not set.
    out = {"ROS_STATIC_PEERS": "", "ROS_DISCOVERY_SERVER": "", "ROS_LOCALHOST_ONLY": ""}
    own = any(os.environ.get(name) for name in PROFILES)
    if own or (os.environ.get("RMW_IMPLEMENTATION") or FAST_DDS) != FAST_DDS:
        return out | _profiles("fastdds.xml") | {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    ours = {
        # Named, since without a range any other implementation would speak to the network.
        "RMW_IMPLEMENTATION": FAST_DDS,
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT",
        # A DEFAULT_FASTRTPS_PROFILES.xml where the nodes start would win over the one named here.
        "SKIP_DEFAULT_XML_FILE": "1",
    }
    return out | _profiles(LOCAL_PROFILE.name) | ours


def require_this_computer() -> None:
    """Refuse to go on where Fast DDS was told of the loopback interface alone and opened others.

    A version that cannot read the profile says so in its log and speaks to the network. Called once
    the process takes part in a domain. Looks into ``/proc``: on other systems than Linux it cannot
    tell.

    Raises:
        FerryError: a UDP socket of this process is bound to another address.
    """
    if os.environ.get(PROFILES[0]) != str(LOCAL_PROFILE):
        return
    found = _udp_addresses() - {"0100007F"}  # 127.0.0.1, the bytes in the processor's order
    if found:
        raise FerryError(
            f"this simulated graph would reach beyond the computer: Fast DDS did not follow "
            f"{LOCAL_PROFILE} and bound UDP to {', '.join(sorted(found))} (hexadecimal, reversed); "
            f"write a profile for its version and name it in {PROFILES[0]} and {PROFILES[1]}"
        )


def _udp_addresses() -> set[str]:
    """Addresses that UDP sockets of this process are bound to, as the kernel writes them."""
    found, mine = set[str](), set[str]()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed since
                mine.add(os.readlink(f"/proc/self/fd/{name}"))
    for table in (Path("/proc/self/net/udp"), Path("/proc/self/net/udp6")):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            found |= {row[1].split(":")[0] for row in rows if f"socket:[{row[9]}]" in mine}
    return found


def _profiles(name: str) -> dict[str, str]:
    """Ferry's profile of Fast DDS for both distributions, where the user has none."""
    shipped = str(Path(__file__).with_name(name))
    return {variable: os.environ.get(variable) or shipped for variable in PROFILES}


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
