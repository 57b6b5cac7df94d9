//! The PostgreSQL that tests of jobs may ask. The worker's own code never names this variable: it is the scheduler's.

/// The address in `DATABASE_URL`.
pub(crate) fn url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL names a PostgreSQL")
}
