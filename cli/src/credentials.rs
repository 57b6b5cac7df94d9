//! The stored address and token: `milvaion/credentials.toml` in the folder of the user's settings.
//!
//! A token has the rights of its owner, so only the owner may read the file. It is created with that mode, never narrowed
//! afterwards, and replaced as a whole: a crash leaves the old file or the new one. A token is stored with the address of
//! its server and sent to no other.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::CliError;

/// The mode of the file: its owner reads and writes it.
const FILE_MODE: u32 = 0o600;
/// The mode of the folder: its owner uses it.
const FOLDER_MODE: u32 = 0o700;

/// An address with its token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Credentials {
    /// The address of the server.
    pub(super) url: String,
    /// The token.
    pub(super) token: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The file of the credentials.
#[derive(Clone, Debug)]
pub(super) struct CredentialsFile {
    path: PathBuf,
}

impl CredentialsFile {
    /// Returns the file below the folder of the user's settings.
    pub(super) fn in_folder(config_folder: Option<&Path>) -> Result<Self, CliError> {
        let folder = config_folder.ok_or(CliError::NoConfigFolder)?;
        Ok(Self { path: folder.join("milvaion").join("credentials.toml") })
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the credentials; none if there is no file.
    pub(super) fn read(&self) -> Result<Option<Credentials>, CliError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error("read", error)),
        };
        let mode = fs::metadata(&self.path).map_err(|error| self.error("read", error))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(CliError::ExposedCredentials { path: self.path.clone() });
        }
        let parsed = toml::from_str(&text);
        parsed.map(Some).map_err(|source| CliError::DamagedCredentials { path: self.path.clone(), source })
    }

    /// Replaces the credentials.
    pub(super) fn write(&self, credentials: &Credentials) -> Result<(), CliError> {
        let text = toml::to_string(credentials)
            .map_err(|error| CliError::Format { format: "TOML", reason: error.to_string() })?;
        self.replace(text.as_bytes()).map_err(|error| self.error("written", error))
    }

    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
        // The process id keeps two sign-ins at once apart.
        let new = folder.join(format!("credentials.toml.{}", std::process::id()));
        let written = write_new(&new, text).and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written?;
        File::open(folder)?.sync_all()
    }

    /// Deletes the credentials. Returns false if there are none.
    pub(super) fn delete(&self) -> Result<bool, CliError> {
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.error("deleted", error)),
        }
    }

    fn error(&self, action: &'static str, source: io::Error) -> CliError {
        CliError::CredentialsFile { path: self.path.clone(), action, source }
    }
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    // A file that a crash left behind may have another mode.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_can_read_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("milvaion");
        fs::create_dir(&own).expect("a folder that others can read");
        fs::set_permissions(&own, Permissions::from_mode(0o755)).expect("a mode");
        let file = CredentialsFile::in_folder(Some(folder.path())).expect("a path");
        let credentials = Credentials { url: "https://a.example".into(), token: "milvaion_\"x\"".into() };
        for _ in 0..2 {
            file.write(&credentials).expect("written");
        }
        assert_eq!((mode(file.path()), mode(&own)), (0o600, 0o700));
        assert_eq!(file.read().expect("readable"), Some(credentials));
        assert_eq!(fs::read_dir(&own).expect("a folder").count(), 1, "no other file is left");
        assert!(file.delete().expect("deleted") && !file.delete().expect("deleted before"));
        assert_eq!(file.read().expect("no file"), None);
    }

    #[test]
    fn an_exposed_or_damaged_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = CredentialsFile::in_folder(Some(folder.path())).expect("a path");
        file.write(&Credentials { url: "u".into(), token: "t".into() }).expect("written");
        fs::set_permissions(file.path(), Permissions::from_mode(0o640)).expect("a mode");
        assert!(matches!(file.read(), Err(CliError::ExposedCredentials { .. })));
        fs::set_permissions(file.path(), Permissions::from_mode(0o600)).expect("a mode");
        fs::write(file.path(), "url = 7").expect("written");
        assert!(matches!(file.read(), Err(CliError::DamagedCredentials { .. })));
    }
}
