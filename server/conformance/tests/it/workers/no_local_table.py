"""A worker that starts a duplicate of an attempt that it already runs."""

import wrong
import worker


class Forgetful(worker.Worker):
    def take(self, job, channel, method, properties, body):
        with self.lock:
            self.runs.clear()
            self.ended.clear()
        super().take(job, channel, method, properties, body)


wrong.run(Forgetful)
