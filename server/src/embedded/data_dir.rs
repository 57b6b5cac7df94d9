//! The data folder: who may use it, where the services' own folders lie, as which users they run, and
//! their passwords.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{User, geteuid};
use rand::distr::{Alphanumeric, SampleString};

use super::child::SystemAccount;
use super::{EmbeddedError, ServiceSelection, postgres, programs, rabbitmq, redis};

/// Where services live when their users cannot reach the data folder: a clone in the home of root, say.
const FALLBACK_SERVICES_DIR: &str = "/var/lib/milvaion";

/// The file in the data folder that remembers the folder below [`FALLBACK_SERVICES_DIR`]. It moves and is deleted with the data folder.
const POINTER_FILE: &str = "services-are-in";

/// Letters and digits only: fits a URL, a configuration file and a shell unquoted. 32 of them are 190 bits.
const PASSWORD_LENGTH: usize = 32;

/// A locked data folder.
#[derive(Debug)]
pub(super) struct DataDir {
    data: PathBuf,
    services: PathBuf,
    _locks: Vec<File>,
}

/// A service's own folder and the user it runs as.
#[derive(Debug, Clone)]
pub(super) struct ServiceDir {
    pub(super) folder: PathBuf,
    pub(super) account: Option<SystemAccount>,
}

impl DataDir {
    /// Makes the folder if need be, locks it, and decides where the wanted services live.
    pub(super) fn claim(data_dir: &Path, wanted: ServiceSelection) -> Result<Self, EmbeddedError> {
        fs::create_dir_all(data_dir).map_err(EmbeddedError::folder(data_dir, "created"))?;
        let data = data_dir.canonicalize().map_err(EmbeddedError::folder(data_dir, "opened"))?;
        let mut locks = vec![lock(&data)?];

        let services = decide(&data, wanted)?;
        if services != data {
            // A copied data folder points to the same services as its original: only one of them may run.
            locks.push(lock(&services)?);
        }
        Ok(Self { data, services, _locks: locks })
    }

    /// Where the services' folders lie.
    pub(super) fn services(&self) -> &Path {
        &self.services
    }

    /// A line for people when the services do not live in the data folder.
    pub(super) fn moved(&self) -> Option<String> {
        (self.services != self.data).then(|| {
            format!(
                "The services' system users cannot reach {}, so their data lies in {}",
                self.data.display(),
                self.services.display()
            )
        })
    }

    pub(super) fn ports_file(&self) -> PathBuf {
        self.data.join("ports")
    }

    pub(super) fn log(&self, service: &str) -> PathBuf {
        self.data.join("logs").join(format!("{service}.log"))
    }

    pub(super) fn secret_file(&self, service: &str) -> PathBuf {
        self.data.join("secrets").join(service)
    }

    /// The service's password: made once, readable by our user only.
    pub(super) fn secret(&self, service: &str) -> Result<String, EmbeddedError> {
        let file = self.secret_file(service);
        match fs::read_to_string(&file) {
            Ok(text) if is_password(text.trim()) => return Ok(text.trim().to_owned()),
            Ok(_) => {
                let source = io::Error::new(io::ErrorKind::InvalidData, "it holds no password of ours");
                return Err(EmbeddedError::Folder { path: file, doing: "used", source });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(EmbeddedError::folder(&file, "read")(error)),
        }
        let folder = self.data.join("secrets");
        private_folder(&folder).map_err(EmbeddedError::folder(&folder, "created"))?;
        let password = random_word(PASSWORD_LENGTH);
        write_private(&file, &password, None)?;
        Ok(password)
    }

    /// The service's own folder, made if need be. Run by root, the service runs as whoever owns the folder, and a
    /// new folder is given to `user`, the Debian user of the service.
    pub(super) fn home(&self, service: &str, user: &str, package: &'static str) -> Result<ServiceDir, EmbeddedError> {
        let folder = self.services.join(service);
        private_folder(&folder).map_err(EmbeddedError::folder(&folder, "created"))?;
        let us = geteuid();
        let owner = owner(&folder);
        if !us.is_root() {
            if owner.is_none_or(|owner| owner.uid != us.as_raw()) {
                let source = io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user");
                return Err(EmbeddedError::Folder { path: folder, doing: "used", source });
            }
            return Ok(ServiceDir { folder, account: None });
        }
        if owner.is_some() {
            return Ok(ServiceDir { folder, account: owner });
        }
        let account = system_user(user, package)?;
        chown(&folder, Some(account.uid), Some(account.gid)).map_err(EmbeddedError::folder(&folder, "handed over"))?;
        Ok(ServiceDir { folder, account: Some(account) })
    }

    /// Deletes all but the logs and the lock.
    pub(super) fn erase(self) -> Result<(), EmbeddedError> {
        for name in [postgres::FOLDER, redis::FOLDER, rabbitmq::FOLDER] {
            gone(&self.services.join(name), |path| fs::remove_dir_all(path))?;
        }
        if self.services != self.data {
            gone(&self.services, |path| fs::remove_dir_all(path))?;
        }
        gone(&self.data.join("secrets"), |path| fs::remove_dir_all(path))?;
        gone(&self.data.join(POINTER_FILE), |path| fs::remove_file(path))?;
        gone(&self.ports_file(), |path| fs::remove_file(path))
    }
}

impl ServiceDir {
    /// Makes a folder in it that belongs to the service.
    pub(super) fn sub_folder(&self, name: &str) -> Result<PathBuf, EmbeddedError> {
        let path = self.folder.join(name);
        private_folder(&path).and_then(|()| self.own(&path)).map_err(EmbeddedError::folder(&path, "created"))?;
        Ok(path)
    }

    /// Writes a file in it that only the service may read.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<PathBuf, EmbeddedError> {
        let path = self.folder.join(name);
        write_private(&path, text, self.account)?;
        Ok(path)
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        self.account.map_or(Ok(()), |account| chown(path, Some(account.uid), Some(account.gid)))
    }
}

/// Locks a folder for as long as the file lives; the kernel releases it however we end.
fn lock(folder: &Path) -> Result<File, EmbeddedError> {
    let path = folder.join("lock");
    let failed = |error| EmbeddedError::folder(&path, "written")(error);
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            return Err(EmbeddedError::Busy { folder: folder.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

/// The data folder itself, unless we are root and a service's user cannot reach it.
fn decide(data: &Path, wanted: ServiceSelection) -> Result<PathBuf, EmbeddedError> {
    let pointer = data.join(POINTER_FILE);
    if let Ok(text) = fs::read_to_string(&pointer) {
        let services = PathBuf::from(text.trim_end_matches('\n'));
        open_to_all(&services).map_err(EmbeddedError::folder(&services, "created"))?;
        return Ok(services);
    }
    if !geteuid().is_root() {
        return Ok(data.to_owned());
    }
    let mut users = Vec::new();
    for (is_wanted, service, user, package) in [
        (wanted.postgres, postgres::FOLDER, postgres::USER, postgres::PACKAGE),
        (wanted.redis, redis::FOLDER, redis::USER, redis::PACKAGE),
        (wanted.rabbitmq, rabbitmq::FOLDER, rabbitmq::USER, rabbitmq::PACKAGE),
    ] {
        if is_wanted {
            users.push(match owner(&data.join(service)) {
                Some(owner) => owner,
                None => system_user(user, package)?,
            });
        }
    }
    open_to_all(data).map_err(EmbeddedError::folder(data, "opened to the services' users"))?;
    if users.iter().all(|&user| reaches(user, data)) {
        return Ok(data.to_owned());
    }
    let services = Path::new(FALLBACK_SERVICES_DIR).join(random_word(8).to_lowercase());
    open_to_all(Path::new(FALLBACK_SERVICES_DIR))
        .and_then(|()| open_to_all(&services))
        .map_err(EmbeddedError::folder(&services, "created"))?;
    fs::write(&pointer, format!("{}\n", services.display())).map_err(EmbeddedError::folder(&pointer, "written"))?;
    Ok(services)
}

/// Makes the folder and lets everybody walk through it; what lies in it is each service's own.
fn open_to_all(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o111 != 0o111 {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o111))?;
    }
    Ok(())
}

/// Asks the kernel by trying, as that user: modes, access lists and mounts all have their say.
fn reaches(user: SystemAccount, folder: &Path) -> bool {
    Command::new("setpriv")
        .arg(format!("--reuid={}", user.uid))
        .arg(format!("--regid={}", user.gid))
        .args(["--clear-groups", "--", "/bin/sh", "-c", "cd \"$1\"", "sh"])
        .arg(folder)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whoever owns the folder, unless that is root or nobody made it yet: another start may have been somebody else's.
fn owner(folder: &Path) -> Option<SystemAccount> {
    let meta = fs::metadata(folder).ok()?;
    (meta.uid() != 0).then(|| SystemAccount { uid: meta.uid(), gid: meta.gid() })
}

fn system_user(name: &str, package: &'static str) -> Result<SystemAccount, EmbeddedError> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(SystemAccount { uid: user.uid.as_raw(), gid: user.gid.as_raw() }),
        _ => Err(EmbeddedError::Missing { what: format!("The system user {name}"), package }),
    }
}

fn private_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Writes a file nobody else may read, whole or not at all: beside it first, then renamed.
fn write_private(path: &Path, text: &str, owner: Option<SystemAccount>) -> Result<(), EmbeddedError> {
    let fresh = path.with_extension("new");
    let write = || {
        // Left by a run that died while writing; its mode and owner are not to be inherited.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        if let Some(SystemAccount { uid, gid }) = owner {
            chown(&fresh, Some(uid), Some(gid))?;
        }
        fs::rename(&fresh, path)
    };
    write().map_err(EmbeddedError::folder(path, "written"))
}

fn gone(path: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), EmbeddedError> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(EmbeddedError::folder(path, "deleted")(error)),
        _ => Ok(()),
    }
}

fn random_word(length: usize) -> String {
    Alphanumeric.sample_string(&mut rand::rng(), length)
}

fn is_password(text: &str) -> bool {
    text.len() == PASSWORD_LENGTH && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The path of a program, or the sentence about its package.
pub(super) fn program(name: &str, readable: &str, package: &'static str) -> Result<PathBuf, EmbeddedError> {
    programs::find(name, &programs::search_path())
        .ok_or_else(|| EmbeddedError::Missing { what: format!("{readable} ({name})"), package })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: ServiceSelection = ServiceSelection { postgres: false, redis: false, rabbitmq: false };

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("milvaion-place-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_second_claim_is_refused_and_names_the_first() {
        let data = folder("busy");
        let first = DataDir::claim(&data, NOTHING).unwrap();
        let refused = DataDir::claim(&data, NOTHING).unwrap_err();
        assert!(
            matches!(refused, EmbeddedError::Busy { pid: Some(pid), .. } if pid == std::process::id()),
            "{refused}"
        );
        drop(first);
        DataDir::claim(&data, NOTHING).unwrap();
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn a_password_is_made_once_and_is_ours_alone() {
        let data = folder("secret");
        let place = DataDir::claim(&data, NOTHING).unwrap();
        let password = place.secret("redis").unwrap();
        assert!(is_password(&password));
        assert_eq!(place.secret("redis").unwrap(), password);
        assert_ne!(place.secret("postgres").unwrap(), password);
        let mode = fs::metadata(place.secret_file("redis")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn a_spoilt_password_file_is_told_not_overwritten() {
        let data = folder("spoilt");
        let place = DataDir::claim(&data, NOTHING).unwrap();
        place.secret("redis").unwrap();
        fs::write(place.secret_file("redis"), "@\n").unwrap();
        assert!(place.secret("redis").unwrap_err().to_string().contains("it holds no password of ours"));
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn erasing_leaves_the_logs() {
        let data = folder("erase");
        let place = DataDir::claim(&data, NOTHING).unwrap();
        place.secret("redis").unwrap();
        fs::create_dir_all(data.join("logs")).unwrap();
        fs::create_dir_all(data.join(redis::FOLDER).join("deep")).unwrap();
        place.erase().unwrap();
        let mut left: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "logs"]);
        fs::remove_dir_all(data).unwrap();
    }
}
