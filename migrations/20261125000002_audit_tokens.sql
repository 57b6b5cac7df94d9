-- The audit log names the API token of a change.
--
-- Statements all over the server write audit rows. None of them passes the token on: the server sets it for the transaction
-- of a request, and the default of the column reads it.
ALTER TABLE audit_log
    ADD COLUMN token text DEFAULT nullif(current_setting('milvaion.token', true), '');
COMMENT ON COLUMN audit_log.token IS
    'API token of the request, as name and last characters of its secret; null for a session or for the system.';

-- As before, with the token among the values that never change.
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.result = 'refused' AND NEW.repeats > OLD.repeats
        AND (NEW.id, NEW.at, NEW.who, NEW.token, NEW.action, NEW.object, NEW.result, NEW.address, NEW.repeat_key)
            IS NOT DISTINCT FROM
            (OLD.id, OLD.at, OLD.who, OLD.token, OLD.action, OLD.object, OLD.result, OLD.address, OLD.repeat_key)
        AND NEW.before IS NOT DISTINCT FROM OLD.before
        AND NEW.after IS NOT DISTINCT FROM OLD.after THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit log is only ever added to';
END $$;
