"""Values as YAML that every reader of ROS takes: its parameters, and the metadata of bags."""

from __future__ import annotations

import json
import re

#: What JSON may hold as it is and YAML may not: DEL and C1, among them a line's end (NEL), the two
#: other ends of lines beyond ASCII, the mark of byte order, and two characters of no meaning (YAML
#: 1.1, section 5.1, which ROS's reader follows).
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
#: Halves of a character, by which Python writes the bytes of a path that is no UTF-8.
_HALVES = re.compile("[\ud800-\udfff]")


def yaml_scalar(value: object) -> str:
    """A text, a number, true or false, nothing, or a list of them, on one line.

    JSON's values are YAML's, too, but for its escapes: what is beyond 16 bits it writes as two
    halves, each of which is no character in YAML. A half that stands alone becomes U+FFFD.

    Args:
        value: as ``json.dumps`` takes it.
    """
    text = _HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
