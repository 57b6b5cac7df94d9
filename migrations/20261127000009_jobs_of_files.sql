-- The jobs that came from a file, for the warnings of a plan about those that the file no longer has.
CREATE INDEX jobs_by_source_file ON jobs (source_file) WHERE source = 'file';
