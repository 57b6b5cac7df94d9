"""A worker that reports a duration which is no whole number."""

import wrong
import worker


class Precise(worker.Worker):
    def finish(self, run, status, **fields):
        if "durationMs" in fields:
            fields["durationMs"] += 0.07
        return super().finish(run, status, **fields)


wrong.run(Precise)
