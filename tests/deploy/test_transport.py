"""A killed process must not make others wait in memory that it shared with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deploy.graph_environment import free_domain_id, graph_environment
from tests.extras import need

#: A node that sends, and what of shared memory it has open then.
NODE = """
import rclpy
from pathlib import Path
from std_msgs.msg import String
rclpy.init()
node = rclpy.create_node("alone")
node.create_publisher(String, "/said", 1).publish(String(data="x"))
maps = Path("/proc/self/maps").read_text()
print("sends", [line.split()[-1] for line in maps.splitlines() if "/dev/shm/fast" in line])
"""


@pytest.mark.ros
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
def test_nodes_beside_hardware_share_no_memory(monkeypatch):
    need("rclpy")
    for name in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    added = graph_environment(simulated=False, domain_id=free_domain_id())
    command = [sys.executable, "-c", NODE]
    done = subprocess.run(
        command, env={**os.environ, **added}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "sends []"
