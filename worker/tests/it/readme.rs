//! The first job in the README is an example that compiles.

#[test]
fn readme_shows_the_short_hello_example() {
    let (_, code) =
        include_str!("../../examples/hello.rs").split_once('\n').expect("the example starts with a doc comment line");
    assert!(include_str!("../../../README.md").contains(code.trim()), "copy worker/examples/hello.rs into README.md");
    assert!(code.trim().lines().count() <= 25);
}
