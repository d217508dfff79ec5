"""What a node opens: no memory that a killed process could hold, and no way off this computer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.graph_environment import PROFILES, free_domain_id, graph_environment
from tests.extras import need

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm"),
]

#: A node that sends until its input ends, once somebody hears it.
SENDER = """
import rclpy, sys, threading
from std_msgs.msg import String
rclpy.init()
node = rclpy.create_node("sender")
out = node.create_publisher(String, "/said", 1)
threading.Thread(target=lambda: (sys.stdin.read(), rclpy.shutdown()), daemon=True).start()
print("ready", flush=True)
while rclpy.ok():
    out.publish(String(data="x"))
    rclpy.spin_once(node, timeout_sec=0.02)
"""
#: One that ends once it hears.
HEARER = """
import rclpy
from std_msgs.msg import String
rclpy.init()
node = rclpy.create_node("hearer")
heard = []
node.create_subscription(String, "/said", heard.append, 1)
while not heard:
    rclpy.spin_once(node, timeout_sec=0.1)
"""


#: What decides on the wire of a process, in a user's shell.
CHOICES = (
    *PROFILES,
    "RMW_IMPLEMENTATION",
    "ROS_AUTOMATIC_DISCOVERY_RANGE",
    "ROS_LOCALHOST_ONLY",
    "SKIP_DEFAULT_XML_FILE",
)


@pytest.fixture
def shell(monkeypatch):
    """A user's shell in which nothing is set."""
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def sender(shell, request):
    """A sending process in the environment of a graph, started from that shell."""
    need("rclpy")
    domain = free_domain_id()
    shell.setenv("ROS_DOMAIN_ID", str(domain))
    added = graph_environment(simulated=request.param, domain_id=domain)
    command = [sys.executable, "-c", SENDER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **added}, **pipes) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()
        assert process.wait(30) == 0


def udp_addresses(pid):
    """Hexadecimal addresses that the UDP sockets of a process are bound to."""
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]]
    return {line[1].split(":")[0] for line in lines if f"socket:[{line[9]}]" in sockets}


@pytest.mark.parametrize("sender", [True, False], indirect=True, ids=["simulated", "hardware"])
def test_nodes_of_a_graph_share_no_memory(sender):
    maps = Path(f"/proc/{sender.pid}/maps").read_text()
    assert [line for line in maps.splitlines() if "/dev/shm/fast" in line] == []


@pytest.mark.parametrize("sender", [True], indirect=True)
def test_a_simulated_graph_speaks_through_the_loopback_interface_alone(sender):
    assert udp_addresses(sender.pid) == {"0100007F"}


@pytest.fixture
def elsewhere(shell, tmp_path):
    """The same shell where ROS's older variable is set, in a folder with a profile of its own."""
    shell.setenv("ROS_LOCALHOST_ONLY", "1")
    profile = '<participant profile_name="own" is_default_profile="true"><rtps/></participant>'
    (tmp_path / "DEFAULT_FASTRTPS_PROFILES.xml").write_text(
        f'<dds xmlns="http://www.eprosima.com"><profiles>{profile}</profiles></dds>'
    )
    shell.chdir(tmp_path)


@pytest.mark.parametrize("sender", [True], indirect=True)
def test_it_does_so_whatever_older_ways_the_shell_and_its_folder_have(elsewhere, sender):
    assert udp_addresses(sender.pid) == {"0100007F"}


#: A node in a graph whose profile Fast DDS cannot read.
UNREADABLE = """
import os, sys
from pathlib import Path
from deploy import graph_environment
graph_environment.LOCAL_PROFILE = Path(os.environ["FASTRTPS_DEFAULT_PROFILES_FILE"])
import rclpy
from deploy.node_base import FerryNode
from real.errors import FerryError
rclpy.init()
try:
    FerryNode("alone")
except FerryError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize(("text", "refused"), [("<dds><pro", True), (None, False)])
def test_a_graph_whose_profile_is_not_followed_does_not_start(tmp_path, text, refused):
    need("rclpy")
    environment = {**os.environ, **graph_environment(simulated=True, domain_id=free_domain_id())}
    if text is not None:
        (tmp_path / "old.xml").write_text(text)
        environment |= dict.fromkeys(PROFILES, str(tmp_path / "old.xml"))
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == int(refused), done.stderr
    assert ("refused: this simulated graph would reach beyond" in done.stderr) == refused


@pytest.mark.parametrize("sender", [False], indirect=True)
def test_beside_hardware_the_network_is_reached(sender):
    assert "00000000" in udp_addresses(sender.pid)


@pytest.mark.parametrize("sender", [True], indirect=True)
@pytest.mark.parametrize("reach", [None, "SUBNET", "LOCALHOST"])
def test_tools_of_ros_on_this_computer_hear_a_simulated_graph(sender, reach, monkeypatch):
    if reach is not None:
        monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", reach)
    subprocess.run([sys.executable, "-c", HEARER], timeout=60, check=True)
