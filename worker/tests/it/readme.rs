//! Code on pages is that of examples and tests.

use std::time::Duration;

use milvaion_worker::{Worker, testing::TestLoop};

const LOOPS_PAGE: &str = include_str!("../../../docs/singleton-loops.md");
const FIRST_STEPS_PAGE: &str = include_str!("../../../docs/getting-started.md");

/// Returns an example without its first line, which is its documentation.
fn without_documentation(example: &str) -> &str {
    example.split_once('\n').expect("the example starts with a doc comment line").1.trim()
}

#[test]
fn readme_shows_the_short_hello_example() {
    let code = without_documentation(include_str!("../../examples/hello.rs"));
    assert!(include_str!("../../../README.md").contains(code), "copy worker/examples/hello.rs into README.md");
    assert!(code.lines().count() <= 25);
}

#[test]
fn getting_started_shows_its_examples() {
    let worker = without_documentation(include_str!("../../examples/getting_started.rs"));
    let (program, tests) = worker.split_at(worker.find("#[cfg(test)]").expect("the example ends with its tests"));
    let producer = without_documentation(include_str!("../../../client/examples/producer.rs"));
    let blocks = [
        ("worker/examples/getting_started.rs without its tests", program.trim()),
        ("the tests of worker/examples/getting_started.rs", tests),
        ("client/examples/producer.rs", producer),
    ];
    for (source, code) in blocks {
        let block = format!("```rust\n{code}\n```\n");
        assert!(FIRST_STEPS_PAGE.contains(&block), "copy {source} into docs/getting-started.md");
    }
    assert_eq!(FIRST_STEPS_PAGE.matches("```rust").count(), blocks.len(), "each block of code is compiled");
}

#[test]
fn loops_page_shows_its_examples() {
    let code = without_documentation(include_str!("../../examples/singleton.rs"));
    assert!(LOOPS_PAGE.contains(code), "copy worker/examples/singleton.rs into docs/singleton-loops.md");
    assert!(code.lines().count() <= 25);
    let guarded =
        ("worker/examples/singleton_sql.rs", include_str!("../../examples/singleton_sql.rs"), "async fn store(");
    for (file, source, function) in
        [guarded, ("this test", include_str!("readme.rs"), "async fn slow_loop_drops_ticks(")]
    {
        let (_, rest) = source.split_once(&format!("\n{function}")).expect("the function is there");
        let (body, _) = rest.split_once("\n}\n").expect("the function ends");
        assert!(LOOPS_PAGE.contains(body), "copy {function}…) of {file} into docs/singleton-loops.md");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_loop_drops_ticks() {
    let period = Duration::from_millis(100);
    let worker = Worker::builder().singleton("price-feed").fixed_rate(period).run(move |_| async move {
        tokio::time::sleep(period * 3 / 2).await;
        Ok(())
    });
    let report = TestLoop::new(worker, "price-feed").run_for(Duration::from_secs(1)).await;
    assert_eq!((report.runs.len(), report.dropped), (5, 5));
}
