"""Topics that the whole cluster shares: whoever subscribes to one hears what is published from then on, on any node.

    with skate.pubsub.subscribe("progress") as messages:
        train.remote()                                  # calls skate.pubsub.publish("progress", b"10 %")
        for message in messages:
            print(message.decode())

All subscribers of a topic hear its messages in the same order. Each namespace has topics of its own. Messages are bytes
of at most a megabyte: what is larger belongs into an object. A subscriber that does not keep up hears the newest, and
`Subscription.missed` counts the others.
"""

from __future__ import annotations

from skate._wire.messages import Topic
from skate._worker.current import get_runtime
from skate._worker.subscriptions import Subscription

__all__ = ["Subscription", "publish", "subscribe"]

MESSAGE_BYTES_MAX = 1 << 20


def publish(topic: str, message: bytes, *, namespace: str | None = None) -> int:
    """Tell all who are subscribed to the topic; how many processes these are."""
    if not isinstance(message, bytes):
        raise TypeError(
            f"pubsub.publish({topic!r}, …): the message is of type {type(message).__name__}; it may be bytes."
        )
    if len(message) > MESSAGE_BYTES_MAX:
        raise ValueError(
            f"pubsub.publish({topic!r}, …): the message has {len(message)} bytes, and {MESSAGE_BYTES_MAX} is the most. "
            "Put it into the object store with skate.put(), and publish where it can be had."
        )
    space = _namespace("publish", topic, namespace)
    told: int = get_runtime().request(lambda number: Topic(number, "publish", space, topic, message)).body
    return told


def subscribe(topic: str, *, namespace: str | None = None) -> Subscription:
    """Hear what is published on the topic from now on, until the subscription is closed or dropped."""
    return get_runtime().subscriptions.open(_namespace("subscribe", topic, namespace), topic)


def _namespace(what: str, topic: object, namespace: object) -> str:
    for name, value in (("topic", topic), ("namespace", namespace)):
        if not isinstance(value, str) and not (value is None and name == "namespace"):
            raise TypeError(
                f"pubsub.{what}({topic!r}): the {name} is of type {type(value).__name__}; it may be a string."
            )
    return get_runtime().welcome.namespace if namespace is None else str(namespace)
