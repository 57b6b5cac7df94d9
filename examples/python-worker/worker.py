#!/usr/bin/env python3
"""A Milvaion worker in Python, written from docs/protocol/README.md alone.

It needs the package `pika`. With the package `redis` and REDIS_URL it also claims its runs and receives cancellations.
The jobs are at the end of the file. A job is a function with a dataclass for its input; the rest of the file implements
the protocol.

The main thread consumes messages, `Reporter` sends reports and log lines, `Heartbeater` and `RedisHeartbeater` send
heartbeats, `CancellationListener` receives cancellations, and `Watcher` reports runs that do not end. Each run has its
own thread. Connections of pika must not be shared between threads, so the first three have one each.
"""

import collections
import contextlib
import dataclasses
import datetime
import json
import logging
import os
import random
import re
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
from pika.adapters.utils.connection_workflow import AMQPConnectorException

try:
    import redis
except ImportError:  # Without it there are no claims, and messages are acknowledged late.
    redis = None

VERSION = "1.0.0"
MAX_MESSAGE = 1024 * 1024
MAX_TEXT = 64 * 1024
MAX_LINE = 8 * 1024
MAX_CHECKPOINT = 32 * 1024
MAX_DEPTH = 100  # levels of a checkpoint or of a line's data; the server reads messages of at most 127
MAX_DELAY = 30 * 24 * 3600  # seconds until the next attempt
MAX_LINES = 10_000  # log lines of one attempt
MAX_BUFFERED_LINES = 10_000  # log lines of all runs that wait for the broker
HEARTBEAT_INTERVAL = 5.0  # seconds
LEASE_MS = 15_000
CLAIM_RETENTION_MS = 24 * 3600 * 1000
UNREPORTED_MS = 600_000  # after which an end that is recorded in Redis should have been reported
DEFAULT_TIMEOUT = 3600  # seconds
PERMIT_TIMEOUT = 2.0  # seconds that a delivery waits for a permit before it is handed back
ANSWER_TIMEOUT = 10.0  # seconds that the broker has for a confirmation
STOP_GRACE = 2.0  # seconds that a run has to end after its timeout or a request before its thread is left behind
LEFT_BEHIND = 60.0  # seconds that such a thread may last before the process stops
CLAIM_CHECK_TIMEOUT = 10.0  # seconds that a claim check waits for the reply of the server

QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED, TIMED_OUT, UNKNOWN = range(7)
# The last is raised if the broker accepts a connection and says nothing.
BROKER_ERRORS = (pika.exceptions.AMQPError, OSError, AMQPConnectorException)
# Of a traceparent; no id consists of zeros.
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
PROGRESS_INTERVAL = 0.25  # seconds between two progress reports of a run
CLOCK_DIFFERENCE_MS = 2000  # between the clocks of the server, which dates messages, and of Redis
REDIS_ERRORS = (redis.RedisError, OSError) if redis else ()
REPLY_TO = "amq.rabbitmq.reply-to"  # The broker delivers what is sent there to the channel that consumes it.
MAX_NUMBER = 2**32 - 1

log = logging.getLogger("worker")


# --- The interface for jobs. ---


class Permanent(Exception):
    """A permanent failure: no attempt can succeed."""


class Retry(Exception):
    """A failure whose next attempt starts after `seconds` instead of the job's backoff."""

    def __init__(self, message, seconds):
        super().__init__(message)
        self.seconds = delay(seconds)


class Snooze(Exception):
    """The job cannot run now. This is no failure; the next attempt starts after `seconds`."""

    def __init__(self, message, seconds):
        super().__init__(message)
        self.seconds = delay(seconds)


def delay(seconds):
    """Checks the delay of a Retry or a Snooze. A longer one than the protocol allows is shortened."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise ValueError(f"the delay must be a number of seconds, 0 or more, not {seconds!r}")
    return min(seconds, MAX_DELAY)


class RunEnded(BaseException):
    """Raised inside a job that has to end. It is no Exception, so that a job does not catch it by accident."""

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
    """Registers a function as a job type, described by its docstring's first line. Its last parameter is the input: a
    dataclass, or a dict for any object."""

    def add(function):
        hints = [hint for key, hint in typing.get_type_hints(function).items() if key != "return"]
        JOBS[name] = Job(name, function, hints[-1], concurrency, timeout)
        return function

    return add


class Context:
    """The context of a run: its identity, its log, its progress and its checkpoint."""

    def __init__(self, run, reporter):
        self._run, self._reporter, self._lines, self._lock = run, reporter, 0, threading.Lock()
        self._next_progress = 0.0
        self.occurrence_id, self.attempt = run.key
        self.scheduled_for = run.message.get("scheduledFor")
        self.max_retries = run.message["maxRetries"]
        self.last_checkpoint = run.message.get("checkpoint")  # of an earlier attempt

    def log(self, level, message, **data):
        if self._run.is_over:  # Its end is reported, and its thread was left behind.
            return
        with self._lock:
            if self._lines > MAX_LINES:
                return
            if self._lines == MAX_LINES:
                level, message, data = "warn", f"after {MAX_LINES} lines, the log of this attempt ends here", {}
            line = {"seq": self.attempt * 1_000_000 + self._lines, "at": now(), "level": level}
            self._lines += 1
        line["message"] = cut(str(message), MAX_LINE)
        if data:
            # Values that JSON cannot represent become strings here, so that the reporter thread cannot fail on them. Data of
            # more than 8 KiB is left out, as the server would do, and so is what cannot be written at all.
            with contextlib.suppress(Exception):
                line["data"] = plain(data, MAX_LINE, default=str, skipkeys=True)
        self._reporter.log(self.occurrence_id, line)

    def info(self, message, **data):
        self.log("info", message, **data)

    def warn(self, message, **data):
        self.log("warn", message, **data)

    def progress(self, percent, message=""):
        """Reports the progress in percent, from 0 to 100. At most four reports a second are sent; others are left out. One of
        100 percent is always sent."""
        self.check()
        if percent >= 100 or time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_INTERVAL
            progress = {"percent": max(0, min(100, int(percent))), "message": cut(str(message), 200)}
            self._reporter.report(self._run.report(RUNNING, progress=progress))

    def checkpoint(self, value):
        """Keeps a copy of a value from which the next attempt can continue. It is sent with the next progress report and with
        the end. Raises ValueError if JSON cannot represent it, or if it is too large."""
        try:
            self._run.checkpoint = plain(value, MAX_CHECKPOINT)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"the checkpoint cannot be kept: {error}") from None

    def check(self):
        """Ends the run here if it has to end. Python cannot stop a thread from outside, so a long job must call this,
        `sleep` or `progress` regularly. The thread of a job that does not is left behind."""
        reason = self._run.end_reason()
        if reason:
            raise RunEnded(*reason)

    def sleep(self, seconds):
        """Sleeps, and returns early if the run has to end."""
        until = time.monotonic() + seconds
        while (left := min(until, self._run.deadline) - time.monotonic()) > 0 and not self._run.stop.wait(left):
            pass
        self.check()


# --- Typed input: the JSON Schema of a dataclass, from which the dashboard draws a form, and its parser. ---

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


def schema_of(cls):
    if cls is dict:
        return {"type": "object"}
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
        raise Permanent(f"the input must be an object, not {json.dumps(data)[:100]}")
    if cls is dict:
        return data
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
            raise Permanent(f"the input's {field.name} must be of type {wanted}, not {json.dumps(value)[:100]}")
        values[field.name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise Permanent(f"the input is invalid: {error}") from None


def is_a(value, kind):
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


# --- Helpers. ---


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def cut(text, most):
    """Cuts a text to `most` bytes, with a mark, and replaces NUL characters, which the database cannot store."""
    raw = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(raw) <= most:
        return raw.decode()
    end = most - 40
    return f"{raw[:end].decode('utf-8', 'ignore')}… [{len(raw) - end} bytes cut]"


def plain(value, most, **options):
    """Returns a copy of a value that has only what JSON can represent. Raises an error if that is impossible, or if the JSON
    has more than `most` bytes or more than MAX_DEPTH levels: a message with such a part would be unreadable as a whole."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), **options)
    size = len(text.encode("utf-8", "replace"))
    if size > most:
        raise ValueError(f"it has {size} bytes, and the maximum is {most}")
    copy, depth = json.loads(text), 0
    level = [copy]
    while level := [one for one in level if isinstance(one, (dict, list))]:
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    if depth > MAX_DEPTH:
        raise ValueError(f"it has {depth} levels, and the maximum is {MAX_DEPTH}")
    return copy


def describe(error):
    """Returns an error as text, also if the code of the error fails."""
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


class Vital(threading.Thread):
    """A thread without which the process must not go on: it would still send heartbeats, and its runs would never end."""

    def __init__(self, name):
        super().__init__(name=name, daemon=True)

    def run(self):
        try:
            self.loop()
        except BaseException:
            log.critical("the thread %s failed, so the process ends", self.name, exc_info=True)
            os._exit(1)


class Backoff:
    """A growing pause with jitter between two attempts to connect."""

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
        self.grace = float(read("MILVAION_SHUTDOWN_GRACE_SECONDS", "20"))
        self.instance_id = f"{self.worker_id}-{uuid.uuid4().hex[:8]}"

    def name(self, what):
        return f"{self.prefix}.{what}"

    def key(self, what):
        return f"{self.key_prefix}{what}"


def published(message):
    """Returns the instant at which a message was created, in milliseconds since 1970; 0 if that is unknown."""
    try:
        return int(datetime.datetime.fromisoformat(message["timestamp"]).timestamp() * 1000)
    except (ValueError, KeyError, TypeError):
        return 0


# --- The broker: names, topology, publishing. ---


def word(name):
    """Returns a name as one word of a routing key: in lower case, without the dot that separates words."""
    return name.lower().replace("_", "__").replace(".", "_d")


def connect(settings, purpose, seconds=ANSWER_TIMEOUT):
    parameters = pika.URLParameters(settings.amqp_url)
    parameters.heartbeat = 10
    parameters.blocked_connection_timeout = 30
    parameters.socket_timeout = parameters.stack_timeout = seconds
    parameters.client_properties = {"connection_name": f"{settings.instance_id} {purpose}"}
    return pika.BlockingConnection(parameters)


@contextlib.contextmanager
def limited(connection, seconds):
    """Breaks a connection off if what is done meanwhile takes longer. It then raises one of BROKER_ERRORS.

    While pika waits for an answer, it postpones the timers of BlockingConnection.call_later until the answer has arrived.
    Those of the connection inside do run, so this uses the part of pika that also ends a connection without heartbeats."""
    inner = connection._impl
    error = pika.exceptions.AMQPConnectionError(f"the broker has not answered within {seconds:.3g} s")
    timer = inner.ioloop.call_later(max(seconds, 0), lambda: inner.is_closed or inner._terminate_stream(error))
    try:
        yield
    finally:
        if connection.is_open:
            inner.ioloop.remove_timeout(timer)


def close(connection, seconds=1.0):
    try:
        if connection is not None and connection.is_open:
            with limited(connection, seconds):
                connection.close()
    except BROKER_ERRORS:
        pass


def declare_shared(channel, settings):
    """Declares the exchanges and queues that workers and the server share. All of them must declare the same."""
    channel.exchange_declare(settings.name("jobs"), "topic", durable=True)
    channel.exchange_declare(settings.name("dlx"), "fanout", durable=True)
    channel.queue_declare(settings.name("dlq"), durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_bind(settings.name("dlq"), settings.name("dlx"), "")
    for name in map(settings.name, ("status", "logs", "registration", "claims")):
        channel.exchange_declare(name, "direct", durable=True)
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_bind(name, name, name)


def declare_queue(channel, settings, job_type):
    worker, kind = word(settings.worker_id), word(job_type)
    queue = settings.name(f"jobs.{worker}.{kind}")
    arguments = {
        "x-max-priority": 5, "x-dead-letter-exchange": settings.name("dlx"), "x-queue-type": "classic"
    }
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.queue_bind(queue, settings.name("jobs"), f"{worker}.{kind}.*")
    return queue


class Publisher:
    """A connection for publishing, used by one thread. With `on_reply` it also receives the replies of the server."""

    def __init__(self, settings, purpose, on_reply=None, confirms=True):
        self.settings, self.purpose, self.on_reply, self.confirms = settings, purpose, on_reply, confirms
        self.channel = None

    def open(self, seconds=ANSWER_TIMEOUT):
        """Opens a connection if none is open. Returns true if it is new, so that the caller can register on it."""
        if self.channel is not None and self.channel.is_open:
            return False
        self.close()
        until = time.monotonic() + seconds
        connection = connect(self.settings, self.purpose, seconds)
        try:
            with limited(connection, until - time.monotonic()):
                channel = connection.channel()
                if self.confirms:
                    channel.confirm_delivery()
                declare_shared(channel, self.settings)
                if self.on_reply:
                    channel.basic_consume(REPLY_TO, self.on_reply, auto_ack=True)
        except BROKER_ERRORS:
            close(connection)
            raise
        self.channel = channel
        return True

    def send(self, exchange, message, seconds=ANSWER_TIMEOUT, **properties):
        """Publishes a message. With confirms it returns once the broker has confirmed it, and raises one of BROKER_ERRORS if
        that is unknown after `seconds`: pika waits for the confirmation, and raises if the message is refused or returned."""
        self.open(seconds)
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
        with limited(self.channel.connection, seconds):
            self.channel.basic_publish(name, name, body, envelope, mandatory=self.confirms)

    def idle(self):
        """Processes the broker's heartbeats, and replies."""
        if self.channel is not None and self.channel.is_open:
            self.channel.connection.process_data_events(0)

    def close(self):
        if self.channel is not None:
            close(self.channel.connection)
        self.channel = None


class Reporter(Vital):
    """Sends reports and log lines to the server in order, and keeps each until the broker has confirmed it."""

    def __init__(self, settings):
        super().__init__("reporter")
        self.publisher = Publisher(settings, "reports")
        self.changed = threading.Condition()
        self.reports = collections.deque()  # (report, callback after its confirmation)
        self.lines = {}  # occurrence id -> lines
        self.count = self.dropped = 0
        self.is_sending = False

    def report(self, report, confirmed=None):
        with self.changed:
            if "progress" in report:  # A newer progress report replaces one that is not sent yet.
                mine = [n for n, (one, _) in enumerate(self.reports) if "progress" in one and same(one, report)]
                if mine:
                    self.reports[mine[-1]] = (report, confirmed)
                    return
            self.reports.append((report, confirmed))
            self.changed.notify_all()

    def log(self, occurrence, line):
        with self.changed:
            if self.count >= MAX_BUFFERED_LINES:
                self.dropped += 1
                return
            self.lines.setdefault(occurrence, []).append(line)
            self.count += 1
            self.changed.notify_all()

    def flush(self, seconds):
        """Waits until everything is sent. Returns false if that takes longer than `seconds`."""
        with self.changed:
            return self.changed.wait_for(lambda: not (self.reports or self.lines or self.is_sending), seconds)

    def loop(self):
        backoff = Backoff()
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.reports or self.lines, timeout=1.0)
                # Both are taken at once, and lines are sent first: a run that is shown as ended has its whole log.
                reports = [self.reports.popleft() for _ in bounded([report for report, _ in self.reports], 200)]
                lines, self.lines = self.lines, {}
                self.is_sending = bool(reports or lines)
            try:
                self.send_lines(lines)
                self.send_reports(reports)
                self.publisher.idle()
                backoff = Backoff()
            except BROKER_ERRORS as error:
                log.warning("reports could not be sent and are kept for another attempt: %r", error)
                with self.changed:
                    self.reports.extendleft(reversed(reports))
                    for occurrence, left in lines.items():
                        self.lines[occurrence] = left + self.lines.get(occurrence, [])
                self.publisher.close()
                time.sleep(backoff.next())
            with self.changed:
                self.is_sending = False
                self.changed.notify_all()

    def send_lines(self, lines):
        """Sends lines, and removes those that were sent."""
        while lines:
            occurrence = next(iter(lines))
            some = bounded(lines[occurrence], 500)
            self.publisher.send("logs", {"occurrenceId": occurrence, "lines": some})
            lines[occurrence] = lines[occurrence][len(some) :]
            if not lines[occurrence]:
                del lines[occurrence]
            with self.changed:
                self.count -= len(some)
                dropped, self.dropped = self.dropped, 0
            if dropped:
                log.warning("%d log lines were dropped while the broker was not reachable", dropped)

    def send_reports(self, reports):
        if reports:
            self.publisher.send("status", {"reports": [report for report, _ in reports]})
        sent = reports[:]
        reports.clear()
        for _, confirmed in sent:
            if confirmed:
                confirmed()


def same(one, other):
    return (one["occurrenceId"], one["attempt"]) == (other["occurrenceId"], other["attempt"])


def bounded(things, most):
    """Returns the first `most` of them, or as many as fit into one message."""
    size, some = 0, []
    for thing in things[:most]:
        size += len(json.dumps(thing, ensure_ascii=False).encode("utf-8", "replace"))
        if some and size > MAX_MESSAGE // 2:
            break
        some.append(thing)
    return some


class ClaimChecker:
    """Asks the server whether a possible duplicate may start. These are rare, so one request at a time is enough."""

    def __init__(self, settings):
        self.settings, self.lock, self.replies = settings, threading.Lock(), {}
        # A request needs no confirm, because its message comes again if there is no reply.
        self.publisher = Publisher(settings, "claims", on_reply=self.on_reply, confirms=False)
        self.used = 0.0

    def ask(self, key, timeout=CLAIM_CHECK_TIMEOUT, starts=False):
        """Returns the server's reply, or None without one. With `starts` the server records the start of the run, which
        follows if it is granted."""
        request_id, until = str(uuid.uuid4()), time.monotonic() + timeout
        if not self.lock.acquire(timeout=timeout):
            return None
        try:
            if time.monotonic() - self.used > 5.0:
                self.publisher.close()  # The broker's heartbeats were not processed in the meantime.
            try:
                # At least a moment, because pika accepts no timeout of zero.
                if self.publisher.open(max(until - time.monotonic(), 0.1)):
                    self.replies.clear()
                request = {"occurrenceId": key[0], "attempt": key[1], "instanceId": self.settings.instance_id}
                if starts:
                    request["startsAt"] = now()
                left = max(until - time.monotonic(), 0.1)
                self.publisher.send("claims", request, left, reply_to=REPLY_TO, correlation_id=request_id)
                while request_id not in self.replies and (left := until - time.monotonic()) > 0:
                    self.publisher.channel.connection.process_data_events(left)
                return self.replies.pop(request_id, None)
            except BROKER_ERRORS as error:
                log.warning("the claim check of %s could not be sent: %r", key, error)
                self.publisher.close()
                return None
            finally:
                self.used = time.monotonic()
        finally:
            self.lock.release()

    def on_reply(self, _channel, _method, properties, body):
        self.replies[properties.correlation_id] = json.loads(body)


# --- Redis: claims and cancellations. ---

# KEYS: running:{occurrence}, cancel:{occurrence}. ARGV: instance, attempt, lifetime of the key in milliseconds.
CLAIM = """
local held, mark = redis.call('GET', KEYS[1]), ARGV[1] .. ':' .. ARGV[2]
local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return {held, redis.call('PTTL', KEYS[1]), ''} end
redis.call('SET', KEYS[1], mark, 'PX', ARGV[3])
return {'', 0, redis.call('GET', KEYS[2]) or ''}
"""
# The same, with the key claims_since as KEYS[3], the lease in milliseconds as ARGV[4], and 1 as ARGV[5] if the message may be
# a duplicate. The fourth value of the answer is the time since when Redis has held claims, in milliseconds; it is set if
# there is none. Within a lease after it, the claim of a living holder may be missing: what may be a duplicate is not claimed
# then, and the second value is the time left. All is one script, because Redis may lose its data between two.
CLAIM_SINCE = f"""
local function claim()
{CLAIM}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[3], string.format('%d', now), 'NX')
local since = redis.call('GET', KEYS[3])
local age, lease = now - (tonumber(since) or 0), tonumber(ARGV[4])
local waits = ARGV[5] == '1' and age >= 0 and age < lease
local answer = waits and {{'', lease - age, ''}} or claim()
answer[4] = since
return answer
"""
# KEYS: running:{occurrence}. ARGV: instance, attempt, retention in milliseconds. Keeps the claim of a later attempt.
END = """
local held = redis.call('GET', KEYS[1])
local other = held and held ~= ARGV[1] .. ':' .. ARGV[2] and tonumber(string.match(held, ':(%d+)$'))
if other and other >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], 'done:' .. ARGV[2], 'PX', ARGV[3])
return 1
"""
# KEYS: running:{occurrence}. ARGV: instance:attempt.
GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
# KEYS: running:{occurrence} of each run. ARGV: lifetime of the keys in milliseconds, then the mark of each run. Returns
# the positions and the values of the keys in which another instance has claimed this attempt or a later one, in turns.
RENEW = """
local lost = {}
for i, key in ipairs(KEYS) do
    local mark, held = ARGV[i + 1], redis.call('GET', key)
    local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
    if other and other >= tonumber(string.match(mark, ':(%d+)$')) then
        lost[#lost + 1], lost[#lost + 2] = i, held
    else
        redis.call('SET', key, mark, 'PX', ARGV[1])
    end
end
return lost
"""


class Claims:
    """The claims of runs in Redis, and the keys with their cancellations."""

    def __init__(self, settings):
        self.settings = settings
        self.redis = redis.Redis.from_url(
            settings.redis_url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1
        )
        self.claim_script = self.redis.register_script(CLAIM_SINCE)
        self.end_script = self.redis.register_script(END)
        self.give_back_script = self.redis.register_script(GIVE_BACK)
        self.renew_script = self.redis.register_script(RENEW)

    def running(self, key):
        return self.settings.key(f"running:{key[0]}")

    def cancel_key(self, key):
        return self.settings.key(f"cancel:{key[0]}")

    def claim(self, key, may_be_duplicate):
        """Claims a run. Returns the holder, the rest of its lease in milliseconds, the value of the cancel key, and the time
        since when Redis has held claims, in milliseconds.

        Without a holder the claim is ours, unless there is a rest: the time after which it can be claimed. The lease is None
        if it has expired: its holder no longer renews it, and may have started the run; or if the attempt has ended, and its
        end should have been reported long ago."""
        keys = [self.running(key), self.cancel_key(key), self.settings.key("claims_since")]
        life, is_doubtful = LEASE_MS + CLAIM_RETENTION_MS, 1 if may_be_duplicate else 0
        arguments = [self.settings.instance_id, key[1], life, LEASE_MS, is_doubtful]
        held, left, request, since = self.claim_script(keys, arguments)
        holder, _, attempt = held.rpartition(":")
        if holder == "done" or (holder and int(attempt) > key[1]):
            # The end of this attempt should have been reported within minutes.
            is_unreported = int(attempt) == key[1] and left < CLAIM_RETENTION_MS - UNREPORTED_MS
            return "done", None if is_unreported else 0, request, int(since)
        # Some workers keep the key for the lease only; then no more than a lease is left.
        lease = left if left <= LEASE_MS else left - CLAIM_RETENTION_MS if left > CLAIM_RETENTION_MS else None
        return holder, lease, request, int(since)

    def end(self, key):
        self.end_script([self.running(key)], [self.settings.instance_id, key[1], CLAIM_RETENTION_MS])

    def give_back(self, key):
        """Deletes the claim of a message that was handed back, so that its next receiver finds none."""
        try:
            self.give_back_script([self.running(key)], [f"{self.settings.instance_id}:{key[1]}"])
        except REDIS_ERRORS as error:
            log.warning("the claim of %s could not be deleted: %r", key, error)

    def beat(self, keys):
        """Sends the heartbeat and renews the lease of every run. Returns the runs that another instance has claimed."""
        heartbeat = self.settings.key(f"heartbeat:{self.settings.instance_id}")
        self.redis.set(heartbeat, int(time.time() * 1000), px=LEASE_MS)
        if not keys:
            return []
        marks = [f"{self.settings.instance_id}:{attempt}" for _, attempt in keys]
        lost = self.renew_script([self.running(key) for key in keys], [LEASE_MS + CLAIM_RETENTION_MS, *marks])
        return [keys[position - 1] for position in lost[::2]]

    def requests(self, keys):
        """Returns each run with its cancel request and the first attempt that is not revoked, where there are any."""
        if not keys:
            return []
        cancelled = self.redis.mget([self.cancel_key(key) for key in keys])
        revoked = self.redis.mget([self.settings.key(f"revoke:{key[0]}") for key in keys])
        return [(key, text, int(first or 0)) for key, text, first in zip(keys, cancelled, revoked)]

    def leave(self):
        self.redis.delete(self.settings.key(f"heartbeat:{self.settings.instance_id}"))


def read_cancel_request(text):
    """Returns the occurrence, the highest cancelled attempt and the reason of a cancel message. Without an attempt, it is
    about all attempts."""
    try:
        request = json.loads(text)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        request = {"reason": str(text)}
    attempt, reason = request.get("attempt"), str(request.get("reason") or "cancelled on request")
    return request.get("occurrenceId"), attempt if isinstance(attempt, (int, float)) else float("inf"), reason


class CancellationListener(Vital):
    """Receives cancellations. Those published while it was disconnected are read from their keys after each connect."""

    def __init__(self, worker):
        super().__init__("cancellations")
        self.worker = worker

    def loop(self):
        backoff = Backoff()
        while True:
            try:
                # A connection of its own, because it blocks while it waits.
                client = redis.Redis.from_url(
                    self.worker.settings.redis_url, decode_responses=True, health_check_interval=10
                )
                channel = client.pubsub()
                channel.subscribe(self.worker.settings.key("cancellation_channel"))
                while True:
                    message = channel.get_message(timeout=5)
                    if message and message["type"] == "subscribe":
                        self.worker.read_requests()
                        backoff = Backoff()
                    elif message and message["type"] == "message":
                        self.worker.cancel(*read_cancel_request(message["data"]))
            except Exception as error:  # Also for a message that cannot be read.
                log.warning("cancellations are delayed until Redis is reachable again: %r", error)
                time.sleep(backoff.next())


class Heartbeater(Vital):
    """Sends heartbeats with the current runs to the server. It has its own thread, so that no run can delay it."""

    def __init__(self, worker):
        super().__init__("heartbeats")
        self.worker, self.publisher = worker, Publisher(worker.settings, "heartbeats", on_reply=self.on_answer)
        self.leave, self.registered = threading.Event(), False

    def loop(self):
        while not self.leave.is_set():
            self.beat_server()
            self.leave.wait(HEARTBEAT_INTERVAL)
        try:
            self.publisher.send("registration", {"kind": "goodbye", "instanceId": self.worker.settings.instance_id})
        except BROKER_ERRORS:
            pass
        self.publisher.close()

    def beat_server(self):
        settings = self.worker.settings
        message = {"workerId": settings.worker_id, "instanceId": settings.instance_id, "timestamp": now()}
        try:
            # The broker and the server at the other end of a new connection may not know this instance.
            if self.publisher.open():
                self.registered = False
            if self.registered:
                message.update(kind="heartbeat", running=[key[0] for key in self.worker.unsettled()])
                message.update(stopping=self.worker.is_stopping)
                self.publisher.send("registration", message)
            else:
                capacity = sum(one.concurrency for one in JOBS.values())
                types = [one.info() for one in JOBS.values()]
                message.update(kind="hello", host=socket.gethostname(), pid=os.getpid(), version=VERSION)
                features = ["checkpoint", "claims"] if self.worker.claims else ["checkpoint"]
                message.update(capacity=capacity, jobTypes=types, protocol=1, features=features)
                self.publisher.send("registration", message, reply_to=REPLY_TO, correlation_id=str(uuid.uuid4()))
                self.registered = True
            self.publisher.idle()  # The answer to hello, if it has arrived.
        except BROKER_ERRORS as error:
            log.warning("the heartbeat could not be sent to the server: %r", error)
            self.publisher.close()

    def on_answer(self, _channel, _method, _properties, body):
        """Logs the answer of the server to hello: what it refused. A worker without an answer runs all the same."""
        try:
            answer = json.loads(body)
            problems, accepted = answer.get("problems") or [], answer.get("accepted")
            for one in problems:
                part = " ".join(filter(None, (one.get("jobType"), one.get("schedule"))))
                log.warning("the server refused a part of the registration: %s: %s", part or "the worker", one.get("text"))
        except (ValueError, AttributeError, TypeError) as error:
            return log.warning("the answer of the server to the registration cannot be read: %r", error)
        if not accepted:
            log.error("the server refused the registration of %s", self.worker.settings.instance_id)
        return None


class RedisHeartbeater(Vital):
    """Sends heartbeats to Redis, and renews the claims. It has its own thread, so that a broker that does not answer cannot
    delay it: the heartbeat and the leases end after 15 seconds."""

    def __init__(self, worker):
        super().__init__("heartbeats in Redis")
        self.worker, self.leave = worker, threading.Event()

    def loop(self):
        claims = self.worker.claims
        while not self.leave.is_set():
            try:
                for occurrence, attempt in claims.beat(self.worker.claimed()):
                    log.warning("attempt %s of %s was claimed by another instance and is ended here", attempt, occurrence)
                    self.worker.cancel(occurrence, attempt, "claimed by another instance", status=None)
                self.worker.read_requests()
            except REDIS_ERRORS + (ValueError,) as error:  # The latter if a key has no text or number.
                log.warning("the heartbeat could not be sent to Redis: %r", error)
            self.leave.wait(HEARTBEAT_INTERVAL)
        try:
            claims.leave()
        except REDIS_ERRORS:
            pass


# --- From a delivery to its last report. ---


class Watcher(Vital):
    """Reports the runs that do not end. Python cannot stop their threads, so it leaves them behind."""

    def __init__(self, worker):
        super().__init__("watcher")
        self.worker = worker

    def loop(self):
        while True:
            time.sleep(0.25)
            self.worker.leave_behind()


class Run:
    """An attempt that waits for a permit, runs, or waits for the confirmation of its last report."""

    def __init__(self, worker, job, message, delivery, may_be_duplicate):
        self.worker, self.job, self.message, self.delivery = worker, job, message, delivery
        self.may_be_duplicate = may_be_duplicate
        self.key = (message["occurrenceId"], message["attempt"])
        self.stop = threading.Event()
        self.reason = self.checkpoint = self.context = self.thread = None
        self.has_started = self.is_over = self.is_acked = self.is_revoked = self.awaits_confirm = False
        self.allowed = message.get("timeoutSeconds") or job.timeout
        self.started = self.deadline = self.requested = float("inf")

    def report(self, status, **more):
        occurrence, attempt = self.key
        source = {"occurrenceId": occurrence, "attempt": attempt, "instanceId": self.worker.settings.instance_id}
        if "progress" not in more and TRACEPARENT.fullmatch(
            traceparent := str(self.message.get("traceparent"))
        ):
            source["traceparent"] = traceparent  # This worker records no spans, so it repeats that of the message.
        if self.checkpoint is not None and status != COMPLETED:
            source["checkpoint"] = self.checkpoint
        return {**source, "status": status, "timestamp": now(), **more}

    def end(self, status, reason):
        """Requests the end of the run. The first reason is kept."""
        self.reason = self.reason or (status, reason)
        self.requested = min(self.requested, time.monotonic())
        self.stop.set()

    def end_reason(self):
        if not self.reason and time.monotonic() >= self.deadline:
            self.reason = (TIMED_OUT, f"timed out after {self.allowed} s")
        return self.reason

    def has_ignored_its_end(self):
        return time.monotonic() >= min(self.requested, self.deadline) + STOP_GRACE

    def duration(self):
        return max(0, int((time.monotonic() - self.started) * 1000)) if self.context else 0


class Delivery(typing.NamedTuple):
    channel: typing.Any
    tag: int
    since: float


class Worker:
    """The consumer of all job types, with its runs and permits."""

    def __init__(self, settings):
        self.settings = settings
        self.claims = Claims(settings) if redis and settings.redis_url else None
        self.reporter, self.claim_checker = Reporter(settings), ClaimChecker(settings)
        self.heartbeater = Heartbeater(self)
        self.redis_heartbeater = RedisHeartbeater(self) if self.claims else None
        self.lock = threading.Lock()
        self.runs = {}  # (occurrence id, attempt) -> Run
        self.ended = collections.OrderedDict()  # the runs that ended last
        self.permits = {name: one.concurrency for name, one in JOBS.items()}
        self.waiting = {name: collections.deque() for name in JOBS}
        self.left_behind = []  # threads of runs whose end is reported, with the time at which each was left
        self.is_stopping = self.is_blocked = self.is_consumer_cancelled = False

    # Called by other threads.

    def started(self):
        with self.lock:
            return [run.key for run in self.runs.values() if run.has_started and not run.is_over]

    def unsettled(self):
        """Returns the started runs whose end is not confirmed. The server treats runs in no heartbeat as lost."""
        with self.lock:
            return [run.key for run in self.runs.values() if run.has_started]

    def claimed(self):
        """Returns the runs whose claims are renewed: not those that were given back because the server revoked them."""
        with self.lock:
            return [run.key for run in self.runs.values() if run.has_started and not (run.is_revoked and run.is_over)]

    def cancel(self, occurrence, attempt, reason, status=CANCELLED):
        """Ends this attempt and earlier ones."""
        with self.lock:
            ending = [run for key, run in self.runs.items() if key[0] == occurrence and key[1] <= attempt]
        for run in ending:
            run.end(status, reason)

    def read_requests(self):
        for key, text, first in self.claims.requests(self.started()):
            if text:
                _, attempt, reason = read_cancel_request(text)
                self.cancel(key[0], attempt, reason)
            if key[1] < first:
                self.revoke(key)

    def revoke(self, key):
        """Ends a run because the server receives nothing of this process and gives the run to another one."""
        with self.lock:
            run = self.runs.get(key)
        if run:
            run.is_revoked = True
            run.end(QUEUED, "revoked: the server receives no messages of this worker")

    def leave_behind(self):
        """Reports the end of the runs that had to end and go on. Each leaves the heartbeats once that is confirmed, but keeps
        its permit until its thread ends. A process with a thread that does not end stops, as on SIGTERM, and fails."""
        with self.lock:
            late = [run for run in self.runs.values() if run.has_started and not run.is_over and run.has_ignored_its_end()]
        for run in late:
            status, reason = run.end_reason()
            text = cut(f"{reason}; it did not stop when requested and was left behind", MAX_TEXT)
            log.error("the run %s: %s", run.key, text)
            if run.context and status == TIMED_OUT:
                run.context.log("error", text)
            self.left_behind.append((run.thread, time.monotonic()))
            self.finish(run, status, durationMs=run.duration(), exception=text)
        self.left_behind = [(thread, since) for thread, since in self.left_behind if thread.is_alive()]
        if not self.is_stopping and any(time.monotonic() - since > LEFT_BEHIND for _, since in self.left_behind):
            log.error("the process stops, because the thread of an ended run goes on")
            self.is_stopping = self.is_blocked = True

    # The main thread.

    def work(self):
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        self.reporter.start()
        self.heartbeater.start()
        Watcher(self).start()
        if self.claims:
            self.redis_heartbeater.start()
            CancellationListener(self).start()
        log.info("%s offers %s, %s", self.settings.instance_id, ", ".join(JOBS), self.claim_mode())
        connection, backoff = None, Backoff()
        while not self.is_stopping:
            try:
                connection = connect(self.settings, "consume")
                with limited(connection, 3 * ANSWER_TIMEOUT):  # It declares much.
                    channels = self.consume(connection)
                backoff = Backoff()
                while not self.is_stopping:
                    connection.process_data_events(0.2)
                    if self.is_consumer_cancelled:
                        raise pika.exceptions.ConsumerCancelled
                    self.start_waiting()
                with limited(connection, ANSWER_TIMEOUT):
                    for channel in channels:
                        channel.basic_cancel(self.settings.instance_id)
            except BROKER_ERRORS as error:
                if not self.is_stopping:
                    log.warning("the consumer lost its connection and reconnects: %r", error)
                    close(connection)  # If only a channel failed, the connection would keep its messages.
                    time.sleep(backoff.next())
        self.drain(connection)
        if self.is_blocked:
            sys.exit(1)

    def claim_mode(self):
        return "with claims in Redis" if self.claims else "without claims: messages are acknowledged late"

    def on_signal(self, *_):
        self.is_stopping = True

    def consume(self, connection):
        """Opens one channel per job type, each with its own prefetch, so that a slow job type blocks no other."""
        with self.lock:
            # Waiting runs came over the previous connection, so the broker redelivers them.
            for queue in self.waiting.values():
                while queue:
                    del self.runs[queue.popleft().key]
        self.is_consumer_cancelled = False
        declare_shared(connection.channel(), self.settings)
        channels = []
        for one in JOBS.values():
            channel = connection.channel()
            queue = declare_queue(channel, self.settings, one.name)
            channel.basic_qos(prefetch_count=one.concurrency)
            channel.add_on_cancel_callback(self.on_consumer_cancelled)
            take = lambda ch, method, properties, body, one=one: self.take(one, ch, method, properties, body)
            channel.basic_consume(queue, take, consumer_tag=self.settings.instance_id)
            channels.append(channel)
        return channels

    def on_consumer_cancelled(self, _):
        """The broker cancels a consumer whose queue is deleted. A new connection declares it again."""
        self.is_consumer_cancelled = True

    def take(self, job, channel, method, properties, body):
        delivery = Delivery(channel, method.delivery_tag, time.monotonic())
        try:
            message = read_message(job, body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("a message of job type %s is invalid and is dead-lettered: %r", job.name, error)
            return channel.basic_reject(method.delivery_tag, requeue=False)
        may_be_duplicate = method.redelivered or "x-republish" in (properties.headers or {})
        run = Run(self, job, message, delivery, may_be_duplicate)
        with self.lock:
            known = self.runs.get(run.key)
            if known is None and run.key not in self.ended:
                self.runs[run.key] = run
                self.waiting[job.name].append(run)
                return self.start_waiting(locked=True)
            # The duplicate is not needed if the first delivery can still be acknowledged or its report is confirmed.
            if known and not known.is_acked and not known.delivery.channel.is_open:
                known.delivery = delivery
                return None
        log.info("a duplicate delivery of %s is dropped", run.key)
        return channel.basic_ack(method.delivery_tag)

    def start_waiting(self, locked=False):
        """Starts the waiting runs that get a permit, and hands back those that have waited too long."""
        if not locked:
            with self.lock:
                return self.start_waiting(locked=True)
        for name, queue in self.waiting.items():
            while queue and self.permits[name] > 0 and not self.is_stopping:
                run = queue.popleft()
                self.permits[name] -= 1
                run.thread = threading.Thread(target=self.handle, args=(run,), name=run.key[0], daemon=True)
                run.thread.start()
            while queue and time.monotonic() - queue[0].delivery.since > PERMIT_TIMEOUT:
                run = queue.popleft()
                del self.runs[run.key]
                self.answer(run.delivery, "basic_nack", requeue=True)
        return None

    def drain(self, connection):
        """Hands back runs that have not started. Interrupts the others after the grace period, and reports them."""
        with self.lock:
            for queue in self.waiting.values():
                while queue:
                    run = queue.popleft()
                    del self.runs[run.key]
                    self.answer(run.delivery, "basic_nack", requeue=True)
        self.serve(connection, self.settings.grace, lambda: not self.runs)
        for run in list(self.runs.values()):
            run.end(QUEUED, "interrupted: its worker is stopping")
        self.serve(connection, 2.0, lambda: not self.runs)
        for run in list(self.runs.values()):
            with self.lock:
                if not run.has_started:
                    # Its claim check is still open; the next receiver checks again.
                    self.runs.pop(run.key, None)
                    self.answer(run.delivery, "basic_nack", requeue=True)
                    continue
            # It has not noticed the request, and ends with the process soon.
            self.finish(run, QUEUED, exception="interrupted: its worker is stopping")
        if not self.reporter.flush(10.0):
            log.error("the last reports could not be sent; the server will detect their runs as lost")
        self.serve(connection, 1.0, lambda: not self.runs)
        for heartbeater in filter(None, (self.heartbeater, self.redis_heartbeater)):
            heartbeater.leave.set()
        for heartbeater in filter(None, (self.heartbeater, self.redis_heartbeater)):
            heartbeater.join(5.0)
        close(connection, 5.0)
        log.info("stopped")

    def serve(self, connection, seconds, until):
        """Serves the connection, over which deliveries are acknowledged, for `seconds` or until a condition is true."""
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            try:
                if connection is not None and connection.is_open:
                    connection.process_data_events(0.05)
                    continue
            except BROKER_ERRORS:
                pass
            time.sleep(0.05)

    def answer(self, delivery, method, **more):
        """Answers a delivery from any thread. If its connection is closed, the broker redelivers the message."""

        def do():
            if delivery.channel.is_open:
                getattr(delivery.channel, method)(delivery.tag, **more)

        try:
            delivery.channel.connection.add_callback_threadsafe(do)
        except BROKER_ERRORS:
            pass

    # Called by the thread of a run.

    def handle(self, run):
        try:
            decision = self.admit(run)
            if decision == "run":
                self.execute(run)
            elif decision == "drop":
                self.leave(run, "basic_ack")
            elif decision == "hand back":
                self.leave(run, "basic_nack", requeue=True)
        except BaseException as error:  # A run that nobody reports would stay in the heartbeats for ever.
            log.exception("the run %s could not be handled", run.key)
            if run.has_started:
                text = f"the worker could not handle the end of the run: {describe(error)}"
                self.finish(run, FAILED, durationMs=run.duration(), exception=cut(text, MAX_TEXT))
            elif not run.is_over:
                if self.claims:
                    self.claims.give_back(run.key)
                run.stop.wait(1.0)
                self.leave(run, "basic_nack", requeue=True)
        finally:
            with self.lock:
                self.permits[run.job.name] += 1

    def leave(self, run, method, **more):
        with self.lock:
            self.runs.pop(run.key, None)
        self.answer(run.delivery, method, **more)

    def admit(self, run):
        """Decides to "run", "drop" or "hand back" a message, or returns "done" if its end is reported already."""
        may_be_duplicate, last_lease = run.may_be_duplicate, None
        while True:
            if may_be_duplicate:
                # Another delivery may have started, whatever Redis contains. The server decides.
                reply = self.claim_checker.ask(run.key)
                if reply is None:
                    run.stop.wait(1.0)
                    return "hand back"
                if not reply["granted"]:
                    log.info("duplicate %s is dropped: %s %s", run.key, reply.get("reason"), reply.get("by") or "")
                    return "drop"
            if not self.claims:
                return "run"
            try:
                holder, lease, request, since = self.claims.claim(run.key, may_be_duplicate)
            except REDIS_ERRORS as error:
                if may_be_duplicate:
                    self.claims.give_back(run.key)  # It may have been granted although no answer arrived.
                    run.stop.wait(1.0)
                    return "hand back"
                # Redis would contain a cancellation. Without it only the server does, which gets one second to reply.
                reply = self.claim_checker.ask(run.key, timeout=1.0, starts=True)
                if reply is not None and not reply["granted"]:
                    log.info("%s is dropped: %s", run.key, reply.get("reason"))
                    return "drop"
                log.warning("%s starts without a claim: %r", run.key, error)
                run.awaits_confirm = reply is None  # Only the report has the start then.
                return "run"
            if not holder and lease:
                log.info("%s may be a duplicate, and Redis has just lost its data: waiting %d ms", run.key, lease)
                if run.stop.wait(1.0) or self.is_stopping:
                    return "hand back"
                continue
            if not holder:
                _, attempt, reason = read_cancel_request(request) if request else (None, 0, "")
                if request and run.key[1] <= attempt:
                    self.finish(run, CANCELLED, exception=reason)
                    return "done"
                if may_be_duplicate or published(run.message) > since + CLOCK_DIFFERENCE_MS:
                    return "run"
                # Redis has lost its data since, and with them the end or the cancellation of what the message is about.
                reply = self.claim_checker.ask(run.key)
                if reply is not None and reply["granted"]:
                    return "run"
                self.claims.give_back(run.key)
                if reply is not None:
                    log.info("the old message of %s is dropped: %s", run.key, reply.get("reason"))
                    return "drop"
                run.stop.wait(1.0)
                return "hand back"
            if lease is None:
                if not may_be_duplicate:
                    may_be_duplicate = True
                    continue
                log.warning("%s was claimed by %s, which reports nothing; it is reported as lost", run.key, holder)
                reason = f"lost: {holder} claimed it, and its lease expired before it reported the start"
                if holder == "done":
                    holder, reason = self.settings.instance_id, "lost: it ended, and its end was never reported"
                self.finish(run, UNKNOWN, instanceId=holder, exception=reason)
                return "done"
            # The holder may have died, which causes a redelivery. Only a renewed lease shows that it lives.
            if holder == "done" or not may_be_duplicate or (last_lease is not None and lease > last_lease):
                log.info("a duplicate delivery of %s is dropped: %s has claimed it", run.key, holder)
                return "drop"
            last_lease = lease
            if run.stop.wait(1.0) or self.is_stopping:
                return "hand back"

    def execute(self, run):
        with self.lock:
            is_ours = self.runs.get(run.key) is run
            run.has_started = is_ours
        if not is_ours:  # It was handed back, because the worker stops.
            if self.claims:
                self.claims.give_back(run.key)
            return
        # With a claim, the lease protects the run from now on, and the message is acknowledged once its start is
        # reported. Without one, the message protects the run, and is acknowledged once its end is reported.
        is_confirmed = threading.Event()

        def confirmed():
            is_confirmed.set()
            if self.claims:
                self.acknowledge(run)

        self.reporter.report(run.report(RUNNING), confirmed)
        while run.awaits_confirm and not is_confirmed.wait(0.05) and not run.stop.is_set():
            pass
        context = Context(run, self.reporter)
        run.started, run.context = time.monotonic(), context
        run.deadline = run.started + run.allowed
        status, fields = FAILED, {}
        try:
            context.check()
            result = run.job.function(context, read_input(run.job.input, run.message.get("jobData")))
            is_text = isinstance(result, str) or result is None
            text = result if is_text else json.dumps(result, ensure_ascii=False, default=str)
            status, fields = COMPLETED, {} if text is None else {"result": cut(text, MAX_TEXT)}
        except RunEnded as end:
            status, fields = end.status, {"exception": cut(str(end), MAX_TEXT)}
        except Permanent as error:
            fields = {"exception": cut(str(error), MAX_TEXT), "permanent": True}
        except Retry as error:
            fields = {"exception": cut(str(error), MAX_TEXT), "retryAfterMs": int(error.seconds * 1000)}
        except Snooze as error:
            text = cut(str(error), MAX_TEXT)
            status, fields = QUEUED, {"exception": text, "retryAfterMs": int(error.seconds * 1000)}
        except BaseException as error:  # Every error must be reported.
            fields = {"exception": cut(f"{describe(error)}\n\n{traceback.format_exc()}", MAX_TEXT)}
        end = run.end_reason()
        if end and status not in (COMPLETED, end[0]):
            # Only a success replaces a requested end: the error may be a consequence of the request.
            context.log("warn", f"the run raised an error after it had to end: {fields['exception']}")
            status, fields = end[0], {"exception": cut(end[1], MAX_TEXT)}
        if status in (FAILED, TIMED_OUT):
            # The occurrence keeps the exception of its latest attempt only; its log keeps those of all attempts.
            context.log("error", fields["exception"])
        self.finish(run, status, durationMs=run.duration(), **fields)

    def finish(self, run, status, **fields):
        with self.lock:
            if run.is_over:
                return None
            run.is_over = True
        if run.is_revoked and status == QUEUED:
            self.claims.give_back(run.key)  # The server waits for this, and not for the report.
        if status is None:  # Another instance has claimed the run and reports its end.
            return self.settled(run)
        return self.reporter.report(run.report(status, **fields), lambda: self.settled(run))

    def acknowledge(self, run):
        with self.lock:
            was_acked, run.is_acked, delivery = run.is_acked, True, run.delivery
        if not was_acked:
            self.answer(delivery, "basic_ack")

    def settled(self, run):
        """Completes a run after the broker has confirmed its last report."""
        if self.claims:
            try:
                self.claims.end(run.key)
            except REDIS_ERRORS as error:
                log.warning("the end of %s could not be recorded in Redis: %r", run.key, error)
        with self.lock:
            self.runs.pop(run.key, None)
            self.ended[run.key] = True
            while len(self.ended) > 10_000:
                self.ended.popitem(last=False)
        self.acknowledge(run)


def read_message(job, body):
    """Parses a job message. Raises an error if it is invalid or for another job type."""
    if len(body) > MAX_MESSAGE:
        raise ValueError(f"it has {len(body)} bytes, more than {MAX_MESSAGE}")
    message = json.loads(body)
    for name in ("occurrenceId", "jobId", "correlationId"):
        message[name] = str(uuid.UUID(message[name]))
    for name in ("scheduledFor", "timestamp"):
        if datetime.datetime.fromisoformat(message[name]).tzinfo is None:
            raise ValueError(f"its {name} is {message[name]!r}, without a zone")
    for name, default, least in (("attempt", 1, 1), ("retryCount", 0, 0), ("maxRetries", 0, 0), ("priority", 3, 0)):
        message[name] = whole_number(message, name, default, least)
    message["timeoutSeconds"] = whole_number(message, "timeoutSeconds", None, 0)
    if message["jobType"].lower() != job.name.lower():
        raise ValueError(f"its job type is {message['jobType']!r}, this queue's is {job.name!r}")
    return message


def whole_number(message, name, default, least):
    """Returns a whole number of a message, which may be written as 2.0. Null is the default."""
    value = message.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not least <= value <= MAX_NUMBER or value != int(value):
        raise ValueError(f"its {name} is {value!r}, and must be a whole number from {least} to {MAX_NUMBER}")
    return int(value)


# --- The jobs. ---


@dataclasses.dataclass
class Greeting:
    name: str = dataclasses.field(metadata={"description": "Name of the person to greet."})
    times: int = dataclasses.field(
        default=1,
        metadata={"description": "Number of greetings, from 1 to 100; 1 by default.", "minimum": 1, "maximum": 100},
    )


@job("greet")
def greet(ctx, greeting: Greeting):
    """Greets a person, with one log line per greeting."""
    for n in range(greeting.times):
        ctx.info(f"Hello, {greeting.name}!", time=n + 1)
        ctx.progress(100 * (n + 1) // greeting.times, f"{n + 1} of {greeting.times}")
    return {"greeted": greeting.name, "times": greeting.times}


@dataclasses.dataclass
class Unsteady:
    failures: int = dataclasses.field(metadata={"description": "Number of failing attempts, 0 or more.", "minimum": 0})


@job("unsteady")
def unsteady(ctx, unsteady: Unsteady):
    """Fails a few times, then succeeds. Every exception that a job raises leads to a retry."""
    ctx.info(f"attempt {ctx.attempt}")
    if ctx.attempt <= unsteady.failures:
        raise ConnectionError(f"the connection was closed on attempt {ctx.attempt}")
    return f"succeeded on attempt {ctx.attempt}"


@dataclasses.dataclass
class Wait:
    seconds: float = dataclasses.field(metadata={"description": "Duration in seconds, 0 or more.", "minimum": 0})


@job("wait", concurrency=20)
def wait(ctx, wait: Wait):
    """Waits, reports its progress, and ends early if it is cancelled."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < wait.seconds:
        ctx.progress(100 * passed / wait.seconds, f"{passed:.0f} of {wait.seconds:g} s")
        ctx.sleep(min(1.0, wait.seconds - passed))
    return None


@dataclasses.dataclass
class Refund:
    orders: list[str] = dataclasses.field(metadata={"description": "Order numbers to refund."})
    dry: bool = dataclasses.field(default=True, metadata={"description": "Only logs the refunds; on by default."})


@job("refund")
def refund(ctx, refund: Refund):
    """Shows a permanent failure, a retry after a given pause, and a snooze."""
    for order in refund.orders:
        if not order.isdigit():
            raise Permanent(f"{order!r} is not an order number")
        if order.endswith("9"):
            raise Retry(f"order {order} is locked by another process", seconds=1)
        if order.endswith("8") and ctx.attempt == 1:
            raise Snooze("the bank is closed", seconds=0.5)
        ctx.info("would be refunded" if refund.dry else "refunded", order=order)
    return {"refunded": 0 if refund.dry else len(refund.orders)}


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pika").setLevel(logging.ERROR)
    Worker(Settings(os.environ)).work()
