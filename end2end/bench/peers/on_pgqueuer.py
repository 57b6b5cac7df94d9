"""PgQueuer on PostgreSQL, through asyncpg. Modes: clean, remove, burst N, pace N, work. See ../README.md."""

import asyncio
import os
import signal
import struct
import sys
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

from record import chunks, paced, record

DATABASE = "bench_pgqueuer"
CHUNK = 1000
BATCH = 500
CONNECTIONS = 10


def url(database):
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{database}").geturl()


def pool():
    return asyncpg.create_pool(url(DATABASE), min_size=2, max_size=CONNECTIONS)


async def drop():
    connection = await asyncpg.connect(url("postgres"))
    await connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    return connection


async def clean():
    connection = await drop()
    await connection.execute(f"CREATE DATABASE {DATABASE}")
    await connection.close()
    async with pool() as connections:
        await Queries(AsyncpgPoolDriver(connections)).install()


async def remove():
    await (await drop()).close()


async def burst(jobs):
    async with pool() as connections:
        queries = Queries(AsyncpgPoolDriver(connections))
        for references in chunks(jobs, CHUNK):
            many = len(references)
            await queries.enqueue(["noop"] * many, [struct.pack("<d", it) for it in references], [0] * many)


async def pace(jobs):
    async with pool() as connections:
        queries = Queries(AsyncpgPoolDriver(connections))
        for reference in paced(jobs):
            await queries.enqueue("noop", struct.pack("<d", reference))


async def work():
    async with pool() as connections:
        worker = PgQueuer(AsyncpgPoolDriver(connections))

        @worker.entrypoint("noop")
        async def noop(job):
            record(struct.unpack("<d", job.payload)[0])

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.shutdown.set)
        # The batch size applies to fetching jobs and to writing finished ones, each with one statement.
        await worker.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["clean"]:
            uvloop.run(clean())
        case ["remove"]:
            uvloop.run(remove())
        case ["burst", jobs]:
            uvloop.run(burst(int(jobs)))
        case ["pace", jobs]:
            uvloop.run(pace(int(jobs)))
        case ["work"]:
            uvloop.run(work())
        case _:
            raise SystemExit("unknown mode: use one of clean, remove, burst N, pace N, work")
