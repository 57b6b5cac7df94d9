//! Passphrases: how they are kept, and which are too easy to guess.

use std::{sync::Arc, time::Duration};

use argon2::{
    Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version,
    password_hash::{self, phc::PasswordHash},
};
use milvaion_app::error::AppError;
use tokio::{sync::Semaphore, time::timeout};

use crate::clock::Clock;

/// How much memory one hash takes, in KiB. With one pass this is what OWASP's cheat sheet asks of argon2id.
const MEMORY_KIB: u32 = 47_104;

/// Hashes made at one time. Each takes [`MEMORY_KIB`] and a processor.
const MAX_CONCURRENT_HASHES: usize = 2;

/// The longest wait for a turn.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(5);

/// What a passphrase is compared with when there is nobody: the same parameters and lengths, of no known passphrase.
const DUMMY_HASH: &str =
    "$argon2id$v=19$m=47104,t=1,p=1$bm9ib2R5J3Mgc2FsdC4uLg$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

/// Makes and checks argon2id hashes, two at a time in the whole process. Clones share the permits.
#[derive(Clone, Debug)]
pub struct PassphraseHasher {
    permits: Arc<Semaphore>,
}

impl Default for PassphraseHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl PassphraseHasher {
    /// One for the whole process.
    #[must_use]
    pub fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT_HASHES)) }
    }

    /// The hash of a new passphrase, in PHC string form.
    ///
    /// # Errors
    ///
    /// `TooMany` when there is no turn within five seconds.
    pub async fn hash(&self, passphrase: &str, clock: &Clock) -> Result<String, AppError> {
        let passphrase = passphrase.to_owned();
        let random = clock.token();
        self.in_turn(move || {
            let hash: PasswordHash = argon2()?.hash_password_with_salt(passphrase.as_bytes(), &random[..16])?;
            Ok(hash.to_string())
        })
        .await
    }

    /// Whether `passphrase` is the one behind `hash`. Without a hash the answer is no, after the same time.
    ///
    /// # Errors
    ///
    /// `TooMany` when there is no turn within five seconds; `Failed` when the hash is unreadable.
    pub async fn verify(&self, passphrase: &str, hash: Option<&str>) -> Result<bool, AppError> {
        let passphrase = passphrase.to_owned();
        let hash = hash.map(str::to_owned);
        self.in_turn(move || {
            let kept = PasswordHash::new(hash.as_deref().unwrap_or(DUMMY_HASH))
                .map_err(|_| password_hash::Error::EncodingInvalid)?;
            match argon2()?.verify_password(passphrase.as_bytes(), &kept) {
                Ok(()) => Ok(hash.is_some()),
                Err(password_hash::Error::PasswordInvalid) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, password_hash::Error> + Send + 'static,
    ) -> Result<T, AppError> {
        let Ok(Ok(turn)) = timeout(MAX_QUEUE_WAIT, Arc::clone(&self.permits).acquire_owned()).await else {
            return Err(AppError::TooMany("Many people are signing in just now. Try again in a few seconds.".into()));
        };
        // The turn goes along: a request that is given up must not let another hash start beside the one still running.
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(turn);
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

fn failed(error: &dyn std::fmt::Display) -> AppError {
    tracing::error!(error = %error, "a passphrase could not be hashed");
    AppError::Failed("The passphrase could not be checked. The server's log has the details.".into())
}

fn argon2() -> Result<Argon2<'static>, password_hash::Error> {
    let params = Params::new(MEMORY_KIB, 1, 1, None).map_err(|_| password_hash::Error::ParamInvalid { name: "m" })?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// Whether a hash was made with less than we ask today.
#[must_use]
pub fn is_outdated(hash: &str) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else { return true };
    let memory = Params::try_from(&hash).map_or(0, |params| params.m_cost());
    hash.algorithm != Algorithm::Argon2id.ident() || memory < MEMORY_KIB
}

/// Phrases of at least twelve letters, and words, that everybody's list of guesses begins with; one a line.
const COMMON_PASSPHRASES: &str = include_str!("common_passphrases.txt");

/// Checks what [`milvaion_api::requests::check_passphrase`] cannot know: that a passphrase is not the person's address or
/// name, nor one of those that are tried first.
///
/// # Errors
///
/// What to do.
pub fn check_guessable(passphrase: &str, name: &str, email: &str) -> Result<(), String> {
    let lower = passphrase.to_lowercase();
    if lower.contains(&email.to_lowercase()) {
        return Err("the passphrase must not contain your e-mail address".into());
    }
    let core = core(&lower);
    let local = email.split('@').next().unwrap_or_default();
    if !core.is_empty() && [name, local].iter().any(|own| core == letters(&own.to_lowercase())) {
        return Err("your name with something added is the first guess: choose a few unrelated words".into());
    }
    let whole = letters(&lower);
    if has_rhythm(&lower)
        || COMMON_PASSPHRASES.lines().any(|guess| is_repeated(&core, guess) || is_repeated(&whole, guess))
    {
        return Err("this is among the first that are guessed: choose a few unrelated words".into());
    }
    Ok(())
}

/// The letters between leading and trailing digits and signs: what remains of `Password2024!!`.
fn core(lower: &str) -> String {
    letters(lower.trim_matches(|c: char| !c.is_alphabetic()))
}

/// Letters only, with the digits and signs that stand for letters read as such.
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

/// Whether `text` is `word` once or several times.
fn is_repeated(text: &str, word: &str) -> bool {
    !word.is_empty() && !text.is_empty() && text.replace(word, "").is_empty()
}

/// Whether a text repeats a piece of at most four characters, or only counts up or down.
fn has_rhythm(text: &str) -> bool {
    let chars: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let repeats = (1..=4).any(|period| chars.iter().skip(period).zip(&chars).all(|(later, earlier)| later == earlier));
    let counts = |step: i64| {
        chars.windows(2).all(|pair| {
            let difference = i64::from(u32::from(pair[1])) - i64::from(u32::from(pair[0]));
            // After 9 comes 0, and the other way round.
            difference == step || difference == step - 10 * step.signum()
        })
    };
    repeats || counts(1) || counts(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobodys_hash_costs_what_anybodys_does() {
        let nobody = PasswordHash::new(DUMMY_HASH).expect("readable");
        let params = Params::try_from(&nobody).expect("readable");
        assert_eq!((params.m_cost(), params.t_cost(), params.p_cost()), (MEMORY_KIB, 1, 1));
        assert_eq!(nobody.salt.expect("a salt").len(), 16);
        assert_eq!(nobody.hash.expect("a tag").len(), 32);
        assert!(!is_outdated(DUMMY_HASH));
        assert!(is_outdated(&DUMMY_HASH.replace("47104", "19456")));
    }

    #[tokio::test]
    async fn a_passphrase_is_kept_whole() {
        let hasher = PassphraseHasher::new();
        let long = "é ".repeat(500);
        let kept = hasher.hash(&long, &Clock::system()).await.expect("hashed");
        assert!(kept.starts_with("$argon2id$v=19$m=47104,t=1,p=1$"));
        assert_eq!(hasher.verify(&long, Some(&kept)).await, Ok(true));
        assert_eq!(hasher.verify(long.trim_end(), Some(&kept)).await, Ok(false));
        assert_eq!(hasher.verify(&long, None).await, Ok(false));
    }

    #[test]
    fn what_is_guessed_first_is_refused() {
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
    fn a_few_words_will_do() {
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
