-- Status counts are appended and folded later: updates of one row per minute made servers wait for each other.

CREATE TABLE stats_folded (
    minute      timestamptz NOT NULL,
    status      smallint    NOT NULL CHECK (status BETWEEN 0 AND 7),
    count       bigint      NOT NULL,
    duration_ms bigint      NOT NULL,
    PRIMARY KEY (minute, status)
);
COMMENT ON TABLE stats_folded IS 'Number of occurrences that reached a status in a minute, without the latest.';
COMMENT ON COLUMN stats_folded.count IS 'Number of occurrences.';
COMMENT ON COLUMN stats_folded.duration_ms IS 'Sum of their durations, in milliseconds, for final statuses.';
INSERT INTO stats_folded SELECT minute, status, sum(count), sum(duration_ms) FROM stats_minute GROUP BY minute, status;
DROP TABLE stats_minute;

-- Rows live for some seconds, so autovacuum must not wait until a fifth of a table that is empty most of the time is dead.
CREATE TABLE stats_deltas (
    minute      timestamptz NOT NULL,
    status      smallint    NOT NULL CHECK (status BETWEEN 0 AND 7),
    count       bigint      NOT NULL,
    duration_ms bigint      NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
COMMENT ON TABLE stats_deltas IS 'Counts that are not folded into stats_folded yet; written in the statement that changes the statuses.';
COMMENT ON COLUMN stats_deltas.count IS 'Number of occurrences.';
COMMENT ON COLUMN stats_deltas.duration_ms IS 'Sum of their durations, in milliseconds, for final statuses.';

CREATE VIEW stats_minute AS
    SELECT minute, status, sum(count)::bigint AS count, sum(duration_ms)::bigint AS duration_ms
      FROM (SELECT * FROM stats_folded UNION ALL SELECT * FROM stats_deltas) both_parts
     GROUP BY minute, status;
COMMENT ON VIEW stats_minute IS 'Number of occurrences that reached a status in a minute.';
