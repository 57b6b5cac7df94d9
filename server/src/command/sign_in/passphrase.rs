//! Passphrases: hashing, and the check for guessable ones.
//!
//! A hash takes much memory, so few are computed at a time. Anyone can cause one by signing in, so the permits are
//! divided: strangers get one at a time and wait in a queue of limited length, and all others always find the second
//! permit. See `HashClass`.

use std::{sync::Arc, time::Duration};

use argon2::{
    Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version,
    password_hash::{self, phc::PasswordHash},
};
use milvaion_app::error::AppError;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::clock::Clock;

/// The memory that one hash uses, in KiB. With one pass, this is what the OWASP cheat sheet requires for argon2id.
const MEMORY_KIB: u32 = 47_104;

/// The memory that one hash of a test uses, in KiB.
const TEST_MEMORY_KIB: u32 = 64;

/// The most hashes that are computed at a time. Each uses [`MEMORY_KIB`] and one processor.
const MAX_CONCURRENT_HASHES: usize = 2;

/// The most hashes of strangers that are computed at a time.
const MAX_CONCURRENT_STRANGER_HASHES: usize = 1;

/// The most strangers that have or wait for a permit. One more is refused at once.
const MAX_STRANGERS: usize = 32;

/// The longest wait for a permit.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(5);

/// The hash that a passphrase is compared with if there is no user. It has the same parameters and lengths, and no
/// known passphrase.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=47104,t=1,p=1$bm9ib2R5J3Mgc2FsdC4uLg$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

/// The class of a request for a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashClass {
    /// A request that outsiders cannot make in any number: from a known device, from a signed-in user or with a valid
    /// one-time link. It may use every permit.
    Trusted,
    /// A sign-in from an unknown device. Strangers share one permit.
    Stranger,
}

/// A hasher for argon2id that works on at most two passphrases at a time in the whole process. Clones share the
/// permits.
#[derive(Clone, Debug)]
pub struct PassphraseHasher {
    permits: Arc<Semaphore>,
    stranger_permits: Arc<Semaphore>,
    stranger_queue: Arc<Semaphore>,
    memory_kib: u32,
    dummy_hash: Arc<str>,
}

/// The permits that one hash holds until it ends.
struct HashPermits {
    _permit: OwnedSemaphorePermit,
    _stranger: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Default for PassphraseHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl PassphraseHasher {
    /// Creates the hasher of the process.
    #[must_use]
    pub fn new() -> Self {
        Self::with_memory_kib(MEMORY_KIB)
    }

    /// Creates a hasher that uses little memory and time for each new hash and each unknown address. Only for tests, most
    /// of which create users.
    #[must_use]
    pub fn for_tests() -> Self {
        Self::with_memory_kib(TEST_MEMORY_KIB)
    }

    fn with_memory_kib(memory_kib: u32) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_HASHES)),
            stranger_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_STRANGER_HASHES)),
            stranger_queue: Arc::new(Semaphore::new(MAX_STRANGERS)),
            memory_kib,
            dummy_hash: DUMMY_HASH.replace("m=47104", &format!("m={memory_kib}")).into(),
        }
    }

    /// Hashes a new passphrase of a user who is signed in or has a valid one-time link. Returns the PHC string.
    ///
    /// # Errors
    ///
    /// Returns `TooMany` if no permit is free within five seconds.
    pub async fn hash(&self, passphrase: &str, clock: &Clock) -> Result<String, AppError> {
        let passphrase = passphrase.to_owned();
        let random = clock.token();
        let memory_kib = self.memory_kib;
        self.with_permit(HashClass::Trusted, move || {
            let hash: PasswordHash =
                argon2(memory_kib)?.hash_password_with_salt(passphrase.as_bytes(), &random[..16])?;
            Ok(hash.to_string())
        })
        .await
    }

    /// Returns true if `passphrase` matches `hash`, for a known device or a signed-in user. Without a hash it returns
    /// false, after the same time.
    ///
    /// # Errors
    ///
    /// Returns `TooMany` if no permit is free within five seconds, and `Failed` if the hash cannot be parsed.
    pub async fn verify(&self, passphrase: &str, hash: Option<&str>) -> Result<bool, AppError> {
        self.verify_as(HashClass::Trusted, passphrase, hash).await
    }

    /// Returns true if `passphrase` matches `hash`, for an unknown device. Without a hash it returns false, after the
    /// same time.
    ///
    /// # Errors
    ///
    /// Returns `TooMany` at once if 32 strangers have or wait for a permit, or if no permit is free within five seconds,
    /// and `Failed` if the hash cannot be parsed.
    pub async fn verify_stranger(&self, passphrase: &str, hash: Option<&str>) -> Result<bool, AppError> {
        self.verify_as(HashClass::Stranger, passphrase, hash).await
    }

    async fn verify_as(&self, class: HashClass, passphrase: &str, hash: Option<&str>) -> Result<bool, AppError> {
        let passphrase = passphrase.to_owned();
        let hash = hash.map(str::to_owned);
        let (memory_kib, dummy_hash) = (self.memory_kib, Arc::clone(&self.dummy_hash));
        self.with_permit(class, move || {
            let stored = PasswordHash::new(hash.as_deref().unwrap_or(&dummy_hash))
                .map_err(|_| password_hash::Error::EncodingInvalid)?;
            match argon2(memory_kib)?.verify_password(passphrase.as_bytes(), &stored) {
                Ok(()) => Ok(hash.is_some()),
                Err(password_hash::Error::PasswordInvalid) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Runs `work` on a blocking thread once a permit is free.
    async fn with_permit<T: Send + 'static>(
        &self,
        class: HashClass,
        work: impl FnOnce() -> Result<T, password_hash::Error> + Send + 'static,
    ) -> Result<T, AppError> {
        let Ok(Some(permits)) = timeout(MAX_QUEUE_WAIT, self.acquire(class)).await else {
            return Err(AppError::TooMany("Many users are signing in now. Try again in a few seconds.".into()));
        };
        // The permits move into the task. If the request is dropped, its hash still runs and must still hold them.
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permits);
            result
        })
        .await;
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(failed(&error)),
            Err(error) => Err(failed(&error)),
        }
    }
}

impl PassphraseHasher {
    /// Waits for the permits of one hash. Returns `None` if too many strangers wait.
    async fn acquire(&self, class: HashClass) -> Option<HashPermits> {
        let stranger = match class {
            HashClass::Trusted => None,
            HashClass::Stranger => {
                let queued = Arc::clone(&self.stranger_queue).try_acquire_owned().ok()?;
                // Taken first, so that one stranger at most waits for the permits that all classes share.
                Some((Arc::clone(&self.stranger_permits).acquire_owned().await.ok()?, queued))
            }
        };
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        Some(HashPermits { _permit: permit, _stranger: stranger })
    }
}

fn failed(error: &dyn std::fmt::Display) -> AppError {
    tracing::error!(error = %error, "a passphrase could not be hashed or verified");
    AppError::Failed("The passphrase could not be checked. The server's log has the details.".into())
}

fn argon2(memory_kib: u32) -> Result<Argon2<'static>, password_hash::Error> {
    let params = Params::new(memory_kib, 1, 1, None).map_err(|_| password_hash::Error::ParamInvalid { name: "m" })?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// Returns true if a hash was created with weaker parameters than the current ones.
#[must_use]
pub fn is_outdated(hash: &str) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else { return true };
    let memory = Params::try_from(&hash).map_or(0, |params| params.m_cost());
    hash.algorithm != Algorithm::Argon2id.ident() || memory < MEMORY_KIB
}

/// The passphrases of at least twelve letters, and the words, with which common lists of guesses begin. One per line.
const COMMON_PASSPHRASES: &str = include_str!("common_passphrases.txt");

/// Checks the rules that [`milvaion_api::requests::check_passphrase`] cannot check: a passphrase must not be the
/// address or the name of the user, nor one of the first guesses.
///
/// # Errors
///
/// Returns a message for the user that names the remedy.
pub fn check_guessable(passphrase: &str, name: &str, email: &str) -> Result<(), String> {
    let lower = passphrase.to_lowercase();
    if lower.contains(&email.to_lowercase()) {
        return Err("the passphrase must not contain your e-mail address".into());
    }
    let core = core(&lower);
    let local = email.split('@').next().unwrap_or_default();
    if !core.is_empty() && [name, local].iter().any(|own| core == letters(&own.to_lowercase())) {
        return Err("your name with additions is easy to guess: choose a few unrelated words".into());
    }
    let whole = letters(&lower);
    if is_regular(&lower)
        || COMMON_PASSPHRASES.lines().any(|guess| is_repeated(&core, guess) || is_repeated(&whole, guess))
    {
        return Err("this passphrase is easy to guess: choose a few unrelated words".into());
    }
    Ok(())
}

/// Returns the letters between leading and trailing digits and signs, for example of `Password2024!!`.
fn core(lower: &str) -> String {
    letters(lower.trim_matches(|c: char| !c.is_alphabetic()))
}

/// Returns only the letters. Digits and signs that stand for letters are replaced by them.
fn letters(lower: &str) -> String {
    lower
        .chars()
        .map(|c| match c {
            '0' => 'o',
            '1' | '!' => 'i',
            '3' => 'e',
            '4' | '@' => 'a',
            '5' | '$' => 's',
            '7' => 't',
            c => c,
        })
        .filter(|c| c.is_alphabetic())
        .collect()
}

/// Returns true if `text` consists of `word`, once or repeated.
fn is_repeated(text: &str, word: &str) -> bool {
    !word.is_empty() && !text.is_empty() && text.replace(word, "").is_empty()
}

/// Returns true if a text repeats a piece of at most four characters, or counts up or down.
fn is_regular(text: &str) -> bool {
    let chars: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let repeats = (1..=4).any(|period| chars.iter().skip(period).zip(&chars).all(|(later, earlier)| later == earlier));
    let counts = |step: i64| {
        chars.windows(2).all(|pair| {
            let difference = i64::from(u32::from(pair[1])) - i64::from(u32::from(pair[0]));
            // After 9 follows 0, and the other way round.
            difference == step || difference == step - 10 * step.signum()
        })
    };
    repeats || counts(1) || counts(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dummy_hash_costs_as_much_as_a_real_one() {
        let dummy = PasswordHash::new(DUMMY_HASH).expect("readable");
        let params = Params::try_from(&dummy).expect("readable");
        assert_eq!((params.m_cost(), params.t_cost(), params.p_cost()), (MEMORY_KIB, 1, 1));
        assert_eq!(dummy.salt.expect("a salt").len(), 16);
        assert_eq!(dummy.hash.expect("a tag").len(), 32);
        assert!(!is_outdated(DUMMY_HASH));
        assert!(is_outdated(&DUMMY_HASH.replace("47104", "19456")));
    }

    #[tokio::test]
    async fn a_long_passphrase_is_not_truncated() {
        let hasher = PassphraseHasher::new();
        let long = "é ".repeat(500);
        let hash = hasher.hash(&long, &Clock::system()).await.expect("hashed");
        assert!(hash.starts_with("$argon2id$v=19$m=47104,t=1,p=1$"));
        assert_eq!(hasher.verify(&long, Some(&hash)).await, Ok(true));
        assert_eq!(hasher.verify(long.trim_end(), Some(&hash)).await, Ok(false));
        assert_eq!(hasher.verify(&long, None).await, Ok(false));
    }

    #[tokio::test]
    async fn strangers_leave_a_permit_and_are_refused_beyond_their_queue() {
        let hasher = PassphraseHasher::for_tests();
        let working = hasher.acquire(HashClass::Stranger).await.expect("a permit is free");
        // Each waits for the permit of the first one.
        let mut waiting: Vec<_> = (1..MAX_STRANGERS).map(|_| Box::pin(hasher.acquire(HashClass::Stranger))).collect();
        for stranger in &mut waiting {
            assert!(futures::poll!(stranger).is_pending());
        }
        assert!(matches!(hasher.verify_stranger("x", None).await, Err(AppError::TooMany(_))));

        let hash = hasher.hash("violet tram under snow", &Clock::system()).await.expect("hashed");
        assert_eq!(hasher.verify("violet tram under snow", Some(&hash)).await, Ok(true));

        drop(working);
        let next = waiting.remove(0).await;
        assert!(next.is_some(), "the next stranger gets the permit");
        // A request that is dropped leaves the queue.
        drop((next, waiting));
        assert_eq!(hasher.verify_stranger("violet tram under snow", Some(&hash)).await, Ok(true));
    }

    #[test]
    fn guessable_passphrases_are_refused() {
        for easy in [
            "password2024!!",
            "P@ssw0rd P@ssw0rd",
            "correct horse battery staple",
            "Milvaion12345",
            "aaaaaaaaaaaaaa",
            "123456789012",
            "987654321098",
            "abcdefghijklm",
            "12341234 1234",
            "ana@example.org!",
            "AnaKowalska2024",
            "ana.kowalska1234",
        ] {
            let email = if easy.contains('@') { "ana@example.org" } else { "ana.kowalska@example.org" };
            assert!(check_guessable(easy, "Ana Kowalska", email).is_err(), "{easy}");
        }
    }

    #[test]
    fn unrelated_words_are_accepted() {
        for good in [
            "violet tram under snow",
            "Zażółć gęślą jaźń",
            "dragons sing in July",
            "9174 2053 8866 1",
            "🦊🌲🚲🎻🧭🍋⛵🪁🐌🧵🔔🥁",
        ] {
            assert_eq!(check_guessable(good, "Ana", "ana@example.org"), Ok(()), "{good}");
        }
    }
}
