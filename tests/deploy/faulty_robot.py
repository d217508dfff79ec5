"""Robots with a fault: a driver that blocks, and one that a test plays over DDS itself."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import String

from deploy.convert import set_quaternion, set_stamp, set_vector
from deploy.introduction import contract_of
from real.domain import DomainSample
from real.frames import from_rpy
from real.loopback import LoopbackRobot
from real.spec import load_robot
from tests.deploy.ros_probe import LATCHED, RELIABLE

A1 = load_robot("a1")


class BlockingRobot(LoopbackRobot):
    """Its driver call does not come back once a file exists; the firmware's time-out then acts.

    Args:
        robot: what it pretends to be.
        when: the file.
        **options: of the loopback robot.
    """

    def __init__(self, robot, *, when, **options):
        super().__init__(robot, **options)
        self._when = Path(when)

    def exchange(self, command):
        if self._when.exists():
            threading.Event().wait()
        return super().exchange(command)


class WarmRobot(LoopbackRobot):
    """It reports the vitals that a file says, and what its world was drawn to be.

    Args:
        robot: what it pretends to be.
        vitals: JSON file: ``temperature`` by joint [°C], ``voltage`` [V], ``height`` [m].
        **options: of the loopback robot.
    """

    def __init__(self, robot, *, vitals, **options):
        super().__init__(robot, **options)
        self._joints = robot.joint_names
        self._vitals = Path(vitals)

    def exchange(self, command):
        state = super().exchange(command)
        said = json.loads(self._vitals.read_text())
        hot = [said["temperature"].get(name, np.nan) for name in self._joints]
        return replace(
            state,
            temperature=np.array([hot]),
            voltage=np.array([said["voltage"]]),
            height=np.array([said["height"]]),
        )

    def domain_sample(self):
        return DomainSample(seed=3, values={"friction": [0.7]})


class Voice:
    """A robot that the test plays, in its default pose at 100 Hz, and its faults.

    Attributes:
        names, q: joints as they are published.
        rate: of turning about the vertical [rad/s].
        gyro_factor: what the gyroscope makes of it.
        frozen: whether the stamps stand.
        shift_ns: what is added to them.
    """

    def __init__(self, probe, *, robot=A1, qos=LATCHED, states=RELIABLE):
        node, self._robot = probe.node, robot
        self.names, self.q = list(robot.joint_names), np.array(robot.q_default)
        self.rate, self.gyro_factor = 0.0, 1.0
        self.frozen, self.shift_ns, self.stamp_ns = False, 0, 0
        self._yaw, self._last_s = 0.0, time.monotonic()
        self._intro = node.create_publisher(String, "/robot/contract", qos)
        self._intro.publish(String(data=contract_of(robot).to_json()))
        self._joints = node.create_publisher(JointState, "/joint_states", states)
        self._imu = node.create_publisher(Imu, "/imu/data", states)
        node.create_timer(0.01, self._speak)

    def heal(self):
        self.__dict__.update(frozen=False, rate=0.0, gyro_factor=1.0)
        self.names, self.q = list(self._robot.joint_names), np.array(self._robot.q_default)

    def _speak(self):
        now_s = time.monotonic()
        self._yaw += self.rate * (now_s - self._last_s)
        self._last_s = now_s
        if not self.frozen:
            self.stamp_ns = time.time_ns() + self.shift_ns
        joints = JointState(name=self.names, position=self.q, velocity=np.zeros(len(self.q)))
        set_stamp(joints.header.stamp, self.stamp_ns)
        if self._robot.imu_link is not None:
            self._imu.publish(self._felt())
        self._joints.publish(joints)

    def _felt(self):
        imu = Imu()
        imu.header.frame_id = self._robot.base_link
        set_quaternion(imu.orientation, from_rpy([0.0, 0.0, self._yaw]))
        set_vector(imu.angular_velocity, np.array([0.0, 0.0, self.rate * self.gyro_factor]))
        set_vector(imu.linear_acceleration, np.array([0.0, 0.0, 9.81]))
        set_stamp(imu.header.stamp, self.stamp_ns)
        return imu
