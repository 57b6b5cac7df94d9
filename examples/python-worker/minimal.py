#!/usr/bin/env python3
"""The smallest possible worker: it receives messages, and reports the start and the end of each run.

"What may be left out" in docs/protocol/README.md lists what is missing here, and the consequences. The worker does not
register, so the dashboard shows no live worker. It sends no heartbeats, so a run of more than 15 seconds counts as
lost. It claims nothing, so a message that is delivered twice runs twice, which the server detects and shows.
"""

import datetime
import json
import os
import uuid

import pika

PREFIX = os.environ.get("MILVAION_PREFIX", "milvaion")
WORKER, JOB_TYPE = os.environ.get("MILVAION_WORKER_ID", "minimal"), "echo"  # no `_`, `.` or capitals: see "Names"
INSTANCE = f"{WORKER}-{uuid.uuid4().hex[:8]}"
STATUS, QUEUE = f"{PREFIX}.status", f"{PREFIX}.jobs.{WORKER}.{JOB_TYPE}"

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()
channel.exchange_declare(f"{PREFIX}.jobs", "topic", durable=True)
channel.exchange_declare(f"{PREFIX}.dlx", "fanout", durable=True)
channel.queue_declare(QUEUE, durable=True, arguments={"x-max-priority": 5, "x-dead-letter-exchange": f"{PREFIX}.dlx"})
channel.queue_bind(QUEUE, f"{PREFIX}.jobs", f"{WORKER}.{JOB_TYPE}.*")
channel.basic_qos(prefetch_count=1)


def report(message, status, **more):
    at = datetime.datetime.now(datetime.timezone.utc).isoformat()
    source = {"occurrenceId": message["occurrenceId"], "attempt": message["attempt"], "instanceId": INSTANCE}
    body = json.dumps({**source, "status": status, "timestamp": at, **more}).encode()
    channel.basic_publish(STATUS, STATUS, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def run(_channel, method, _properties, body):
    try:
        message = json.loads(body)
        if len(body) > 1024 * 1024 or message.setdefault("attempt", 1) < 1 or message["jobType"].lower() != JOB_TYPE:
            raise ValueError("the message is too large, has no valid attempt, or names another job type")
        report(message, 1)
    except (ValueError, KeyError, TypeError, AttributeError):
        return channel.basic_reject(method.delivery_tag, requeue=False)  # It becomes a dead letter.
    try:
        result = json.dumps(message["jobData"])
        report(message, 2, result=result)
    except Exception as error:
        report(message, 3, exception=repr(error))
    return channel.basic_ack(method.delivery_tag)  # Late: if this process dies first, another one receives the message.


channel.basic_consume(QUEUE, run)
channel.start_consuming()
