"""Queues: work to hand out and forget. A log keeps history; a queue keeps what is still to be done.

    queues = ps.open_queues()                       # .penstock/queues.db, or "amqp://host" for a RabbitMQ
    orders = queues.queue("orders", max_attempts=5)
    orders.publish({"id": 7})                       # stored when it returns
    with orders.consume() as consumer:
        for delivery in consumer:
            handle(delivery.json())
            delivery.ack()                          # gone for good

What both backends keep:

- `publish` and `publish_many` return when the messages survive power loss.
- A message is handed to one consumer at a time: the highest priority first, within it the oldest. It comes
  back when its consumer dies, closes, says `nack`, or does not settle it within the lease. So a message may
  be delivered more than once, and a redelivered one after others that were published later.
- `ack` removes it. After `max_attempts` deliveries it becomes a dead letter instead of being delivered again.
- An ack that got lost (power loss, a broken connection) means one more delivery, never a lost message.
- Rejected, expired and dropped messages become dead letters too, unless `dead_letters=False`.
- `single_active_consumer`: one consumer gets everything, in order; another takes over when it is gone.
- Through an exchange a message goes to every queue whose binding matches its key.

What only some keep is in `queues.capabilities`:

    alter      settings of a queue can be changed
    atomic     publish_many and fan-out to several queues happen whole or not at all
    counts     stats() also counts unacked and delayed messages and consumers
    history    a dead letter tells of every attempt when it ended and why
    kept-acks  an ack that returned survives the death of this process
    listing    queues, exchanges and bindings can be listed, and names are checked against them
    positions  a bridge to or from a topic is exactly once
    sequence   `delivery.sequence` numbers messages in the order of publishing, and is never used again

Asking for what a backend lacks raises NotSupported.
"""
