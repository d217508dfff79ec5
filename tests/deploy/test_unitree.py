"""The Unitree driver against a fake that takes its bytes apart by the documented layout alone.

No such robot was there: what these tests cannot show is said in the driver.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from deploy.plugins.unitree import (
    QUADRUPED,
    LowState,
    SdkChannel,
    UnitreeRobot,
    fill_message,
    read_message,
)
from deploy.plugins.unitree_wire import crc32_words, new_command, seal
from real.errors import FerryError
from real.robot_io import RobotIO
from real.signals import JointCommand
from real.spec import load_robot

MOTOR = "B3x5f3I"  # mode, q, dq, tau, kp, kd, reserved
LAYOUT = "<4B4IH2x" + MOTOR * 20 + "4B" + "55Bx2I"


def slow_crc(data):
    """Bit by bit, as the documentation tells it."""
    crc = 0xFFFFFFFF
    for (word,) in struct.iter_unpack("<I", data):
        for bit in range(31, -1, -1):
            top = (crc >> 31) ^ (word >> bit & 1)
            crc = (crc << 1 & 0xFFFFFFFF) ^ (0x04C11DB7 if top else 0)
    return crc


class Fake:
    """Motors that go where they are told, if the check sum is right; counts what it refused."""

    def __init__(self, *, mode=""):
        self.mode, self.motors, self.refused, self.closed = mode, {}, 0, 0
        self.q = np.linspace(-1.0, 1.0, 20)
        self.tick = 1
        self.there = True

    def active_mode(self):
        return self.mode

    def send(self, command, data):
        fields = struct.unpack(LAYOUT, data)
        if fields[-1] != slow_crc(data[:-4]) or fields[:3] != (0xFE, 0xEF, 0xFF):
            self.refused += 1
            return
        assert command.tobytes() == data
        for i in range(20):
            self.motors[i] = fields[9 + 9 * i : 15 + 9 * i]  # mode, q, dq, tau, kp, kd
        self.tick += 1

    def latest(self):
        if not self.there:
            return None
        row = np.arange(20.0)
        return LowState(
            received_ns=1_000_000 * self.tick + 7,
            tick=self.tick,
            q=self.q,
            dq=row,
            tau=-row,
            temperature=row + 30.0,
            quat_wb=np.array([0.6, 0.0, 0.8, 0.0]),
            gyro_b=np.array([1.0, 2.0, 3.0]),
            acc_b=np.array([0.1, 0.2, 9.8]),
            voltage=28.5,
        )

    def close(self):
        self.closed += 1


@pytest.fixture(scope="module")
def spec():
    """A robot of Unitree's joint names, in an order of its own and gains that all differ."""
    a1 = load_robot("a1")
    names = list(QUADRUPED)[::-1]
    names = [*names[5:], *names[:5]]
    joints = tuple(
        replace(joint, name=name, kp=20.0 + i, kd=0.5 + 0.25 * i)
        for i, (joint, name) in enumerate(zip(a1.joints, names, strict=True))
    )
    return replace(a1, joints=joints)


def command(spec, q):
    stamp = np.zeros(1, dtype=np.int64)
    gains = {"kp": spec.actuated_array("kp"), "kd": spec.actuated_array("kd")}
    return JointCommand.position(stamp, np.asarray(q, dtype=np.float64)[None], **gains)


def test_the_check_sum_is_the_documented_one():
    rng = np.random.default_rng(3)
    for words in (1, 2, 202):
        data = rng.bytes(4 * words)
        assert crc32_words(data) == slow_crc(data)
    # CRC-32/MPEG-2 of four zero bytes.
    assert crc32_words(bytes(4)) == 0xC704DD7B


def test_a_new_command_drives_no_motor_and_has_the_documented_size():
    data = seal(new_command())
    assert len(data) == struct.calcsize(LAYOUT) == 812
    fields = struct.unpack(LAYOUT, data)
    assert fields[:4] == (0xFE, 0xEF, 0xFF, 0)
    for i in range(20):
        mode, q, dq, tau, kp, kd = fields[9 + 9 * i : 15 + 9 * i]
        assert (mode, tau, kp, kd) == (1, 0.0, 0.0, 0.0)
        assert q == pytest.approx(2.146e9) and dq == 16000.0
    assert fields[-1] == slow_crc(data[:-4])


def test_every_field_reaches_its_motor_and_every_state_its_joint(spec):
    fake = Fake()
    robot = UnitreeRobot(spec, channel=fake, command_timeout_s=0.05)
    assert isinstance(robot, RobotIO) and not robot.simulated
    assert robot.command_timeout_s == 0.05
    state = robot.start()
    assert not fake.motors  # nothing was commanded
    motors = [QUADRUPED[name] for name in spec.joint_names]
    assert motors != sorted(motors)
    np.testing.assert_array_equal(state.q[0], fake.q[motors])
    np.testing.assert_array_equal(state.dq[0], motors)
    np.testing.assert_array_equal(state.tau[0], [-m for m in motors])
    np.testing.assert_array_equal(state.temperature[0], [m + 30.0 for m in motors])
    np.testing.assert_array_equal(state.quat_wb[0], [0.6, 0.0, 0.8, 0.0])
    np.testing.assert_array_equal(state.gyro_b[0], [1.0, 2.0, 3.0])
    assert state.voltage[0] == 28.5

    targets = np.linspace(-0.4, 0.7, 12)
    wanted = replace(
        command(spec, targets),
        dq_des=np.arange(12.0)[None],
        tau_ff=np.arange(12.0)[None] * 0.5,
    )
    robot.exchange(wanted)
    assert fake.refused == 0
    for i, joint in enumerate(spec.joints):
        got = fake.motors[QUADRUPED[joint.name]]
        assert got == pytest.approx((1, targets[i], i, 0.5 * i, joint.kp, joint.kd), rel=1e-6)
    for motor in range(12, 20):
        assert fake.motors[motor][4:] == (0.0, 0.0)


def test_the_order_of_motors_is_right_before_left_and_front_before_rear():
    by_motor = sorted(QUADRUPED, key=QUADRUPED.__getitem__)
    assert by_motor[:4] == ["FR_hip_joint", "FR_thigh_joint", "FR_calf_joint", "FL_hip_joint"]
    assert by_motor[6] == "RR_hip_joint" and by_motor[11] == "RL_calf_joint"


def test_damping_has_no_stiffness_and_closing_damps_once_more(spec):
    fake = Fake()
    robot = UnitreeRobot(spec, channel=fake)
    robot.start()
    robot.exchange(command(spec, np.zeros(12)))
    robot.close()
    robot.close()
    assert fake.closed == 1
    for motor in range(12):
        _, _, dq, tau, kp, kd = fake.motors[motor]
        assert (dq, tau, kp) == (0.0, 0.0, 0.0)
        assert kd == pytest.approx(spec.damping_kd)


def test_a_counter_that_stands_still_makes_the_state_old(spec):
    fake = Fake()
    robot = UnitreeRobot(spec, channel=fake)
    first = robot.start().stamp_ns[0]
    fake.send = lambda command, data: None  # the robot hangs, its last message comes again
    again = fake.latest()
    fake.latest = lambda: replace(again, received_ns=again.received_ns + 10**9)
    assert robot.exchange(command(spec, np.zeros(12))).stamp_ns[0] == first


def test_another_controller_silence_and_numbers_that_are_none_are_refused(spec):
    with pytest.raises(FerryError, match=r"'normal' is active.*release the mode"):
        UnitreeRobot(spec, channel=Fake(mode="normal")).start()
    silent = Fake()
    silent.there = False
    with pytest.raises(FerryError, match=r"no state from the robot within 0\.02 s"):
        UnitreeRobot(spec, channel=silent, timeout_s=0.02).start()
    robot = UnitreeRobot(spec, channel=Fake())
    with pytest.raises(FerryError, match=r"before start"):
        robot.exchange(command(spec, np.zeros(12)))
    robot.start()
    with pytest.raises(FerryError, match="q of a command is not finite"):
        robot.exchange(command(spec, np.full(12, np.inf)))
    assert UnitreeRobot(spec, channel=Fake()).command_timeout_s is None


def test_joints_and_motors_are_matched_by_name(spec):
    with pytest.raises(FerryError, match=r"'FR_upper_joint' has no motor.*--option motors"):
        UnitreeRobot(load_robot("a1"), channel=Fake())
    twice = {**QUADRUPED, "FR_hip_joint": 3}
    with pytest.raises(FerryError, match="motor 3 moves two joints"):
        UnitreeRobot(spec, motors=twice, channel=Fake())
    with pytest.raises(FerryError, match="motor 20 is not one of"):
        UnitreeRobot(spec, motors={**QUADRUPED, "FR_hip_joint": 20}, channel=Fake())
    with pytest.raises(FerryError, match="is passive"):
        UnitreeRobot(load_robot("cartpole"), channel=Fake())


def test_the_sdks_messages_are_filled_and_read_field_by_field(spec):
    made = new_command()
    made["motor_cmd"]["kp"] = np.arange(20)
    made["motor_cmd"]["q"] = np.arange(20) * 0.5
    seal(made)
    motors = [SimpleNamespace(mode=0, q=0, dq=0, tau=0, kp=0, kd=0) for _ in range(20)]
    message = SimpleNamespace(head=[0, 0], level_flag=0, gpio=0, motor_cmd=motors, crc=0)
    fill_message(message, made)
    assert message.head == [0xFE, 0xEF] and message.crc == int(made["crc"])
    assert [m.kp for m in motors] == list(range(20))
    assert [m.q for m in motors] == [0.5 * i for i in range(20)]
    assert {m.dq for m in motors} == {16000.0}

    reported = SimpleNamespace(
        tick=9,
        motor_state=[SimpleNamespace(q=i, dq=-i, tau_est=2 * i, temperature=40) for i in range(20)],
        imu_state=SimpleNamespace(
            quaternion=[1, 0, 0, 0], gyroscope=[1, 2, 3], accelerometer=[4, 5, 6]
        ),
        power_v=27.0,
    )
    state = read_message(reported, 123)
    assert (state.received_ns, state.tick, state.voltage) == (123, 9, 27.0)
    np.testing.assert_array_equal(state.tau, 2.0 * np.arange(20))
    np.testing.assert_array_equal(state.acc_b, [4.0, 5.0, 6.0])


def sdk_command():
    """What the SDK makes for a LowCmd: every field of the public IDL, empty."""
    motors = [
        SimpleNamespace(mode=0, q=0.0, dq=0.0, tau=0.0, kp=0.0, kd=0.0, reserve=[0, 0, 0])
        for _ in range(20)
    ]
    return SimpleNamespace(
        head=[0, 0],
        level_flag=0,
        frame_reserve=0,
        sn=[0, 0],
        version=[0, 0],
        bandwidth=0,
        motor_cmd=motors,
        bms_cmd=SimpleNamespace(off=0, reserve=[0, 0, 0]),
        wireless_remote=[0] * 40,
        led=[0] * 12,
        fan=[0, 0],
        gpio=0,
        reserve=0,
        crc=0,
    )


class FakeSdk:
    """The modules of the SDK that the channel uses, and what it does with them."""

    def __init__(self, monkeypatch):
        self.sent, self.works, self.answer = [], True, (0, {"name": "", "form": "0"})
        sdk = self

        class Topic:
            def __init__(self, name, kind):
                self.name, self.kind = name, kind

            def init(self, handler=None, _queue=0):
                if self.kind == "state":
                    sdk.hear = handler

            def write(self, message):
                values = [*message.head, message.level_flag, message.frame_reserve]
                values += [*message.sn, *message.version, message.bandwidth]
                for m in message.motor_cmd:
                    values += [m.mode, m.q, m.dq, m.tau, m.kp, m.kd, *m.reserve]
                values += [message.bms_cmd.off, *message.bms_cmd.reserve]
                values += [*message.wireless_remote, *message.led, *message.fan, message.gpio]
                data = struct.pack(LAYOUT, *values, message.reserve, 0)
                sdk.sent.append((self.name, self.kind, message.crc, slow_crc(data[:-4])))
                return sdk.works

            def close(self):
                sdk.sent.append((self.name, "closed"))

            Init, Write, Close = init, write, close

        class Switcher:
            def set_timeout(self, seconds): ...

            def init(self): ...

            def check_mode(self):
                return sdk.answer

            SetTimeout, Init, CheckMode = set_timeout, init, check_mode

        begin = SimpleNamespace(ChannelFactoryInitialize=self.begin)
        begin.ChannelPublisher = begin.ChannelSubscriber = Topic
        modules = {
            "core.channel": begin,
            "idl.unitree_go.msg.dds_": SimpleNamespace(LowCmd_="command", LowState_="state"),
            "idl.default": SimpleNamespace(unitree_go_msg_dds__LowCmd_=sdk_command),
            "comm.motion_switcher.motion_switcher_client": SimpleNamespace(
                MotionSwitcherClient=Switcher
            ),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, f"unitree_sdk2py.{name}", module)
        monkeypatch.setitem(sys.modules, "unitree_sdk2py", SimpleNamespace(__path__=[]))

    def begin(self, *given):
        self.began = given
        if given[-1] == "eth9":
            raise Exception("channel factory init error.")


def test_the_sdks_own_check_sum_of_what_is_sent_is_the_one_in_it(spec, monkeypatch):
    sdk = FakeSdk(monkeypatch)
    channel = SdkChannel("eth0")
    assert sdk.began == (0, "eth0")
    assert channel.active_mode() == "" and channel.latest() is None
    made = new_command()
    made["motor_cmd"]["q"][:12] = np.linspace(-1.0, 1.0, 12)
    made["motor_cmd"]["kp"][:12] = 20.0
    channel.send(made, seal(made))
    ((topic, kind, crc, computed),) = sdk.sent
    assert (topic, kind) == ("rt/lowcmd", "command")
    assert crc == computed == int(made["crc"])
    sdk.works = False
    with pytest.raises(FerryError, match="could not send a command"):
        channel.send(made, seal(made))
    sdk.answer = (3102, None)
    with pytest.raises(FerryError, match="does not answer"):
        channel.active_mode()
    channel.close()
    assert sdk.sent[-2:] == [("rt/lowstate", "closed"), ("rt/lowcmd", "closed")]
    with pytest.raises(FerryError, match="network 'eth9'"):
        SdkChannel("eth9")


def test_without_the_sdk_it_says_where_to_get_it():
    try:
        import unitree_sdk2py  # noqa: F401
    except ImportError:
        with pytest.raises(FerryError, match="install unitree_sdk2py"):
            SdkChannel("eth0")
