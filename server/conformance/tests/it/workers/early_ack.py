"""A worker that acknowledges a message at once, waits for no confirm, keeps what it cannot run, renews no claim, and claims at
once what may be a duplicate."""

import wrong
import worker


class Hasty(worker.Worker):
    def execute(self, run):
        self.acknowledge(run)
        run.awaits_confirm = False
        super().execute(run)

    def finish(self, run, status, **fields):
        reported = super().finish(run, status, **fields)
        with self.lock:
            self.runs.pop(run.key, None)
        return reported

    def claimed(self):
        return []


class HastyClaims(worker.Claims):
    def claim(self, key, may_be_duplicate):
        return super().claim(key, False)


worker.Claims = HastyClaims
worker.PERMIT_TIMEOUT = 3600.0
wrong.run(Hasty)
