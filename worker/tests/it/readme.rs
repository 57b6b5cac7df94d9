//! What a newcomer is shown is what compiles.

#[test]
fn the_first_job_of_the_readme_is_the_example_and_short() {
    let (_, code) = include_str!("../../examples/hello.rs").split_once('\n').expect("a line of documentation first");
    assert!(include_str!("../../../README.md").contains(code.trim()), "copy worker/examples/hello.rs into README.md");
    assert!(code.trim().lines().count() <= 25);
}
