"""Celery on RabbitMQ. Modes: clean, gone, burst N, pace N, work (see ../README.md for the choice of settings)."""

import os
import sys

from celery import Celery

from record import paced, record, references

QUEUE = "bench-celery"
PROCESSES = 2

app = Celery("on_celery", broker=os.environ["AMQP_URL"])
app.conf.update(
    task_default_queue=QUEUE,
    # Nobody asks for results; storing them would be a second write for each job.
    task_ignore_result=True,
    # Acknowledged after the handler, so that a job of a killed worker comes back: what the other peers promise too.
    task_acks_late=True,
    # Celery's own advice for many short jobs is 64 or 128 for each process.
    worker_prefetch_multiplier=64,
    # No second queue to listen to for commands, and no timer that says "I am alive".
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
    # One producer for all, or each job would take a connection from the pool and look at it first.
    with app.producer_pool.acquire(block=True) as producer:
        for reference in references:
            noop.apply_async((reference,), producer=producer)


def work():
    options = ["--pool=prefork", f"--concurrency={PROCESSES}", "--loglevel=WARNING", f"--queues={QUEUE}"]
    quiet = ["-O", "fair", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "--app=on_celery", "worker", *options, *quiet]
    # Python's `-m` looks for modules in the folder it is started in.
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    os.execv(command[0], command)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["clean" | "gone"]:
            clean()
        case ["burst", jobs]:
            send(references(int(jobs)))
        case ["pace", jobs]:
            send(paced(int(jobs)))
        case ["work"]:
            work()
        case _:
            raise SystemExit("say one of: clean, gone, burst N, pace N, work")
