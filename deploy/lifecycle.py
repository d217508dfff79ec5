"""Managed nodes: the states of a ROS 2 lifecycle, and what ours promise in each of them.

```
unconfigured -- configure --> inactive -- activate --> active
      ^                        |    ^                    |
      +-------- cleanup -------+    +---- deactivate ----+      shutdown, from any: the end
```

* configure: bundle, contract and driver are read and opened. What is wrong is said by name, and
  the node is unconfigured again, with nothing left open.
* active: the node may act. A node that is not active moves nothing and lets nobody arm.
* deactivate, cleanup, shutdown and errors: the safe stop first, then the rest.

A node goes to active by itself. With ``autostart: false`` a lifecycle manager does it, by the
services that every managed node of ROS 2 has (``ros2 lifecycle set /safety_node configure``).

All publishers here are plain ones: a lifecycle publisher drops what is sent while its node is
inactive, and that would be the safe stop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNodeMixin, TransitionCallbackReturn

from deploy.node_base import FerryNode
from deploy.records import ERROR, WARN
from real.errors import FerryError

logger = logging.getLogger(__name__)

#: From shutdown to the end of the process [s], so that the answer reaches who asked for it.
END_S = 0.25


class ManagedNode(LifecycleNodeMixin, FerryNode):
    """A node with a lifecycle. A subclass says what its transitions do; see the module.

    Its constructor declares parameters and may offer services, but opens nothing.

    Args:
        name: see :class:`FerryNode`.

    Attributes:
        active: whether it may act.
        phase: ``unconfigured``, ``inactive``, ``active`` or ``finalized``.
    """

    def __init__(self, name: str) -> None:
        FerryNode.__init__(self, name)
        LifecycleNodeMixin.__init__(self)
        self._autostart = self.flag(
            "autostart", True, "go to active by itself; false: a lifecycle manager does it"
        )
        self.active = False
        self.phase = "unconfigured"
        self._because = "nobody has configured it yet"
        self._error: Exception | None = None
        self._starting = False
        self._ends_s: float | None = None
        #: Subscriptions, timers and publishers that stay when the node is cleaned up.
        self._kept: list[Any] = []
        self._answer_what_cannot_be()
        self.every(1.0, self._tell)

    # ------------------------------------------------------------ what a subclass says

    def configure(self) -> None:
        """Read and open everything.

        Raises:
            FerryError: what is wrong; what was opened is closed by :meth:`cleanup`.
        """

    def activate(self) -> None:
        """Begin to act.

        Raises:
            FerryError: why that must not be; the node stays inactive.
        """

    def deactivate(self) -> None:
        """Command the safe stop; :attr:`active` is off already."""

    def cleanup(self) -> None:
        """Close what :meth:`configure` opened, also where it did not get to its end.

        Subscriptions, timers and publishers that it made are destroyed afterwards, but for those
        given to :meth:`keep`.
        """

    def describe(self) -> None:
        """Publish diagnostics of an active node; once a second."""

    # ------------------------------------------------------------ what a subclass uses

    @property
    def inactive(self) -> str:
        """Why this node may not act, or nothing."""
        return "" if self.active else f"{self.get_name()} is {self.phase}: {self._because}"

    @property
    def configured(self) -> bool:
        """Whether what :meth:`configure` opens is open: not before it, nor after the end."""
        return self.phase in ("inactive", "active")

    def given(self, name: str) -> str:
        """A text parameter that must be there.

        Raises:
            FerryError: it is empty.
        """
        value = self.get_parameter(name).value
        if not value:
            doc = self.describe_parameter(name).description
            raise FerryError(
                f"{self.get_name()}: parameter {name} is missing ({doc}); "
                f"give --ros-args -p {name}:=..."
            )
        return str(value)

    def keep(self, entity: Any) -> Any:
        """Have a publisher or timer outlive :meth:`cleanup`; returns it."""
        self._kept.append(entity)
        return entity

    def give_up(self, entity: Any) -> None:
        """Destroy a publisher or timer that was kept."""
        self._kept = [e for e in self._kept if e is not entity]
        if entity in list(self.timers):
            self.destroy_timer(entity)
        else:
            self.destroy_publisher(entity)

    # ------------------------------------------------------------ transitions

    def start(self) -> None:
        """Go to active, unless that is left to a manager.

        Raises:
            Exception: what a transition failed by; a FerryError where the user can mend it.
        """
        if not self._autostart:
            self.get_logger().info("unconfigured: autostart is off, a lifecycle manager configures")
            return
        self._starting = True
        for trigger in (self.trigger_configure, self.trigger_activate):
            if trigger() != TransitionCallbackReturn.SUCCESS:
                raise self._error or FerryError(self.inactive)
        self._starting = False

    def on_configure(self, state: Any) -> TransitionCallbackReturn:
        """Transition of the state machine: :meth:`configure`."""
        self._kept = self._entities()
        result = self._attempt("configure", self.configure, then="inactive", why="not activated")
        if result == TransitionCallbackReturn.FAILURE:
            try:
                self._release()
            except Exception:
                logger.exception("cleaning up after a configure that failed")
                return TransitionCallbackReturn.ERROR
        return result

    def on_activate(self, state: Any) -> TransitionCallbackReturn:
        """Transition of the state machine: :meth:`activate`."""
        result = self._attempt("activate", self.activate, then="active", why="")
        self.active = result == TransitionCallbackReturn.SUCCESS
        return result

    def on_deactivate(self, state: Any) -> TransitionCallbackReturn:
        """Transition of the state machine: :meth:`deactivate`."""
        self.active = False
        return self._attempt(
            "deactivate", self.deactivate, then="inactive", why="deactivated", may_refuse=False
        )

    def on_cleanup(self, state: Any) -> TransitionCallbackReturn:
        """Transition of the state machine: :meth:`cleanup`."""
        return self._attempt(
            "clean up", self._release, then="unconfigured", why="cleaned up", may_refuse=False
        )

    def on_shutdown(self, state: Any) -> TransitionCallbackReturn:
        """Transition of the state machine: the safe stop, then the end of the process."""
        self.active = False
        self._ends_s = time.monotonic() + END_S
        # Of a node that nobody ever configured everything stays: it says that it is shut down.
        self._kept = self._kept or self._entities()
        return self._attempt(
            "shut down", self._stop_and_release, then="finalized", why="shut down", may_refuse=False
        )

    def on_error(self, state: Any) -> TransitionCallbackReturn:
        """Whatever a transition died of: the safe stop, everything closed, unconfigured.

        The reason stays in the diagnostics. Where even this fails, the node is finalized, and its
        process ends.
        """
        self.active = False
        try:
            self._stop_and_release()
        except Exception:
            logger.exception("%s: the safe stop after an error failed", self.get_name())
            self.phase, self._ends_s = "finalized", time.monotonic()
            return TransitionCallbackReturn.FAILURE
        self.phase = "unconfigured"
        return TransitionCallbackReturn.SUCCESS

    def _attempt(
        self, name: str, step: Callable[[], None], *, then: str, why: str, may_refuse: bool = True
    ) -> TransitionCallbackReturn:
        """One transition: say what it came to. Nothing that a step raises is lost."""
        try:
            step()
        # rclpy would turn it into an error without a word.
        except Exception as error:
            self._error = error
            refused = may_refuse and isinstance(error, FerryError)
            kind = "" if isinstance(error, FerryError) else f"{type(error).__name__}: "
            self._because = f"{name} failed: {kind}{error}"
            if not self._starting:
                self.get_logger().error(self._because)
                if not isinstance(error, FerryError):
                    logger.error("%s failed", name, exc_info=error)
                self.report("refused", reason=self._because)
            self._tell()
            failure, fault = TransitionCallbackReturn.FAILURE, TransitionCallbackReturn.ERROR
            return failure if refused else fault
        self._error, self.phase, self._because = None, then, why
        if not self._starting:
            self.get_logger().info(f"{then}{': ' if why else ''}{why}")
        if then != "active":
            self._tell()
        return TransitionCallbackReturn.SUCCESS

    # ------------------------------------------------------------ the way down

    def _stop_and_release(self) -> None:
        if self.configured:
            self.deactivate()
        self._release()

    def _release(self) -> None:
        self.cleanup()
        keep = set(map(id, self._kept))
        for entities, destroy in (
            (self.subscriptions, self.destroy_subscription),
            (self.timers, self.destroy_timer),
            (self.publishers, self.destroy_publisher),
        ):
            for entity in [e for e in entities if id(e) not in keep]:
                destroy(entity)

    def _entities(self) -> list[Any]:
        return [*self.subscriptions, *self.timers, *self.publishers]

    def _answer_what_cannot_be(self) -> None:
        """A request for a transition that the state does not have is refused, not an exception.

        rclpy lets it escape from the service, which would end the node, and with it the robot's
        walk, because somebody activated it twice.
        """
        service = self._service_change_state
        change = service.callback

        def answer(request: Any, response: Any) -> Any:
            try:
                return change(request, response)
            # RCLError, which no public module names.
            except Exception as error:
                wanted = request.transition.label or request.transition.id
                self.get_logger().error(f"transition {wanted} refused in {self.phase}: {error}")
                response.success = False
                return response

        service.callback = answer

    # ------------------------------------------------------------ reports and end

    def _tell(self) -> None:
        if self.active:
            self.describe()
        else:
            level = WARN if self._error is None else ERROR
            self.diagnose({}, level=level, message=f"{self.phase}: {self._because}")

    @property
    def exit_code(self) -> int | None:
        """0 once it is finalized by a shutdown, 1 by an error that nothing could be done about."""
        if self._ends_s is None or time.monotonic() < self._ends_s:
            return None
        return 0 if self._error is None else 1
