#!/usr/bin/env python3
"""The smallest possible worker: it registers, receives messages, and reports the start and the end of each run.

"What may be left out" in docs/protocol/README.md lists what is missing here, and the consequences. The worker claims
nothing, so a message that is delivered twice runs twice, which the server detects and shows. A run has a thread of its
own, because the connection must send heartbeats meanwhile: without them, a run of more than 15 seconds counts as lost
and is started again.
"""

import datetime
import json
import os
import threading
import time
import uuid

import pika

PREFIX = os.environ.get("MILVAION_PREFIX", "milvaion")
WORKER, JOB_TYPE = os.environ.get("MILVAION_WORKER_ID", "minimal"), "echo"  # no `_`, `.` or capitals: see "Names"
INSTANCE = f"{WORKER}-{uuid.uuid4().hex[:8]}"
STATUS, REGISTRATION, QUEUE = f"{PREFIX}.status", f"{PREFIX}.registration", f"{PREFIX}.jobs.{WORKER}.{JOB_TYPE}"
HEARTBEAT_SECONDS = 5

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()
channel.exchange_declare(f"{PREFIX}.jobs", "topic", durable=True)
channel.exchange_declare(f"{PREFIX}.dlx", "fanout", durable=True)
ARGUMENTS = {"x-max-priority": 5, "x-dead-letter-exchange": f"{PREFIX}.dlx", "x-queue-type": "classic"}
channel.queue_declare(QUEUE, durable=True, arguments=ARGUMENTS)
channel.queue_bind(QUEUE, f"{PREFIX}.jobs", f"{WORKER}.{JOB_TYPE}.*")
channel.basic_qos(prefetch_count=1)


def send(queue, **fields):
    at = datetime.datetime.now(datetime.timezone.utc).isoformat()
    body = json.dumps({"instanceId": INSTANCE, "timestamp": at, **fields}).encode()
    channel.basic_publish(queue, queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def report(message, status, **more):
    send(STATUS, occurrenceId=message["occurrenceId"], attempt=message["attempt"], status=status, **more)


class Heartbeat:
    due = 0.0

    @classmethod
    def send_if_due(cls, *running):
        if time.monotonic() >= cls.due:
            cls.due = time.monotonic() + HEARTBEAT_SECONDS
            send(REGISTRATION, kind="heartbeat", workerId=WORKER, running=running)


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
    end = {}

    def job():
        try:
            end.update(status=2, result=json.dumps(message["jobData"]))
        except Exception as error:
            end.update(status=3, exception=repr(error))

    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(HEARTBEAT_SECONDS / 10)
        connection.process_data_events()  # Answers the heartbeats of the broker; delivers nothing within a delivery.
        Heartbeat.send_if_due(message["occurrenceId"])
    report(message, **end)
    return channel.basic_ack(method.delivery_tag)  # Late: if this process dies first, another one receives the message.


send(REGISTRATION, kind="hello", workerId=WORKER, capacity=1, jobTypes=[{"jobType": JOB_TYPE, "concurrency": 1}])
channel.basic_consume(QUEUE, run)
while True:
    Heartbeat.send_if_due()
    connection.process_data_events(time_limit=HEARTBEAT_SECONDS / 5)
