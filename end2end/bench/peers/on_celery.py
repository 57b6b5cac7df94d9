"""Celery on RabbitMQ. Modes: clean, remove, burst N, pace N, work (see ../README.md for the choice of settings)."""

import os
import sys

from celery import Celery

from record import paced, record, references

QUEUE = "bench-celery"
PROCESSES = 2

app = Celery("on_celery", broker=os.environ["AMQP_URL"])
app.conf.update(
    task_default_queue=QUEUE,
    # Results are not read; storing them would be a second write for each job.
    task_ignore_result=True,
    # Acknowledged after the handler, so that a killed worker's job is redelivered, as with the other peers.
    task_acks_late=True,
    # Celery's documentation advises 64 or 128 per process for many short jobs.
    worker_prefetch_multiplier=64,
    # No control queue and no heartbeat timer.
    worker_enable_remote_control=False,
    broker_heartbeat=0,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(reference):
    record(reference)


def clean():
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.queue_delete(QUEUE)
        channel.exchange_delete(QUEUE)


def send(references):
    # One producer for all jobs. Otherwise each job takes a connection from the pool and checks it first.
    with app.producer_pool.acquire(block=True) as producer:
        for reference in references:
            noop.apply_async((reference,), producer=producer)


def work():
    options = ["--pool=prefork", f"--concurrency={PROCESSES}", "--loglevel=WARNING", f"--queues={QUEUE}"]
    quiet = ["-O", "fair", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "--app=on_celery", "worker", *options, *quiet]
    # `python -m` searches for modules in its working folder.
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
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
