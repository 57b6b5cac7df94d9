//! Server functions of the own account, and of one-time links for a new passphrase.
