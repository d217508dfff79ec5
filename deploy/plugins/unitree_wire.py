"""Unitree's low-level command as bytes: layout, constants and check sum.

Written from the public description of ``unitree_go`` LowCmd (unitree_sdk2, unitree_ros2): the
fields in their order with C alignment, 812 bytes, little-endian, and a CRC-32 over all words but
the last.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Motors that a message has room for; Go2 and B2 use the first twelve.
MOTORS = 20
#: First bytes of every low-level command, and what marks it as low-level.
HEAD, LOW_LEVEL = (0xFE, 0xEF), 0xFF
#: Mode of a motor that obeys q, dq, tau, kp and kd.
SERVO = 0x01
#: Targets that switch the position and the velocity loop of a motor off.
NO_POSITION, NO_VELOCITY = 2.146e9, 16000.0

_MOTOR_CMD = np.dtype(
    {
        "names": ["mode", "q", "dq", "tau", "kp", "kd"],
        "formats": ["u1", "<f4", "<f4", "<f4", "<f4", "<f4"],
        "offsets": [0, 4, 8, 12, 16, 20],
        "itemsize": 36,  # with three reserved words
    }
)
LOW_CMD = np.dtype(
    {
        "names": ["head", "level_flag", "motor_cmd", "gpio", "crc"],
        "formats": [("u1", 2), "u1", (_MOTOR_CMD, MOTORS), "u1", "<u4"],
        "offsets": [0, 2, 24, 802, 808],
        "itemsize": 812,
    }
)
_REVERSED_BYTES = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def new_command() -> NDArray[Any]:
    """One command, shape ``()`` of :data:`LOW_CMD`, in which no motor is driven."""
    out = np.zeros((), LOW_CMD)
    out["head"] = HEAD
    out["level_flag"] = LOW_LEVEL
    motors = out["motor_cmd"]
    motors["mode"] = SERVO
    motors["q"], motors["dq"] = NO_POSITION, NO_VELOCITY
    return out


def seal(command: NDArray[Any]) -> bytes:
    """Write the check sum into a command and return its 812 bytes."""
    command["crc"] = crc32_words(command.tobytes()[:-4])
    return command.tobytes()


def crc32_words(data: bytes) -> int:
    """CRC-32 of little-endian words, each taken from its highest bit on.

    Polynomial 0x04C11DB7, start 0xFFFFFFFF, nothing reflected, nothing inverted at the end: over
    big-endian words this is CRC-32/MPEG-2. zlib's CRC has the same polynomial and start, takes
    every byte from its lowest bit on and inverts the result; so it gives the same with bits
    reversed before and after:

        crc(data) = reverse(~zlib(reverse(data)))

    Args:
        data: a multiple of four bytes.
    """
    big_endian = np.frombuffer(data, dtype="<u4").byteswap().tobytes()
    found = zlib.crc32(big_endian.translate(_REVERSED_BYTES)) ^ 0xFFFFFFFF
    return int(f"{found:032b}"[::-1], 2)
