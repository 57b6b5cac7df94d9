//! Rebuilds the crate if a migration or the checked-in query data changes, because both are compiled in.
fn main() {
    println!("cargo:rerun-if-changed=../migrations");
    println!("cargo:rerun-if-changed=.sqlx");
}
