"""What the middleware tells of a topic beside its messages: QoS events, and what follows of them.

* matched: who published or listened is gone, in order or by its lease: safe stop, at once.
* deadline, liveliness: a publisher that was there is late or not alive. That wakes the watchdog,
  which looks at the ages on the node's own clock: after a pause of this very process all others
  look dead.
* incompatible: somebody publishes what this node cannot hear, or listens for what it does not
  send. Named with node and policy, and nobody arms until that endpoint is gone.

Command topics carry a deadline and a lease for that: publishers offer them, listeners ask for them.
A publisher of another make must offer as much; all other topics take either side as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import (
    HistoryPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)

#: Control periods within which a command topic has its next message.
OFFERED_PERIODS = 2.0
#: How often a publisher's process says that it lives, and after which silence it is not [s].
OFFERED_LEASE_S, ASKED_LEASE_S = 1.0, 2.0


def offered(period_s: float) -> Any:
    """QoS of a publisher on a command topic, for a control period [s]."""
    return _command(ReliabilityPolicy.RELIABLE, OFFERED_PERIODS * period_s, OFFERED_LEASE_S)


def asked(period_s: float, timeout_s: float) -> Any:
    """QoS of a listener to a command topic whose watchdog waits ``timeout_s`` [s]."""
    # A request tighter than the offer would match nobody.
    deadline_s = max(OFFERED_PERIODS * period_s, timeout_s)
    return _command(ReliabilityPolicy.BEST_EFFORT, deadline_s, ASKED_LEASE_S)


def _command(reliability: Any, deadline_s: float, lease_s: float) -> Any:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=reliability,
        deadline=Duration(nanoseconds=round(deadline_s * 1e9)),
        liveliness=LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Duration(nanoseconds=round(lease_s * 1e9)),
    )


class Links:
    """The topics that a node cannot do without.

    Args:
        node: whose topics they are.
        on_loss: called with what is gone.
        on_late: called when a publisher is late or not alive.
    """

    def __init__(
        self,
        node: Node,
        *,
        on_loss: Callable[[str], None] = lambda why: None,
        on_late: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._on_loss, self._on_late = on_loss, on_late
        #: Topics that somebody is on with another QoS, by whether we listen, and our own.
        self._suspects: dict[tuple[bool, str], Any] = {}
        self._alone: dict[str, str] = {}
        self._dead: dict[str, int] = {}
        #: How often what happened, for diagnostics.
        self.counts: Counter[str] = Counter()

    def heard(self, topic: str, qos: Any) -> Any:
        """Event callbacks of a subscription with this QoS."""

        def late(event: Any) -> None:
            self.counts[f"deadline missed {topic}"] += event.total_count_change
            self._on_late()

        def lives(event: Any) -> None:
            self._dead[topic] = event.not_alive_count
            if event.not_alive_count_change > 0:
                self.counts[f"liveliness lost {topic}"] += 1
                self._on_late()

        def misfit(_event: Any) -> None:
            self._suspect(topic, qos, listening=True)

        def matched(event: Any) -> None:
            self._matched(topic, event, "publishes")

        return SubscriptionEventCallbacks(
            deadline=late, liveliness=lives, incompatible_qos=misfit, matched=matched
        )

    def sent(self, topic: str, qos: Any) -> Any:
        """Event callbacks of a publisher with this QoS."""

        def misfit(_event: Any) -> None:
            self._suspect(topic, qos, listening=False)

        def matched(event: Any) -> None:
            self._matched(topic, event, "listens to")

        return PublisherEventCallbacks(incompatible_qos=misfit, matched=matched)

    def problems(self) -> list[str]:
        """What forbids arming now, named."""
        out: list[str] = []
        for (listening, topic), qos in self._suspects.items():
            out += self._incompatible(topic, qos, listening)
        out += [f"nobody {does} {topic} any more" for topic, does in self._alone.items()]
        out += [f"the publisher of {t} is not alive" for t, count in self._dead.items() if count]
        return out

    def _matched(self, topic: str, event: Any, does: str) -> None:
        if event.current_count:
            self._alone.pop(topic, None)
        elif event.current_count_change < 0:
            self._alone[topic] = does
            self.counts[f"match lost {topic}"] += 1
            self._on_loss(f"nobody {does} {topic} any more")

    def _suspect(self, topic: str, qos: Any, *, listening: bool) -> None:
        self._suspects[(listening, topic)] = qos
        self.counts[f"incompatible QoS {topic}"] += 1
        for problem in self._incompatible(topic, qos, listening):
            self._node.get_logger().error(problem)

    def _incompatible(self, topic: str, qos: Any, listening: bool) -> list[str]:
        """The endpoints on the topic that do not fit; looked up, since no event tells of an end."""
        node = self._node
        look = (
            node.get_publishers_info_by_topic if listening else node.get_subscriptions_info_by_topic
        )
        out: list[str] = []
        for other in look(topic):
            theirs = other.qos_profile
            found, why = qos_check_compatible(*((theirs, qos) if listening else (qos, theirs)))
            if found == QoSCompatibility.ERROR:
                who = f"{'publisher' if listening else 'listener'} {other.node_name!r}"
                out.append(f"{topic}: incompatible QoS of {who}: {why.strip().rstrip(';')}")
        return out
