#!/usr/bin/env python3
"""A Milvaion worker in Python, written from docs/protocol/README.md alone.

It needs the package `pika`; with the package `redis` and REDIS_URL it also claims what it starts and hears when a run is
to end. The jobs are at the end of the file: a job is a function with a dataclass for its input, and that is all one has
to write. Everything between is the protocol.

Threads: the main one consumes, `Post` reports, `Pulse` gives signs of life, `Ear` listens for cancellations, and each
run has one of its own. pika's connections are not to be shared, so each of the first three has its own.
"""

import collections
import dataclasses
import datetime
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import typing
import uuid

import pika
import pika.exceptions

try:
    import redis
except ImportError:  # Then there are no claims, and messages are acknowledged late.
    redis = None

VERSION = "1.0.0"
MAX_MESSAGE = 1024 * 1024
MAX_TEXT = 64 * 1024
MAX_LINE = 8 * 1024
MAX_LINES = 10_000  # of one attempt
MAX_WAITING_LINES = 10_000  # of all runs, while the broker is away
HEARTBEAT = 5.0
LEASE_MS = 15_000
REMEMBER_MS = 24 * 3600 * 1000
DEFAULT_TIMEOUT = 3600
TURN = 2.0  # how long a delivery waits for a place before it is handed back
PATIENCE = 10.0  # how long the server may take to answer

QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED, TIMED_OUT, UNKNOWN = range(7)
TROUBLE = (pika.exceptions.AMQPError, OSError)
REDIS_TROUBLE = (redis.RedisError, OSError) if redis else ()

log = logging.getLogger("worker")


# --- What a job sees. ---


class Permanent(Exception):
    """It failed, and trying again is of no use."""


class Retry(Exception):
    """It failed, and wants to be tried again after `seconds` instead of the job's own delay."""

    def __init__(self, message, seconds):
        super().__init__(message)
        self.seconds = seconds


class Snooze(Exception):
    """It cannot run now, which is no failure: it wants another attempt after `seconds`."""

    def __init__(self, message, seconds):
        super().__init__(message)
        self.seconds = seconds


class Ended(BaseException):
    """Raised inside a job that is to end. Not an Exception, so that a job does not swallow it by accident."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    function: typing.Callable
    input: type
    concurrency: int
    timeout: int

    def info(self):
        return {
            "jobType": self.name,
            "description": (self.function.__doc__ or "").strip().split("\n")[0],
            "schema": schema_of(self.input),
            "concurrency": self.concurrency,
            "timeoutSeconds": self.timeout,
        }


JOBS = {}


def job(name, *, concurrency=10, timeout=DEFAULT_TIMEOUT):
    """Makes a function a job type: its first sentence describes it, its second parameter says what it takes."""

    def add(function):
        hints = [hint for key, hint in typing.get_type_hints(function).items() if key != "return"]
        JOBS[name] = Job(name, function, hints[-1], concurrency, timeout)
        return function

    return add


class Context:
    """What a run may ask and tell."""

    def __init__(self, run, post):
        self._run, self._post, self._lines, self._lock = run, post, 0, threading.Lock()
        self.occurrence_id, self.attempt = run.key
        self.scheduled_for = run.message.get("scheduledFor")
        self.max_retries = run.message.get("maxRetries", 0)

    def log(self, level, message, **data):
        with self._lock:
            if self._lines > MAX_LINES:
                return
            if self._lines == MAX_LINES:
                level, message, data = "warn", f"more than {MAX_LINES} lines: the rest is left out", {}
            line = {"seq": self.attempt * 1_000_000 + self._lines, "at": now(), "level": level}
            self._lines += 1
        line["message"] = cut(str(message), MAX_LINE)
        if data:
            # What JSON has no word for is told as text: the thread that reports must not stumble over it.
            line["data"] = json.loads(json.dumps(data, default=str, skipkeys=True))
        self._post.log(self.occurrence_id, line)

    def info(self, message, **data):
        self.log("info", message, **data)

    def warn(self, message, **data):
        self.log("warn", message, **data)

    def progress(self, percent, message=""):
        """Says how far it is, from 0 to 100."""
        told = {"percent": max(0, min(100, int(percent))), "message": cut(message, 200)}
        self._post.report(self._run.report(RUNNING, progress=told))
        self.check()

    def check(self):
        """Ends the run here if it is to end. Python cannot end a thread from outside, so a long job must call this, or
        `sleep` or `progress`, now and then; one that does not is only ended with the process."""
        reason = self._run.why_to_end()
        if reason:
            raise Ended(*reason)

    def sleep(self, seconds):
        """Sleeps, and wakes early when the run is to end."""
        until = time.monotonic() + seconds
        while (left := min(until, self._run.deadline) - time.monotonic()) > 0 and not self._run.stop.wait(left):
            pass
        self.check()


# --- Typed input: a dataclass becomes a JSON Schema, from which the dashboard draws a form; and a reader. ---

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


def schema_of(cls):
    hints, properties, required = typing.get_type_hints(cls), {}, []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if typing.get_origin(hint) is list:
            kind = {"type": "array", "items": {"type": TYPES[typing.get_args(hint)[0]]}}
        else:
            kind = {"type": TYPES[hint]}
        kind.update(field.metadata)
        if field.default is not dataclasses.MISSING:
            kind["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            kind["default"] = field.default_factory()
        else:
            required.append(field.name)
        properties[field.name] = kind
    return {"type": "object", "title": cls.__name__, "properties": properties, "required": required}


def read_input(cls, data):
    if not isinstance(data, dict):
        raise Permanent(f"the input must be an object, and is {json.dumps(data)[:100]}")
    hints, values = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if field.name not in data:
            continue
        hint, value = hints[field.name], data[field.name]
        if typing.get_origin(hint) is list:
            item = typing.get_args(hint)[0]
            fits = isinstance(value, list) and all(is_a(one, item) for one in value)
        else:
            fits = is_a(value, hint)
        if not fits:
            wanted = schema_of(cls)["properties"][field.name]["type"]
            raise Permanent(f"the input's {field.name} must be of type {wanted}, and is {json.dumps(value)[:100]}")
        values[field.name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise Permanent(f"the input does not fit: {error}") from None


def is_a(value, kind):
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


# --- Small things. ---


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def cut(text, most):
    """At most `most` bytes of a text, with a mark where it was cut. The database cannot hold NUL."""
    raw = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(raw) <= most:
        return raw.decode()
    end = most - 40
    return f"{raw[:end].decode('utf-8', 'ignore')}… [{len(raw) - end} bytes cut]"


class Backoff:
    def __init__(self):
        self.seconds = 0.2

    def next(self):
        pause, self.seconds = self.seconds * random.uniform(0.8, 1.2), min(self.seconds * 2, 10.0)
        return pause


class Settings:
    def __init__(self, env):
        def read(name, default):
            return env.get(name) or default

        self.amqp_url = read("AMQP_URL", "amqp://127.0.0.1:5672/%2f")
        self.redis_url = read("REDIS_URL", "")
        self.worker_id = read("MILVAION_WORKER_ID", "python")
        self.prefix = read("MILVAION_PREFIX", "milvaion")
        self.key_prefix = read("MILVAION_KEY_PREFIX", "Milvaion:JobScheduler:")
        self.grace = float(read("MILVAION_SHUTDOWN_GRACE_SECONDS", "30"))
        self.instance_id = f"{self.worker_id}-{uuid.uuid4().hex[:8]}"

    def name(self, what):
        return f"{self.prefix}.{what}"

    def key(self, what):
        return f"{self.key_prefix}{what}"


# --- The broker: names, topology, a connection that publishes. ---


def word(name):
    """One word of a routing key: lower case, without the dot that separates words."""
    return name.lower().replace("_", "__").replace(".", "_d")


def connect(settings, purpose):
    parameters = pika.URLParameters(settings.amqp_url)
    parameters.heartbeat = 10
    parameters.blocked_connection_timeout = 30
    parameters.socket_timeout = 10
    parameters.client_properties = {"connection_name": f"{settings.instance_id} {purpose}"}
    return pika.BlockingConnection(parameters)


def declare_shared(channel, settings):
    """What workers and the server share. Whoever comes first declares it; everybody must declare the same."""
    channel.exchange_declare(settings.name("jobs"), "topic", durable=True)
    channel.exchange_declare(settings.name("dlx"), "fanout", durable=True)
    channel.queue_declare(settings.name("dlq"), durable=True)
    channel.queue_bind(settings.name("dlq"), settings.name("dlx"), "")
    for name in map(settings.name, ("status", "logs", "registration", "claims")):
        channel.exchange_declare(name, "direct", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, name)


def declare_queue(channel, settings, job_type):
    worker, kind = word(settings.worker_id), word(job_type)
    queue = settings.name(f"jobs.{worker}.{kind}")
    arguments = {"x-max-priority": 5, "x-dead-letter-exchange": settings.name("dlx")}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.queue_bind(queue, settings.name("jobs"), f"{worker}.{kind}.*")
    return queue


class Outlet:
    """A connection that publishes. For one thread."""

    def __init__(self, settings, purpose):
        self.settings, self.purpose, self.channel = settings, purpose, None

    def open(self):
        """Whether there is a new connection; it may have to introduce itself."""
        if self.channel is not None and self.channel.is_open:
            return False
        self.close()
        self.channel = connect(self.settings, self.purpose).channel()
        self.channel.confirm_delivery()
        declare_shared(self.channel, self.settings)
        return True

    def send(self, exchange, message, **properties):
        """Returns once the broker has the message for certain; raises one of TROUBLE when that is not known. With
        confirms on, pika waits for the confirmation, and raises when the message is refused or returned."""
        self.open()
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        name = self.settings.name(exchange)
        envelope = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            message_id=str(uuid.uuid4()),
            timestamp=int(time.time()),
            app_id=self.settings.instance_id,
            **properties,
        )
        self.channel.basic_publish(name, name, body, envelope, mandatory=True)

    def idle(self):
        """Answers the broker's heartbeats."""
        if self.channel is not None and self.channel.is_open:
            self.channel.connection.process_data_events(0)

    def close(self):
        try:
            if self.channel is not None and self.channel.connection.is_open:
                self.channel.connection.close()
        except TROUBLE:
            pass
        self.channel = None


class Post(threading.Thread):
    """Brings reports and log lines to the server, in order, each until the broker has confirmed it."""

    def __init__(self, settings):
        super().__init__(name="post", daemon=True)
        self.outlet = Outlet(settings, "post")
        self.changed = threading.Condition()
        self.reports = collections.deque()  # (report, what to do once it is confirmed)
        self.lines = {}  # occurrence id -> lines
        self.count = self.dropped = 0
        self.is_sending = False

    def report(self, report, confirmed=None):
        with self.changed:
            if "progress" in report:  # Of several that wait, the last one says all.
                mine = [n for n, (one, _) in enumerate(self.reports) if "progress" in one and same(one, report)]
                if mine:
                    self.reports[mine[-1]] = (report, confirmed)
                    return
            self.reports.append((report, confirmed))
            self.changed.notify_all()

    def log(self, occurrence, line):
        with self.changed:
            if self.count >= MAX_WAITING_LINES:
                self.dropped += 1
                return
            self.lines.setdefault(occurrence, []).append(line)
            self.count += 1
            self.changed.notify_all()

    def flush(self, seconds):
        """Waits until nothing is left to send. Returns whether that came to pass."""
        with self.changed:
            return self.changed.wait_for(lambda: not (self.reports or self.lines or self.is_sending), seconds)

    def run(self):
        backoff = Backoff()
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.reports or self.lines, timeout=1.0)
                # Both at one moment, and lines first: whoever sees an end must be able to read what was written before.
                reports = [self.reports.popleft() for _ in bounded([report for report, _ in self.reports], 200)]
                lines, self.lines = self.lines, {}
                self.is_sending = bool(reports or lines)
            try:
                self.send_lines(lines)
                self.send_reports(reports)
                self.outlet.idle()
                backoff = Backoff()
            except TROUBLE as error:
                log.warning("reports could not be sent and are kept: %r", error)
                with self.changed:
                    self.reports.extendleft(reversed(reports))
                    for occurrence, left in lines.items():
                        self.lines[occurrence] = left + self.lines.get(occurrence, [])
                self.outlet.close()
                time.sleep(backoff.next())
            with self.changed:
                self.is_sending = False
                self.changed.notify_all()

    def send_lines(self, lines):
        """Sends lines, and takes away what was sent."""
        while lines:
            occurrence = next(iter(lines))
            some = bounded(lines[occurrence], 500)
            self.outlet.send("logs", {"occurrenceId": occurrence, "lines": some})
            lines[occurrence] = lines[occurrence][len(some) :]
            if not lines[occurrence]:
                del lines[occurrence]
            with self.changed:
                self.count -= len(some)
                dropped, self.dropped = self.dropped, 0
            if dropped:
                log.warning("%d log lines were left out while the broker was away", dropped)

    def send_reports(self, reports):
        if reports:
            self.outlet.send("status", {"reports": [report for report, _ in reports]})
        sent = reports[:]
        reports.clear()
        for _, confirmed in sent:
            if confirmed:
                confirmed()


def same(one, other):
    return (one["occurrenceId"], one["attempt"]) == (other["occurrenceId"], other["attempt"])


def bounded(things, most):
    """The first of them, as many as one message may hold."""
    size, some = 0, []
    for thing in things[:most]:
        size += len(json.dumps(thing, ensure_ascii=False).encode("utf-8", "replace"))
        if some and size > MAX_MESSAGE // 2:
            break
        some.append(thing)
    return some


class Desk:
    """Asks the server whether an attempt may start. Only copies are asked about, so one question at a time will do."""

    def __init__(self, settings):
        self.settings, self.lock, self.outlet, self.answers = settings, threading.Lock(), Outlet(settings, "desk"), {}
        self.used = 0.0

    def ask(self, key, patience=PATIENCE):
        """The server's reply; None when there is none."""
        question, until = str(uuid.uuid4()), time.monotonic() + patience
        if not self.lock.acquire(timeout=patience):
            return None
        try:
            if time.monotonic() - self.used > 5.0:
                self.outlet.close()  # Nobody has answered the broker's heartbeats meanwhile.
            try:
                if self.outlet.open():
                    self.answers.clear()
                    channel = self.outlet.channel
                    channel.basic_consume("amq.rabbitmq.reply-to", self.hear, auto_ack=True)
                request = {"occurrenceId": key[0], "attempt": key[1], "instanceId": self.settings.instance_id}
                self.outlet.send("claims", request, reply_to="amq.rabbitmq.reply-to", correlation_id=question)
                while question not in self.answers and (left := until - time.monotonic()) > 0:
                    self.outlet.channel.connection.process_data_events(left)
                return self.answers.pop(question, None)
            except TROUBLE as error:
                log.warning("the server could not be asked: %r", error)
                self.outlet.close()
                return None
            finally:
                self.used = time.monotonic()
        finally:
            self.lock.release()

    def hear(self, _channel, _method, properties, body):
        self.answers[properties.correlation_id] = json.loads(body)


# --- Redis: claims and cancellations. ---

# KEYS: running:{occurrence}, cancel:{occurrence}. ARGV: instance, attempt, how long the key lives.
CLAIM = """
local held, mark = redis.call('GET', KEYS[1]), ARGV[1] .. ':' .. ARGV[2]
local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return {held, redis.call('PTTL', KEYS[1]), ''} end
redis.call('SET', KEYS[1], mark, 'PX', ARGV[3])
return {'', 0, redis.call('GET', KEYS[2]) or ''}
"""
# KEYS: running:{occurrence}. ARGV: instance, attempt, how long to remember. A later attempt's claim stays.
END = """
local held = redis.call('GET', KEYS[1])
if not held or held == ARGV[1] .. ':' .. ARGV[2] then redis.call('SET', KEYS[1], 'done:' .. ARGV[2], 'PX', ARGV[3]) end
"""
# KEYS: running:{occurrence}. ARGV: instance, attempt.
GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] .. ':' .. ARGV[2] then redis.call('DEL', KEYS[1]) end
"""
# KEYS: running:{occurrence} of each run. ARGV: how long they live, then each run's mark. Answers which are somebody
# else's by now.
RENEW = """
local lost = {}
for i, key in ipairs(KEYS) do
    local held = redis.call('GET', key)
    if not held or held == ARGV[i + 1] then redis.call('SET', key, ARGV[i + 1], 'PX', ARGV[1])
    else lost[#lost + 1] = i end
end
return lost
"""


class Claims:
    def __init__(self, settings):
        self.settings = settings
        self.redis = redis.Redis.from_url(
            settings.redis_url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1
        )
        self.claim_script = self.redis.register_script(CLAIM)
        self.end_script = self.redis.register_script(END)
        self.give_back_script = self.redis.register_script(GIVE_BACK)
        self.renew_script = self.redis.register_script(RENEW)

    def running(self, key):
        return self.settings.key(f"running:{key[0]}")

    def wish(self, key):
        return self.settings.key(f"cancel:{key[0]}")

    def claim(self, key):
        """(holder, how long its lease lasts, what stands at the cancel key); no holder means that it is ours.

        The lease is None when it has run out: its holder was not heard of again, and may have begun."""
        keys = [self.running(key), self.wish(key)]
        held, left, wish = self.claim_script(keys, [self.settings.instance_id, key[1], LEASE_MS + REMEMBER_MS])
        holder, _, attempt = held.rpartition(":")
        if holder == "done" or (holder and int(attempt) > key[1]):
            return "done", 0, wish
        # At most a lease is left of what a worker claimed that keeps no mark beyond it.
        lease = left if left <= LEASE_MS else left - REMEMBER_MS if left > REMEMBER_MS else None
        return holder, lease, wish

    def end(self, key):
        self.end_script([self.running(key)], [self.settings.instance_id, key[1], REMEMBER_MS])

    def give_back(self, key):
        """For a message that was handed back: whoever gets it is to find no claim."""
        try:
            self.give_back_script([self.running(key)], [self.settings.instance_id, key[1]])
        except REDIS_TROUBLE as error:
            log.warning("the claim of %s stays behind: %r", key, error)

    def beat(self, keys):
        """The sign of life, and the lease of every run once more. Returns those that somebody else has claimed."""
        sign = self.settings.key(f"heartbeat:{self.settings.instance_id}")
        self.redis.set(sign, int(time.time() * 1000), px=LEASE_MS)
        if not keys:
            return []
        marks = [f"{self.settings.instance_id}:{attempt}" for _, attempt in keys]
        lost = self.renew_script([self.running(key) for key in keys], [LEASE_MS + REMEMBER_MS, *marks])
        return [keys[place - 1] for place in lost]

    def wishes(self, keys):
        return zip(keys, self.redis.mget([self.wish(key) for key in keys])) if keys else ()

    def leave(self):
        self.redis.delete(self.settings.key(f"heartbeat:{self.settings.instance_id}"))


def read_wish(text):
    """(the occurrence, the highest attempt that is meant, why) of a message on the channel or at the key."""
    try:
        wish = json.loads(text)
    except ValueError:
        wish = None
    if not isinstance(wish, dict):
        wish = {"reason": str(text)}
    return wish.get("occurrenceId"), wish.get("attempt"), wish.get("reason") or "cancelled on request"


class Ear(threading.Thread):
    """Hears who is to end. What is said while nobody listens stands at a key, which is read after each connect."""

    def __init__(self, worker):
        super().__init__(name="ear", daemon=True)
        self.worker = worker

    def run(self):
        backoff = Backoff()
        while True:
            try:
                # A connection of its own, since this one waits.
                client = redis.Redis.from_url(
                    self.worker.settings.redis_url, decode_responses=True, health_check_interval=10
                )
                channel = client.pubsub()
                channel.subscribe(self.worker.settings.key("cancellation_channel"))
                while True:
                    message = channel.get_message(timeout=5)
                    if message and message["type"] == "subscribe":
                        self.worker.read_wishes()
                        backoff = Backoff()
                    elif message and message["type"] == "message":
                        self.worker.cancel(*read_wish(message["data"]))
            except REDIS_TROUBLE as error:
                log.warning("cancellations are not heard at once: %r", error)
                time.sleep(backoff.next())


class Pulse(threading.Thread):
    """Says that this instance lives and what it runs; from a thread of its own, so that no run can hold it up."""

    def __init__(self, worker):
        super().__init__(name="pulse", daemon=True)
        self.worker, self.outlet = worker, Outlet(worker.settings, "pulse")
        self.leave, self.introduced = threading.Event(), False

    def run(self):
        while not self.leave.is_set():
            self.beat_redis()
            self.beat_server()
            self.leave.wait(HEARTBEAT)
        try:
            self.outlet.send("registration", {"kind": "goodbye", "instanceId": self.worker.settings.instance_id})
        except TROUBLE:
            pass
        self.outlet.close()

    def beat_server(self):
        settings = self.worker.settings
        message = {"workerId": settings.worker_id, "instanceId": settings.instance_id, "timestamp": now()}
        try:
            # A new connection may be one to a broker, and a server, that has never heard of us.
            self.introduced = not self.outlet.open() and self.introduced
            if self.introduced:
                message.update(kind="heartbeat", running=[key[0] for key in self.worker.unsettled()])
            else:
                capacity = sum(one.concurrency for one in JOBS.values())
                types = [one.info() for one in JOBS.values()]
                message.update(kind="hello", host=socket.gethostname(), pid=os.getpid(), version=VERSION)
                message.update(capacity=capacity, jobTypes=types)
            self.outlet.send("registration", message)
            self.introduced = True
        except TROUBLE as error:
            log.warning("no sign of life to the server: %r", error)
            self.outlet.close()

    def beat_redis(self):
        claims = self.worker.claims
        if not claims:
            return
        try:
            for occurrence, attempt in claims.beat(self.worker.unsettled()):
                log.warning("attempt %s of %s was given to another instance; it ends here", attempt, occurrence)
                self.worker.cancel(occurrence, attempt, "another instance has it", status=None)
            self.worker.read_wishes()
        except REDIS_TROUBLE as error:
            log.warning("no sign of life to Redis: %r", error)


# --- From a delivery to its last report. ---


class Run:
    """One attempt that is here: it waits, runs, or its last report is on the way."""

    def __init__(self, worker, job, message, delivery, is_copy):
        self.worker, self.job, self.message, self.delivery, self.is_copy = worker, job, message, delivery, is_copy
        self.key = (message["occurrenceId"], message["attempt"])
        self.stop = threading.Event()
        self.reason = None
        self.has_begun = self.is_over = self.is_acked = False
        self.allowed = message.get("timeoutSeconds") or job.timeout
        self.deadline = float("inf")

    def report(self, status, **more):
        occurrence, attempt = self.key
        told = {"occurrenceId": occurrence, "attempt": attempt, "instanceId": self.worker.settings.instance_id}
        return {**told, "status": status, "timestamp": now(), **more}

    def end(self, status, reason):
        """Asks it to end. The first reason counts."""
        self.reason = self.reason or (status, reason)
        self.stop.set()

    def why_to_end(self):
        if not self.reason and time.monotonic() >= self.deadline:
            self.reason = (TIMED_OUT, f"timed out after {self.allowed} s")
        return self.reason


class Delivery(typing.NamedTuple):
    channel: typing.Any
    tag: int
    since: float


class Worker:
    def __init__(self, settings):
        self.settings = settings
        self.claims = Claims(settings) if redis and settings.redis_url else None
        self.post, self.desk, self.pulse = Post(settings), Desk(settings), Pulse(self)
        self.lock = threading.Lock()
        self.runs = {}  # (occurrence id, attempt) -> Run
        self.ended = collections.OrderedDict()  # what ended here lately
        self.places = {name: one.concurrency for name, one in JOBS.items()}
        self.waiting = {name: collections.deque() for name in JOBS}
        self.is_stopping = False

    # What other threads ask.

    def begun(self):
        with self.lock:
            return [run.key for run in self.runs.values() if run.has_begun and not run.is_over]

    def unsettled(self):
        """What has begun and whose end is not confirmed yet: the server would take what nobody speaks of for lost."""
        with self.lock:
            return [run.key for run in self.runs.values() if run.has_begun]

    def cancel(self, occurrence, attempt, reason, status=CANCELLED):
        """Ends this attempt and earlier ones; without an attempt, whichever there is."""
        with self.lock:
            meant = [run for key, run in self.runs.items() if key[0] == occurrence and key[1] <= (attempt or key[1])]
        for run in meant:
            run.end(status, reason)

    def read_wishes(self):
        for key, text in self.claims.wishes(self.begun()):
            if text:
                _, attempt, reason = read_wish(text)
                self.cancel(key[0], attempt, reason)

    # The main thread.

    def work(self):
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        self.post.start()
        self.pulse.start()
        if self.claims:
            Ear(self).start()
        log.info("%s offers %s, %s", self.settings.instance_id, ", ".join(JOBS), self.how())
        connection, backoff = None, Backoff()
        while not self.is_stopping:
            try:
                connection = connect(self.settings, "consume")
                channels = self.consume(connection)
                backoff = Backoff()
                while not self.is_stopping:
                    connection.process_data_events(0.2)
                    self.give_turns()
                for channel in channels:
                    channel.basic_cancel(self.settings.instance_id)
            except TROUBLE as error:
                if not self.is_stopping:
                    log.warning("consuming has failed and begins again: %r", error)
                    time.sleep(backoff.next())
        self.drain(connection)

    def how(self):
        return "claims in Redis" if self.claims else "without claims: messages are acknowledged late"

    def on_signal(self, *_):
        self.is_stopping = True

    def consume(self, connection):
        """One channel, and so one window, for each job type: a slow one blocks none but itself."""
        with self.lock:
            # What waited came over the connection before, and comes again.
            for queue in self.waiting.values():
                while queue:
                    del self.runs[queue.popleft().key]
        declare_shared(connection.channel(), self.settings)
        channels = []
        for one in JOBS.values():
            channel = connection.channel()
            queue = declare_queue(channel, self.settings, one.name)
            channel.basic_qos(prefetch_count=one.concurrency)
            take = lambda ch, method, properties, body, one=one: self.take(one, ch, method, properties, body)
            channel.basic_consume(queue, take, consumer_tag=self.settings.instance_id)
            channels.append(channel)
        return channels

    def take(self, job, channel, method, properties, body):
        delivery = Delivery(channel, method.delivery_tag, time.monotonic())
        try:
            message = read_message(job, body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("a message cannot be read and goes to the dead letters: %r", error)
            return channel.basic_reject(method.delivery_tag, requeue=False)
        is_copy = method.redelivered or "x-republish" in (properties.headers or {})
        run = Run(self, job, message, delivery, is_copy)
        with self.lock:
            twin = self.runs.get(run.key)
            if twin is None and run.key not in self.ended:
                self.runs[run.key] = run
                self.waiting[job.name].append(run)
                return self.give_turns(locked=True)
            # The copy is not needed while the first delivery, or a confirmed report, stands for the run.
            if twin and not twin.is_acked and not twin.delivery.channel.is_open:
                twin.delivery = delivery
                return None
        log.info("a copy of %s is dropped", run.key)
        return channel.basic_ack(method.delivery_tag)

    def give_turns(self, locked=False):
        """Starts what finds a place; what has waited too long is handed back, for another instance may have one."""
        if not locked:
            with self.lock:
                return self.give_turns(locked=True)
        for name, queue in self.waiting.items():
            while queue and self.places[name] > 0 and not self.is_stopping:
                run = queue.popleft()
                self.places[name] -= 1
                threading.Thread(target=self.handle, args=(run,), name=run.key[0], daemon=True).start()
            while queue and time.monotonic() - queue[0].delivery.since > TURN:
                run = queue.popleft()
                del self.runs[run.key]
                self.answer(run.delivery, "basic_nack", requeue=True)
        return None

    def drain(self, connection):
        """Hands back what has not begun, lets runs go on for a while, interrupts them, says what became of them."""
        with self.lock:
            for queue in self.waiting.values():
                while queue:
                    run = queue.popleft()
                    del self.runs[run.key]
                    self.answer(run.delivery, "basic_nack", requeue=True)
        self.keep_on(connection, self.settings.grace, lambda: not self.runs)
        for run in list(self.runs.values()):
            run.end(QUEUED, "interrupted: its worker stops")
        self.keep_on(connection, 2.0, lambda: not self.runs)
        for run in list(self.runs.values()):
            with self.lock:
                if not run.has_begun:
                    # It still asks whether it may: whoever gets it next asks too.
                    self.runs.pop(run.key, None)
                    self.answer(run.delivery, "basic_nack", requeue=True)
                    continue
            # It does not listen, and ends with the process in a moment.
            self.finish(run, QUEUED, exception="interrupted: its worker stops")
        if not self.post.flush(10.0):
            log.error("the broker is away: the last reports are lost, and these runs count as lost too")
        self.keep_on(connection, 1.0, lambda: not self.runs)
        self.pulse.leave.set()
        self.pulse.join(5.0)
        try:
            if self.claims:
                self.claims.leave()
            if connection is not None and connection.is_open:
                connection.close()
        except TROUBLE + REDIS_TROUBLE:
            pass
        log.info("stopped")

    def keep_on(self, connection, seconds, until):
        """Serves the connection, by which deliveries are acknowledged, for a while or until something is true."""
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            try:
                if connection is not None and connection.is_open:
                    connection.process_data_events(0.05)
                    continue
            except TROUBLE:
                pass
            time.sleep(0.05)

    def answer(self, delivery, how, **more):
        """Answers the broker, from any thread. If the delivery's connection is gone, the message comes again."""

        def do():
            if delivery.channel.is_open:
                getattr(delivery.channel, how)(delivery.tag, **more)

        try:
            delivery.channel.connection.add_callback_threadsafe(do)
        except TROUBLE:
            pass

    # A run's own thread.

    def handle(self, run):
        try:
            verdict = self.admit(run)
            if verdict == "run":
                self.execute(run)
            elif verdict == "drop":
                self.leave(run, "basic_ack")
            elif verdict == "hand back":
                self.leave(run, "basic_nack", requeue=True)
        finally:
            with self.lock:
                self.places[run.job.name] += 1

    def leave(self, run, how, **more):
        with self.lock:
            self.runs.pop(run.key, None)
        self.answer(run.delivery, how, **more)

    def admit(self, run):
        """Whether to "run", "drop" or "hand back" a message; "done" when its end is reported already."""
        is_copy, last_lease = run.is_copy, None
        while True:
            if is_copy:
                # Another copy may have started, whatever Redis remembers: the server has the last word.
                reply = self.desk.ask(run.key)
                if reply is None:
                    run.stop.wait(1.0)
                    return "hand back"
                if not reply["granted"]:
                    log.info("a copy of %s is dropped: %s %s", run.key, reply.get("reason"), reply.get("by") or "")
                    return "drop"
            if not self.claims:
                return "run"
            try:
                holder, lease, wish = self.claims.claim(run.key)
            except REDIS_TROUBLE as error:
                if is_copy:
                    run.stop.wait(1.0)
                    return "hand back"
                # Redis would have known of a cancellation; without it only the server does. Nobody waits for it long.
                reply = self.desk.ask(run.key, patience=1.0)
                if reply is not None and not reply["granted"]:
                    log.info("%s is dropped: %s", run.key, reply.get("reason"))
                    return "drop"
                log.warning("%s starts without a claim: %r", run.key, error)
                return "run"
            if not holder:
                _, attempt, reason = read_wish(wish) if wish else (None, 0, "")
                if wish and (attempt is None or run.key[1] <= attempt):
                    self.finish(run, CANCELLED, exception=reason)
                    return "done"
                return "run"
            if lease is None:
                if not is_copy:
                    is_copy = True
                    continue
                log.warning("%s was claimed by %s, which fell silent: it is reported as lost", run.key, holder)
                why = f"lost: {holder} had claimed it and fell silent before it said that it began"
                self.finish(run, UNKNOWN, instanceId=holder, exception=why)
                return "done"
            # A copy may have come because the holder died: only a renewed lease is a sign of life, others end.
            if holder == "done" or not is_copy or (last_lease is not None and lease > last_lease):
                log.info("a copy of %s is dropped: %s has it", run.key, holder)
                return "drop"
            last_lease = lease
            if run.stop.wait(1.0) or self.is_stopping:
                return "hand back"

    def execute(self, run):
        started = time.monotonic()
        run.deadline = started + run.allowed
        with self.lock:
            is_ours = self.runs.get(run.key) is run
            run.has_begun = is_ours
        if not is_ours:  # It was handed back: the worker stops.
            if self.claims:
                self.claims.give_back(run.key)
            return
        # With a claim, the lease guards the run from now on, and the broker need not keep the message. Without one,
        # the message is the guard, and is acknowledged when the end is reported.
        self.post.report(run.report(RUNNING), (lambda: self.acknowledge(run)) if self.claims else None)
        context = Context(run, self.post)
        status, told = FAILED, {}
        try:
            context.check()
            result = run.job.function(context, read_input(run.job.input, run.message.get("jobData")))
            text = result if isinstance(result, str) or result is None else json.dumps(result, ensure_ascii=False, default=str)
            status, told = COMPLETED, {} if text is None else {"result": cut(text, MAX_TEXT)}
        except Ended as end:
            status, told = end.status, {"exception": str(end)}
        except Permanent as error:
            told = {"exception": cut(str(error), MAX_TEXT), "permanent": True}
        except Retry as error:
            told = {"exception": cut(str(error), MAX_TEXT), "retryAfterMs": int(error.seconds * 1000)}
        except Snooze as error:
            status, told = QUEUED, {"exception": str(error), "retryAfterMs": int(error.seconds * 1000)}
        except BaseException as error:  # Whatever it is, it must not go unreported.
            told = {"exception": cut(f"{error!r}\n\n{traceback.format_exc()}", MAX_TEXT)}
        if status in (FAILED, TIMED_OUT):
            # The occurrence keeps what its latest attempt failed with; its log keeps that of every attempt.
            context.log("error", told["exception"])
        self.finish(run, status, durationMs=int((time.monotonic() - started) * 1000), **told)

    def finish(self, run, status, **told):
        with self.lock:
            if run.is_over:
                return None
            run.is_over = True
        if status is None:  # It is somebody else's, and so is what is told about it.
            return self.settled(run)
        return self.post.report(run.report(status, **told), lambda: self.settled(run))

    def acknowledge(self, run):
        with self.lock:
            run.is_acked, delivery = True, run.delivery
        self.answer(delivery, "basic_ack")

    def settled(self, run):
        """Its last report is with the broker."""
        if self.claims:
            try:
                self.claims.end(run.key)
            except REDIS_TROUBLE as error:
                log.warning("the end of %s could not be marked: %r", run.key, error)
        with self.lock:
            self.runs.pop(run.key, None)
            self.ended[run.key] = True
            while len(self.ended) > 10_000:
                self.ended.popitem(last=False)
        if not run.is_acked:
            self.acknowledge(run)


def read_message(job, body):
    """Raises when it is no message for this job."""
    if len(body) > MAX_MESSAGE:
        raise ValueError(f"it has {len(body)} bytes; {MAX_MESSAGE} are the most")
    message = json.loads(body)
    message["occurrenceId"] = str(uuid.UUID(str(message["occurrenceId"])))
    message.setdefault("attempt", 1)
    if type(message["attempt"]) is not int or message["attempt"] < 1:
        raise ValueError(f"its attempt is {message['attempt']!r}; attempts count from 1")
    if message["jobType"].lower() != job.name.lower():
        raise ValueError(f"its job type is {message['jobType']!r}, this queue's is {job.name!r}")
    return message


# --- The jobs. ---


@dataclasses.dataclass
class Greeting:
    name: str = dataclasses.field(metadata={"description": "Who is greeted."})
    times: int = dataclasses.field(default=1, metadata={"description": "How often.", "minimum": 1, "maximum": 100})


@job("greet")
def greet(ctx, greeting: Greeting):
    """Greets somebody, with a line in the log for each time."""
    for n in range(greeting.times):
        ctx.info(f"Hello, {greeting.name}!", time=n + 1)
        ctx.progress(100 * (n + 1) // greeting.times, f"{n + 1} of {greeting.times}")
    return {"greeted": greeting.name, "times": greeting.times}


@dataclasses.dataclass
class Unsteady:
    failures: int = dataclasses.field(metadata={"description": "How many attempts fail.", "minimum": 0})


@job("unsteady")
def unsteady(ctx, unsteady: Unsteady):
    """Fails a few times, then succeeds. Raising anything is all a job does to be tried again."""
    ctx.info(f"attempt {ctx.attempt}")
    if ctx.attempt <= unsteady.failures:
        raise ConnectionError(f"the other side hung up on attempt {ctx.attempt}")
    return f"succeeded on attempt {ctx.attempt}"


@dataclasses.dataclass
class Wait:
    seconds: float = dataclasses.field(metadata={"description": "How long.", "minimum": 0})


@job("wait", concurrency=20)
def wait(ctx, wait: Wait):
    """Waits, says how far it is, and ends early when it is asked to."""
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < wait.seconds:
        ctx.progress(100 * passed / wait.seconds, f"{passed:.0f} of {wait.seconds:g} s")
        ctx.sleep(min(1.0, wait.seconds - passed))
    return None


@dataclasses.dataclass
class Refund:
    orders: list[str] = dataclasses.field(metadata={"description": "Order numbers."})
    dry: bool = dataclasses.field(default=True, metadata={"description": "Only say what would be done."})


@job("refund")
def refund(ctx, refund: Refund):
    """Shows how a job says that trying again is of no use, and that it wants to be tried later."""
    for order in refund.orders:
        if not order.isdigit():
            raise Permanent(f"{order!r} is no order number: no attempt will change that")
        if order.endswith("9"):
            raise Retry(f"order {order} is locked by somebody", seconds=1)
        if order.endswith("8") and ctx.attempt == 1:
            raise Snooze("the bank is closed", seconds=0.5)
        ctx.info("would be refunded" if refund.dry else "refunded", order=order)
    return {"refunded": 0 if refund.dry else len(refund.orders)}


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pika").setLevel(logging.ERROR)
    Worker(Settings(os.environ)).work()
