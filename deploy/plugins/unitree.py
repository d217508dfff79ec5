"""Unitree's quadrupeds by low-level control (unitree_sdk2: Go2, B2); untested on hardware.

It is written against the public message layout and tested against a fake that checks every byte.
Before the first try on a robot: hang it up, and see with ``kd`` alone that every joint answers.

    ferry deploy policy.onnx --robot deploy.plugins.unitree:UnitreeRobot --option network=eth0

needs Unitree's Python SDK (``unitree_sdk2py``) on this computer. Gains go along with every command,
so the robot can damp. Its own controller must be off: where the motion switcher reports an active
mode the driver refuses to start, since two who command are none.

``command_timeout_s`` is yours to measure: the public documentation gives no time after which the
motors stop when commands cease. Without it robot_node refuses the robot.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.plugins.unitree_wire import MOTORS, new_command, seal
from real.errors import FerryError
from real.robot_io import GroundTruth
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]

#: Motor of every joint of Unitree's quadrupeds, by the names of their descriptions (Go2, B2): right
#: before left, front before rear; hip, thigh, calf.
QUADRUPED = {
    f"{leg}_{part}_joint": 3 * i + k
    for i, leg in enumerate(("FR", "FL", "RR", "RL"))
    for k, part in enumerate(("hip", "thigh", "calf"))
}


@dataclass(frozen=True)
class LowState:
    """What the robot reports.

    Attributes:
        received_ns: time of reception, steady [ns].
        tick: the robot's own counter of milliseconds.
        q: ``[20]`` by motor [rad].
        dq: ``[20]`` [rad/s].
        tau: ``[20]`` estimated [N m].
        temperature: ``[20]`` [°C].
        quat_wb: ``[4]`` wxyz.
        gyro_b: ``[3]`` [rad/s].
        acc_b: ``[3]`` [m/s^2].
        voltage: of the battery [V].
    """

    received_ns: int
    tick: int
    q: Array
    dq: Array
    tau: Array
    temperature: Array
    quat_wb: Array
    gyro_b: Array
    acc_b: Array
    voltage: float


class Channel(Protocol):
    """The way to a robot; :class:`SdkChannel` is the real one."""

    def active_mode(self) -> str:
        """Name of the robot's own controller that is active, or nothing."""
        ...

    def send(self, command: NDArray[Any], data: bytes) -> None:
        """Send one sealed command, given as fields and as bytes."""
        ...

    def latest(self) -> LowState | None:
        """The newest state, None before the first. Never waits."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class UnitreeRobot:
    """A quadruped by low-level commands; see the module.

    Args:
        robot: joints, gains, damping.
        network: network interface to the robot, e.g. ``eth0``; empty: found by the SDK.
        motors: motor of every joint, by name; those of Unitree's own descriptions if None.
        period_s: how often to be called [s]; 2 ms is what the public examples use.
        command_timeout_s: after how long without a command the motors stop, as measured [s].
        timeout_s: how long :meth:`start` waits for a state [s].
        channel: another way to a robot than the SDK's.

    Raises:
        FerryError: a joint without a motor, or two with the same.
    """

    simulated: bool = False

    def __init__(
        self,
        robot: RobotSpec,
        *,
        network: str = "",
        motors: Mapping[str, int] | None = None,
        period_s: float = 0.002,
        command_timeout_s: float | None = None,
        timeout_s: float = 5.0,
        channel: Channel | None = None,
    ) -> None:
        self.period_s: float = period_s
        self.command_timeout_s: float | None = command_timeout_s
        self._motors = _motors_of(robot, QUADRUPED if motors is None else motors)
        self._network = network
        self._timeout_s = timeout_s
        self._channel = channel
        self._damping = JointCommand.damping(
            np.zeros(1, dtype=np.int64), len(robot.joints), damping_kd=robot.damping_kd
        )
        self._command = new_command()
        self._started = False
        self._newest: LowState | None = None

    def start(self) -> RobotState:
        """Connect and return the first state; nothing is commanded.

        Raises:
            FerryError: the SDK is missing, the robot's own controller is active, or no state comes.
        """
        channel = self._channel = self._channel or SdkChannel(self._network)
        mode = channel.active_mode()
        if mode:
            raise FerryError(
                f"the robot's own controller {mode!r} is active and would command the same motors: "
                "lay the robot down and release the mode (app or MotionSwitcherClient.ReleaseMode)"
            )
        deadline = time.monotonic() + self._timeout_s
        while channel.latest() is None:
            if time.monotonic() > deadline:
                raise FerryError(
                    f"no state from the robot within {self._timeout_s:g} s: is it on, and is the "
                    f"network {self._network or '(found by itself)'!r} the one it is on?"
                )
            time.sleep(0.005)
        self._started = True
        return self._state(channel)

    def exchange(self, command: JointCommand) -> RobotState:
        """Send one command with its gains, return the newest state.

        Raises:
            FerryError: a number that is not finite, or :meth:`start` was not called.
        """
        if not self._started or self._channel is None:
            raise FerryError("exchange() before start()")
        self._send(self._channel, command)
        return self._state(self._channel)

    def ground_truth(self) -> GroundTruth | None:
        """None: nobody knows it."""
        return None

    def close(self) -> None:
        """Damp once more and release the connection; may be called twice."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        try:
            if self._started:
                self._send(channel, self._damping)
        finally:
            self._started = False
            channel.close()

    def _send(self, channel: Channel, command: JointCommand) -> None:
        fields = {
            "q": command.q_des,
            "dq": command.dq_des,
            "tau": command.tau_ff,
            "kp": command.kp,
            "kd": command.kd,
        }
        motors = self._command["motor_cmd"]
        for name, values in fields.items():
            if not np.isfinite(values).all():
                raise FerryError(f"Unitree: {name} of a command is not finite")
            motors[name][self._motors] = values[0]
        channel.send(self._command, seal(self._command))

    def _state(self, channel: Channel) -> RobotState:
        """The newest state in joint order. A counter that stands still makes it an old one."""
        found = channel.latest()
        if found is not None and (self._newest is None or found.tick != self._newest.tick):
            self._newest = found
        state = self._newest
        if state is None:
            raise FerryError("no state from the robot")
        pick = self._motors
        return RobotState(
            stamp_ns=np.array([state.received_ns], dtype=np.int64),
            q=state.q[pick][None],
            dq=state.dq[pick][None],
            tau=state.tau[pick][None],
            quat_wb=state.quat_wb[None].copy(),
            gyro_b=state.gyro_b[None].copy(),
            acc_b=state.acc_b[None].copy(),
            temperature=state.temperature[pick][None],
            voltage=np.array([state.voltage]),
        )


class SdkChannel:
    """Unitree's Python SDK: topics ``rt/lowcmd`` and ``rt/lowstate``.

    Args:
        network: network interface; empty: found by the SDK.

    Raises:
        FerryError: the SDK is not installed or finds no network.
    """

    def __init__(self, network: str) -> None:
        try:
            core: Any = importlib.import_module("unitree_sdk2py.core.channel")
            kinds: Any = importlib.import_module("unitree_sdk2py.idl.unitree_go.msg.dds_")
            defaults: Any = importlib.import_module("unitree_sdk2py.idl.default")
            name = "unitree_sdk2py.comm.motion_switcher.motion_switcher_client"
            switcher: Any = importlib.import_module(name)
        except ImportError as error:
            raise FerryError(
                f"Unitree's Python SDK cannot be imported ({error}): install unitree_sdk2py from "
                "github.com/unitreerobotics/unitree_sdk2_python"
            ) from error
        try:
            core.ChannelFactoryInitialize(0, *([network] if network else []))
        except Exception as error:  # what the SDK raises is a bare Exception
            raise FerryError(f"Unitree: network {network!r}: {error}") from error
        self._latest: LowState | None = None
        self._message: Any = defaults.unitree_go_msg_dds__LowCmd_()
        self._switcher: Any = switcher.MotionSwitcherClient()
        self._switcher.SetTimeout(5.0)
        self._switcher.Init()
        self._out: Any = core.ChannelPublisher("rt/lowcmd", kinds.LowCmd_)
        self._out.Init()
        self._in: Any = core.ChannelSubscriber("rt/lowstate", kinds.LowState_)
        on_state: Callable[[Any], None] = self._on_state
        self._in.Init(on_state, 1)

    def active_mode(self) -> str:
        """As the motion switcher says.

        Raises:
            FerryError: it does not answer: then nobody knows who else commands.
        """
        code, answer = self._switcher.CheckMode()
        if code != 0 or answer is None:
            raise FerryError(f"Unitree: the motion switcher does not answer (code {code})")
        return str(answer.get("name") or "")

    def send(self, command: NDArray[Any], data: bytes) -> None:
        """Fill the SDK's message; its middleware makes other bytes, the check sum is of ours.

        Raises:
            FerryError: it was not sent; the SDK prints why and returns False.
        """
        del data
        fill_message(self._message, command)
        if not self._out.Write(self._message):
            raise FerryError("Unitree: the SDK could not send a command on rt/lowcmd")

    def latest(self) -> LowState | None:
        """The newest state."""
        return self._latest

    def close(self) -> None:
        """Close both topics."""
        self._in.Close()
        self._out.Close()

    def _on_state(self, message: Any) -> None:
        self._latest = read_message(message, time.monotonic_ns())


def fill_message(message: Any, command: NDArray[Any]) -> None:
    """Copy a sealed command into a LowCmd of the SDK, field by field."""
    message.head = [int(byte) for byte in command["head"]]
    message.level_flag, message.gpio = int(command["level_flag"]), int(command["gpio"])
    for out, motor in zip(message.motor_cmd, command["motor_cmd"].tolist(), strict=True):
        out.mode, out.q, out.dq, out.tau, out.kp, out.kd = motor
    message.crc = int(command["crc"])


def read_message(message: Any, received_ns: int) -> LowState:
    """A LowState of the SDK as arrays."""
    motors, imu = message.motor_state, message.imu_state
    return LowState(
        received_ns=received_ns,
        tick=int(message.tick),
        q=np.array([m.q for m in motors], dtype=np.float64),
        dq=np.array([m.dq for m in motors], dtype=np.float64),
        tau=np.array([m.tau_est for m in motors], dtype=np.float64),
        temperature=np.array([m.temperature for m in motors], dtype=np.float64),
        quat_wb=np.array(imu.quaternion, dtype=np.float64),
        gyro_b=np.array(imu.gyroscope, dtype=np.float64),
        acc_b=np.array(imu.accelerometer, dtype=np.float64),
        voltage=float(message.power_v),
    )


def _motors_of(robot: RobotSpec, motors: Mapping[str, int]) -> NDArray[np.intp]:
    """Motor of every joint, in the robot's order."""
    wrong = [f"{j.name!r} is passive" for j in robot.joints if not j.actuated]
    wrong += [f"{n!r} has no motor" for n in robot.joint_names if n not in motors]
    if not wrong:
        found = [motors[n] for n in robot.joint_names]
        wrong += [
            f"motor {m} is not one of 0 to {MOTORS - 1}" for m in found if not 0 <= m < MOTORS
        ]
        wrong += [
            f"motor {m} moves two joints" for m in sorted({m for m in found if found.count(m) > 1})
        ]
        if not wrong:
            return np.array(found, dtype=np.intp)
    raise FerryError(
        f"Unitree: joints of {robot.name!r}: {', '.join(wrong)}; give every joint its motor with "
        "--option motors={name: number, ...}"
    )
