#!/usr/bin/env python3
"""A singleton loop in Python, written from "Singleton loops" in docs/protocol/README.md alone.

Start it several times, also beside Rust workers that have a loop of the same name: exactly one process runs the loop. It
needs Redis and the package `redis`, and neither RabbitMQ nor a server.

`elect` and `work` have a thread each, so that a long run does not cost the lease, and `listen` receives announcements.
Python cannot stop a thread from outside. A run therefore consists of steps, and `Tick.check` between them ends it in time.
"""

import collections
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import uuid

import redis

NAME = os.environ.get("LOOP_NAME") or "price-feed"
INTERVAL = float(os.environ.get("LOOP_INTERVAL_SECONDS") or 1)
LEASE = float(os.environ.get("LOOP_LEASE_SECONDS") or 10)
HEARTBEAT = LEASE * 0.3
MAX_BACKOFF = 30.0  # seconds

WORKER = os.environ.get("MILVAION_WORKER_ID") or "python"
INSTANCE = f"{WORKER}-{uuid.uuid4().hex[:8]}"
PREFIX = os.environ.get("MILVAION_KEY_PREFIX") or "Milvaion:JobScheduler:"
OWN = f"{PREFIX}singleton:{NAME}"
LEASE_KEY, STATE, YIELD, INSTANCES = f"{PREFIX}locks:singleton:{NAME}", OWN, f"{OWN}:yield", f"{OWN}:instances"
HEARTBEAT_KEYS = [LEASE_KEY, f"{OWN}:epoch", STATE, f"{OWN}:disabled", YIELD, INSTANCES, f"{PREFIX}singletons"]
RELEASE_KEYS = [LEASE_KEY, STATE, YIELD, INSTANCES]
CHANNEL = f"{PREFIX}singleton_channel"

HEARTBEAT_SCRIPT = r"""local time = redis.call('TIME')
local now = string.format('%d%03d', time[1], math.floor(time[2] / 1000))
redis.call('ZADD', KEYS[7], now, ARGV[6])
redis.call('ZADD', KEYS[6], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', tonumber(now) - 60000)
redis.call('PEXPIRE', KEYS[6], 60000)
local disabled = redis.call('EXISTS', KEYS[4])
local yield = redis.call('GET', KEYS[5]) == ARGV[1] and 1 or 0
local held = redis.call('GET', KEYS[1])
local holder = held and string.match(held, '^(.*):%d+$') or held or ''
local result, epoch = 0, redis.call('GET', KEYS[2]) or '0'
if held == ARGV[1] .. ':' .. ARGV[2] then
    result, epoch = 1, ARGV[2]
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
elseif ARGV[5] == '1' and disabled == 0 and (not held or holder == ARGV[1]) then
    local next = math.max(tonumber(epoch) + 1, tonumber(ARGV[4]) + 1, tonumber(now))
    result, epoch, holder = 2, string.format('%d', next), ARGV[1]
    redis.call('SET', KEYS[2], epoch)
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. epoch, 'PX', ARGV[3])
elseif held and redis.call('PTTL', KEYS[1]) < 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local ended = redis.call('HGET', KEYS[3], 'lastEnd') or ''
if result > 0 then
    redis.call('HSET', KEYS[3], 'instance', ARGV[1], 'epoch', epoch, 'updatedAt', now, unpack(ARGV, 7))
    redis.call('PEXPIRE', KEYS[3], 2592000000)
end
return {result, epoch, holder, disabled, yield, now, ended}
"""

RELEASE_SCRIPT = r"""if ARGV[5] == '1' then
    redis.call('ZREM', KEYS[4], ARGV[1])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ':' .. ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[1])
if #ARGV > 5 then
    redis.call('HSET', KEYS[2], unpack(ARGV, 6))
end
if redis.call('GET', KEYS[3]) == ARGV[1] then
    redis.call('DEL', KEYS[3])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
"""


class RunEnded(Exception):
    """Raised inside a run that has to end."""


class Tick:
    """The context of one run."""

    def __init__(self, loop, epoch, number):
        self._loop, self.epoch, self.number = loop, epoch, number

    def check(self):
        """Ends the run here if it has to end. The time until the next check must be well below a third of the lease."""
        if not self._loop.may_continue(self.epoch):
            raise RunEnded


def run(tick):
    """One run. Replace it by the work of your loop, and pass `tick.epoch` to the systems that it writes to."""
    for step in range(3):
        tick.check()
        print(f"{time.time():.3f} {INSTANCE} epoch {tick.epoch} run {tick.number} step {step}", flush=True)
        time.sleep(INTERVAL / 10)


class Loop:
    """The loop of this process. All times are those of the monotonic clock, except the ones in `statistics`."""

    def __init__(self, url):
        self.redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1)
        self.heartbeat = self.redis.register_script(HEARTBEAT_SCRIPT)
        self.release = self.redis.register_script(RELEASE_SCRIPT)
        self.changed = threading.Condition()  # Guards everything below.
        self.epoch = 0  # of the lease that this process holds; 0 if it holds none
        self.seen = 0  # the highest epoch that this process has seen
        self.renewed = 0.0  # before the last request that took or renewed the lease
        self.due = 0.0  # the next run
        self.free_at = 0.0  # until then other instances go first
        self.is_running = self.is_ending = self.is_yielding = self.is_stopping = self.is_woken = False
        self.statistics = Statistics()

    def may_continue(self, epoch):
        """Returns true if a run with this epoch may execute its next step."""
        with self.changed:
            in_time = time.monotonic() < self.renewed + LEASE * 2 / 3
            return self.epoch == epoch != 0 and in_time and not self.is_ending

    def wake(self):
        """Requests a heartbeat now."""
        with self.changed:
            self.is_woken = True
            self.changed.notify_all()

    def stop(self):
        """Ends the loop in an orderly way."""
        with self.changed:
            self.is_stopping = self.is_ending = True
            self.changed.notify_all()

    def elect(self):
        """Takes, renews and releases the lease until the process stops."""
        pause, failures = 0.0, 0
        while True:
            with self.changed:
                is_over = lambda: self.is_ending and not self.is_running
                self.changed.wait_for(lambda: self.is_woken or is_over(), pause)
                self.is_woken = False
                if is_over():
                    self.give_up()
                    if self.is_stopping:
                        return
                    pause = HEARTBEAT
                    continue
                asked = time.monotonic()
                # A free lease is not taken while the run of an earlier term is still in progress.
                takes = not (self.is_ending or self.is_running or asked < self.free_at)
                request = [INSTANCE, self.epoch, int(LEASE * 1000), self.seen, int(takes), NAME]
                request += self.statistics.fields(self.is_running)
            try:
                answer = self.heartbeat(keys=HEARTBEAT_KEYS, args=request)
            except (redis.RedisError, OSError) as error:
                failures += 1
                if self.epoch:  # A leader retries at once: a long pause would cost it the lease.
                    pause = min(HEARTBEAT / 6, 0.5)
                else:
                    longer = min(HEARTBEAT * 2 ** min(failures, 16), max(MAX_BACKOFF, HEARTBEAT))
                    pause = max(longer * random.uniform(0.8, 1.2), HEARTBEAT)
                print(f"Redis does not answer, next heartbeat in {pause:.1f} s: {error}", file=sys.stderr, flush=True)
                continue
            failures = 0
            self.receive(asked, answer)
            share = 1 if self.epoch else random.uniform(0.9, 1)
            pause = max(asked + HEARTBEAT * share - time.monotonic(), 0)

    def receive(self, asked, answer):
        """Applies the answer to a heartbeat."""
        result, epoch, _holder, disabled, yields, now, ended = answer
        epoch = int(epoch)
        with self.changed:
            self.seen = max(self.seen, epoch)
            if result == 1 and epoch == self.epoch:
                self.renewed = asked
            elif result == 2:
                self.epoch, self.renewed, self.statistics = epoch, asked, Statistics(int(now))
                # The interval counts from the end of the last run of any leader.
                since_last = (int(now) - int(ended)) / 1000 if ended else INTERVAL
                self.due = time.monotonic() + min(max(INTERVAL - since_last, 0), INTERVAL)
                print(f"{INSTANCE} leads {NAME} with epoch {epoch}", file=sys.stderr, flush=True)
            else:
                self.epoch = 0
            if self.epoch and not self.is_ending:
                self.is_ending, self.is_yielding = bool(disabled or yields), bool(yields)
            self.changed.notify_all()

    def give_up(self):
        """Releases the lease, if this process holds it, after the run has ended."""
        request = [INSTANCE, self.epoch, CHANNEL, NAME, int(self.is_stopping), *self.statistics.fields(False)]
        try:
            self.release(keys=RELEASE_KEYS, args=request)
        except (redis.RedisError, OSError):
            pass  # The lease expires by itself.
        if self.is_yielding:
            self.free_at = time.monotonic() + LEASE
        self.epoch, self.is_ending, self.is_yielding = 0, self.is_stopping, False

    def work(self):
        """Executes one run after the other while this process leads."""
        while True:
            with self.changed:
                while not (self.may_continue(self.epoch) and time.monotonic() >= self.due):
                    if self.is_stopping:
                        return
                    self.changed.wait(max(self.due - time.monotonic(), 0.01) if self.epoch else None)
                self.is_running, statistics = True, self.statistics
                tick = Tick(self, self.epoch, statistics.begin())
            error, outcome = None, "ok"
            try:
                run(tick)
            except RunEnded:
                outcome = "cancelled"
            except Exception as failure:  # There are no retries: the next run follows.
                error, outcome = repr(failure), "error"
            with self.changed:
                statistics.end(outcome, error)
                self.is_running, self.due = False, time.monotonic() + INTERVAL
                self.changed.notify_all()

    def listen(self):
        """Sends a heartbeat at once when another process announces a change. Without it a change takes a heartbeat."""
        while True:
            try:
                with self.redis.pubsub(ignore_subscribe_messages=True) as channel:
                    channel.subscribe(CHANNEL)
                    self.wake()  # A message may have been lost before.
                    while True:
                        message = channel.get_message(timeout=60)
                        if message and message["data"] == NAME:
                            self.wake()
            except (redis.RedisError, OSError):
                time.sleep(1)


class Statistics:
    """The counters of one term, which the dashboard shows. Times are milliseconds since 1970."""

    def __init__(self, since=0):
        self.since, self.started, self.runs, self.errors = since, 0, 0, 0
        self.start = self.clock = 0.0
        self.ends, self.recent, self.durations = {}, collections.deque(maxlen=20), collections.deque(maxlen=512)

    def begin(self):
        self.started += 1
        self.start, self.clock = int(time.time() * 1000), time.monotonic()
        return self.started

    def end(self, outcome, error):
        took, now = round((time.monotonic() - self.clock) * 1000, 3), int(time.time() * 1000)
        self.runs += 1
        self.durations.append(took)
        self.recent.append({"start": self.start, "durationMs": took, "lateMs": 0, "outcome": outcome})
        self.ends.update(lastStart=self.start, lastEnd=now)
        if error:
            self.errors += 1
            self.ends.update(lastError=error.encode()[:500].decode("utf-8", "ignore"), lastErrorAt=now)

    def fields(self, is_running):
        """Returns the fields of the state and their values, one after the other."""
        order = sorted(self.durations) or [0]
        fields = {
            "workerId": WORKER,
            "host": socket.gethostname(),
            "kind": "interval",
            "schedule": f"every {INTERVAL:g}s",
            "leaseMs": int(LEASE * 1000),
            "heartbeatMs": int(HEARTBEAT * 1000),
            "since": self.since or int(time.time() * 1000),
            "ticks": self.started,
            "runs": self.runs,
            "dropped": 0,  # An interval loop drops nothing.
            "errors": self.errors,
            "runningSince": self.start if is_running else "",
            "p50Ms": order[(len(order) - 1) // 2],
            "p99Ms": order[-(len(order) // 100) - 1],
            "lateP50Ms": 0,
            "lateP99Ms": 0,
            "recent": json.dumps(list(self.recent)),
            **self.ends,
        }
        return [part for field in fields.items() for part in field]


def main():
    # The signals are blocked in all threads, and the main thread waits for one.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    loop = Loop(os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0")
    threading.Thread(target=loop.listen, daemon=True).start()
    threads = [threading.Thread(target=target) for target in (loop.elect, loop.work)]
    for thread in threads:
        thread.start()
    signal.sigwait(signals)
    loop.stop()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
