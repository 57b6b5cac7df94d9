-- The source of a job: the door through which it was defined. A job from a file belongs to the file, so its page names
-- the file, and an edit elsewhere is found by comparing versions: no other statement has to know about files.

ALTER TABLE jobs
    ADD COLUMN source         text    NOT NULL DEFAULT 'dashboard' CHECK (source IN ('dashboard', 'api', 'code', 'file')),
    ADD COLUMN source_file    text    CHECK (char_length(source_file) BETWEEN 1 AND 200),
    ADD COLUMN source_version integer;
COMMENT ON COLUMN jobs.source IS 'Door through which the job was defined: dashboard, api, code or file.';
COMMENT ON COLUMN jobs.source_file IS 'File from which the job comes; null for other sources.';
COMMENT ON COLUMN jobs.source_version IS
    'Version that the file had when it was last applied; null for other sources. A later version was edited elsewhere.';
