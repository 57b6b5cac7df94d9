"""A worker that gives up when a service is away, and is silent about its stop and its checkpoints."""

import sys

import wrong
import worker

connect, send = worker.pika.BlockingConnection, worker.Publisher.send
beat, report = worker.Claims.beat, worker.Run.report


def connect_impatiently(parameters):
    """Waits for two seconds while the broker blocks publishers."""
    parameters.blocked_connection_timeout = 2
    return connect(parameters)


def send_once(publisher, exchange, message, **properties):
    """Drops what the broker does not accept at once."""
    message.pop("stopping", None)
    try:
        send(publisher, exchange, message, **properties)
    except worker.BROKER_ERRORS:
        publisher.close()


def report_without_checkpoint(run, status, **more):
    message = report(run, status, **more)
    message.pop("checkpoint", None)
    return message


class Impatient(worker.Worker):
    def __init__(self, settings):
        super().__init__(settings)
        try:
            self.claims.redis.ping()
        except worker.REDIS_ERRORS:
            sys.exit("Redis is away")
        self.claims.beat = self.beat

    def beat(self, keys):
        """Continues without claims after the first error."""
        try:
            return beat(self.claims, keys)
        except worker.REDIS_ERRORS:
            self.claims = None
            return []


worker.pika.BlockingConnection = connect_impatiently
worker.Publisher.send = send_once
worker.Run.report = report_without_checkpoint
wrong.run(Impatient)
