"""A worker that acknowledges a message at once, and renews no claim."""

import wrong
import worker


class Hasty(worker.Worker):
    def execute(self, run):
        self.acknowledge(run)
        super().execute(run)

    def claimed(self):
        return []


wrong.run(Hasty)
