//! Tests: the table against a model and under failures, and the walk against the table.

mod audit;
mod kept;
mod memory;
mod model;
mod table;
mod walk;

use proptest::test_runner::Config;

/// `cases` unless PROPTEST_CASES says otherwise, few under Miri, and no files.
fn config(cases: u32) -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if cfg!(miri) {
        config.cases = 1;
    } else if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}
