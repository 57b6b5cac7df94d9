"""Dramatiq on RabbitMQ. Modes: clean, remove, burst N, pace N, work (see ../README.md for the choice of settings)."""

import os
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from record import paced, record, references

QUEUE = "bench-dramatiq"
PROCESSES = 2
THREADS = 8

broker = RabbitmqBroker(url=os.environ["AMQP_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def noop(reference):
    record(reference)


def clean():
    # Each queue has one more for delayed jobs and one for failed jobs.
    for queue in (QUEUE, f"{QUEUE}.DQ", f"{QUEUE}.XQ"):
        broker.channel.queue_delete(queue)
    broker.close()


def send(references):
    for reference in references:
        noop.send(reference)
    broker.close()


def work():
    here = os.path.dirname(os.path.abspath(__file__))
    size = [f"--processes={PROCESSES}", f"--threads={THREADS}"]
    command = [sys.executable, "-m", "dramatiq", "on_dramatiq", *size, "--path", here]
    os.execv(command[0], command)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["clean" | "remove"]:
            clean()
        case ["burst", jobs]:
            send(references(int(jobs)))
        case ["pace", jobs]:
            send(paced(int(jobs)))
        case ["work"]:
            work()
        case _:
            raise SystemExit("unknown mode: use one of clean, remove, burst N, pace N, work")
