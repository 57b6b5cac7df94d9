"""A worker that reports a duration as text."""

import wrong
import worker


class Wordy(worker.Worker):
    def finish(self, run, status, **fields):
        if "durationMs" in fields:
            fields["durationMs"] = f"{fields['durationMs']} ms"
        return super().finish(run, status, **fields)


wrong.run(Wordy)
