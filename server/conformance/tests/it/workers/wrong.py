"""The worker of examples/python-worker, for the deliberate mistakes beside this file."""

import logging
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../../../examples/python-worker"))

import conformance  # noqa: E402, F401  # Registers the job types.
import worker  # noqa: E402


def run(kind=worker.Worker):
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("pika").setLevel(logging.ERROR)
    kind(worker.Settings(os.environ)).work()
