//! Server functions that read the audit log.
