//! The error of a configuration that cannot be used.

/// The environment variables that hold an invalid value, one sentence each. The sentence names the variable and the
/// accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InvalidSettings(pub Vec<String>);
