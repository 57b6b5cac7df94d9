//! Rebuilds the crate when a migration or the checked-in query data changes: both are compiled in.
fn main() {
    println!("cargo:rerun-if-changed=../migrations");
    println!("cargo:rerun-if-changed=.sqlx");
}
