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
ARGUMENTS = {"x-max-priority": 5, "x-dead-letter-exchange": f"{PREFIX}.dlx", "x-queue-type": "classic"}
channel.queue_declare(QUEUE, durable=True, arguments=ARGUMENTS)
channel.queue_bind(QUEUE, f"{PREFIX}.jobs", f"{WORKER}.{JOB_TYPE}.*")
channel.basic_qos(prefetch_count=1)


def report(message, status, **more):
    at = datetime.datetime.now(datetime.timezone.utc).isoformat()
    source = {"occurrenceId": message["occurrenceId"], "attempt": message["attempt"], "instanceId": INSTANCE}
    body = json.dumps({**source, "status": status, "timestamp": at, **more}).encode()
    channel.basic_publish(STATUS, STATUS, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def read(body):
    message = {"attempt": None, "timeoutSeconds": None, "jobData": None, **json.loads(body)}
    if len(body) > 1024 * 1024 or message["jobType"].lower() != JOB_TYPE:
        raise ValueError("the message is too large, or names another job type")
    for name in ("occurrenceId", "jobId", "correlationId"):
        uuid.UUID(message[name])
    for name in ("scheduledFor", "timestamp"):
        if datetime.datetime.fromisoformat(message[name]).tzinfo is None:
            raise ValueError(f"{name} has no zone")
    for name, least in (("attempt", 1), ("timeoutSeconds", 0)):
        number = least if message[name] is None else message[name]
        if type(number) not in (int, float) or not least <= number < 2**32 or number != int(number):
            raise ValueError(f"{name} is no whole number")
        message[name] = int(number)  # It may be written as 2.0.
    return message


def run(_channel, method, _properties, body):
    try:
        message = read(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return channel.basic_reject(method.delivery_tag, requeue=False)  # It becomes a dead letter.
    report(message, 1)
    try:
        result = json.dumps(message["jobData"])
        report(message, 2, result=result)
    except Exception as error:
        report(message, 3, exception=repr(error))
    return channel.basic_ack(method.delivery_tag)  # Late: if this process dies first, another one receives the message.


channel.basic_consume(QUEUE, run)
channel.start_consuming()
