-- The type jsonb sorts the properties of an object. The type json keeps the announced text, so that an input form shows
-- its fields in the author's order. Types that were announced before keep the sorted order until their worker registers
-- again.

ALTER TABLE worker_job_types ALTER COLUMN schema DROP DEFAULT;
ALTER TABLE worker_job_types ALTER COLUMN schema TYPE json USING schema::json;
ALTER TABLE worker_job_types ALTER COLUMN schema SET DEFAULT '{}';
COMMENT ON COLUMN worker_job_types.schema IS 'JSON Schema of the input, with its properties in the announced order.';
