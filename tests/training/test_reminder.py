"""A weight store that is stopped, dies and comes back: it is told the newest, and nothing twice."""

from __future__ import annotations

from training.reminder import REMIND_S, Reminder


class Post:
    """Messages that were sent, and the clock."""

    def __init__(self) -> None:
        self.now = 10.0
        self.sent: list[tuple[int, str]] = []
        self.open = 0
        self.away = False
        self.reminder = Reminder(
            self.send, answered=lambda ticket: not self.away, clock=lambda: self.now
        )

    def send(self, version: int, where: str) -> object:
        self.sent.append((version, where))
        return object()


def test_new_weights_are_told_at_once_and_again_after_a_while():
    post = Post()
    post.reminder.tend()
    assert post.sent == []  # nothing to tell
    for version in (0, 1, 2):
        post.reminder.publish(version, f"w{version}")
    assert post.sent == [(0, "w0"), (1, "w1"), (2, "w2")]
    post.now += 0.9 * REMIND_S
    post.reminder.tend()
    assert len(post.sent) == 3
    post.now += 0.2 * REMIND_S
    post.reminder.tend()
    post.reminder.tend()
    assert post.sent[3:] == [(2, "w2")]  # in case it came back empty


def test_a_store_that_is_stopped_has_one_message_to_answer_and_is_then_told_the_newest():
    post = Post()
    post.reminder.publish(0, "w0")
    post.away = True
    for version in range(1, 100):
        post.now += REMIND_S
        post.reminder.publish(version, f"w{version}")
        post.reminder.tend()
    assert post.sent == [(0, "w0")]
    post.away = False
    post.reminder.tend()  # at once, not at the next reminder
    post.reminder.tend()
    assert post.sent == [(0, "w0"), (99, "w99")]
