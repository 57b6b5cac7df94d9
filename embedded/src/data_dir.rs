//! The data folder: its lock, the folders of the services, the users that they run as, and their passwords.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use rand::distr::{Alphanumeric, SampleString};

use super::child::SystemAccount;
use super::{EmbeddedError, ServiceSelection, programs};

/// The parent of the services' folders if their users cannot reach the data folder, for example below the home of root.
const FALLBACK_SERVICES_DIR: &str = "/var/lib/milvaion";

/// The file in the data folder that names the folder below [`FALLBACK_SERVICES_DIR`]. It is moved and deleted together
/// with the data folder.
const POINTER_FILE: &str = "services-are-in";

/// The length of a password. It holds only letters and digits, so it needs no quotes in a URL, a configuration file or
/// a shell. 32 of them are 190 bits.
const PASSWORD_LENGTH: usize = 32;

/// A service as Debian installs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DebianService {
    /// The name of its folder, of its password file and of its log.
    pub(super) folder: &'static str,
    /// The name of its process.
    pub(super) process: &'static str,
    /// The user that its package creates.
    pub(super) user: &'static str,
    pub(super) package: &'static str,
    pub(super) stop_signal: Signal,
}

impl DebianService {
    pub(super) const ALL: [Self; 3] = [POSTGRES, REDIS, RABBITMQ];
}

pub(super) const POSTGRES: DebianService = DebianService {
    folder: "postgres",
    process: "postgres",
    user: "postgres",
    package: "postgresql",
    // A fast shutdown, which ends the sessions and writes a checkpoint. SIGTERM would wait for clients.
    stop_signal: Signal::SIGINT,
};

pub(super) const REDIS: DebianService = DebianService {
    folder: "redis",
    process: "redis-server",
    user: "redis",
    package: "redis-server",
    // Redis then syncs its append-only file and exits.
    stop_signal: Signal::SIGTERM,
};

pub(super) const RABBITMQ: DebianService = DebianService {
    folder: "rabbitmq",
    process: "beam.smp",
    user: "rabbitmq",
    package: "rabbitmq-server",
    // The node then stops its applications in order.
    stop_signal: Signal::SIGTERM,
};

/// A locked data folder.
#[derive(Debug)]
pub(super) struct DataDir {
    data: PathBuf,
    services: PathBuf,
    _locks: Vec<File>,
}

/// The folder of a service and the user that the service runs as.
#[derive(Debug, Clone)]
pub(super) struct ServiceDir {
    pub(super) folder: PathBuf,
    pub(super) account: Option<SystemAccount>,
}

impl DataDir {
    /// Creates the folder if necessary, locks it, and chooses the folder for the selected services.
    pub(super) fn claim(data_dir: &Path, wanted: ServiceSelection) -> Result<Self, EmbeddedError> {
        fs::create_dir_all(data_dir).map_err(EmbeddedError::folder(data_dir, "created"))?;
        let data = data_dir.canonicalize().map_err(EmbeddedError::folder(data_dir, "opened"))?;
        let mut locks = vec![lock(&data)?];

        let services = choose_services_dir(&data, wanted)?;
        if services != data {
            // A copied data folder names the same services folder as its original, so only one of them may run.
            locks.push(lock(&services)?);
        }
        Ok(Self { data, services, _locks: locks })
    }

    /// Returns the folder that holds the folders of the services.
    pub(super) fn services(&self) -> &Path {
        &self.services
    }

    /// Returns a message for the user if the services are not in the data folder.
    pub(super) fn moved(&self) -> Option<String> {
        (self.services != self.data).then(|| {
            format!(
                "The system users of the services cannot reach {}, so the data of the services is in {}",
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

    /// Returns the password of a service. It is created once, and only our user can read it.
    pub(super) fn secret(&self, service: &str) -> Result<String, EmbeddedError> {
        let file = self.secret_file(service);
        match fs::read_to_string(&file) {
            Ok(text) if is_password(text.trim()) => return Ok(text.trim().to_owned()),
            Ok(_) => {
                let source = io::Error::new(io::ErrorKind::InvalidData, "it does not hold a generated password");
                return Err(EmbeddedError::Folder { path: file, doing: "used", source });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(EmbeddedError::folder(&file, "read")(error)),
        }
        let folder = self.data.join("secrets");
        private_folder(&folder).map_err(EmbeddedError::folder(&folder, "created"))?;
        let password = random_text(PASSWORD_LENGTH);
        write_private(&file, &password, None)?;
        Ok(password)
    }

    /// Returns the folder of a service and creates it if necessary. If we run as root, the service runs as the owner of
    /// the folder, and a new folder is given to the Debian user of the service.
    pub(super) fn home(&self, service: &DebianService) -> Result<ServiceDir, EmbeddedError> {
        let folder = self.services.join(service.folder);
        private_folder(&folder).map_err(EmbeddedError::folder(&folder, "created"))?;
        let our_uid = geteuid();
        let owner = owner(&folder);
        if !our_uid.is_root() {
            if owner.is_none_or(|owner| owner.uid != our_uid.as_raw()) {
                let source = io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user");
                return Err(EmbeddedError::Folder { path: folder, doing: "used", source });
            }
            return Ok(ServiceDir { folder, account: None });
        }
        if owner.is_some() {
            return Ok(ServiceDir { folder, account: owner });
        }
        let account = system_user(service)?;
        chown(&folder, Some(account.uid), Some(account.gid))
            .map_err(EmbeddedError::folder(&folder, "given to its user"))?;
        Ok(ServiceDir { folder, account: Some(account) })
    }

    /// Deletes everything except the logs and the lock.
    pub(super) fn erase(self) -> Result<(), EmbeddedError> {
        for service in DebianService::ALL {
            delete(&self.services.join(service.folder), |path| fs::remove_dir_all(path))?;
        }
        if self.services != self.data {
            delete(&self.services, |path| fs::remove_dir_all(path))?;
        }
        delete(&self.data.join("secrets"), |path| fs::remove_dir_all(path))?;
        delete(&self.data.join(POINTER_FILE), |path| fs::remove_file(path))?;
        delete(&self.ports_file(), |path| fs::remove_file(path))
    }
}

impl ServiceDir {
    /// Creates a folder in it that belongs to the service.
    pub(super) fn sub_folder(&self, name: &str) -> Result<PathBuf, EmbeddedError> {
        let path = self.folder.join(name);
        private_folder(&path)
            .and_then(|()| self.give_to_service(&path))
            .map_err(EmbeddedError::folder(&path, "created"))?;
        Ok(path)
    }

    /// Writes a file in it that only the service can read.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<PathBuf, EmbeddedError> {
        let path = self.folder.join(name);
        write_private(&path, text, self.account)?;
        Ok(path)
    }

    fn give_to_service(&self, path: &Path) -> io::Result<()> {
        self.account.map_or(Ok(()), |account| chown(path, Some(account.uid), Some(account.gid)))
    }
}

/// Locks a folder until the file is closed. The kernel releases the lock however our process ends.
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

/// Returns the folder for the services: the data folder, unless we run as root and the user of a service cannot reach
/// it.
fn choose_services_dir(data: &Path, wanted: ServiceSelection) -> Result<PathBuf, EmbeddedError> {
    let pointer = data.join(POINTER_FILE);
    if let Ok(text) = fs::read_to_string(&pointer) {
        let services = PathBuf::from(text.trim_end_matches('\n'));
        make_traversable(&services).map_err(EmbeddedError::folder(&services, "created"))?;
        return Ok(services);
    }
    if !geteuid().is_root() {
        return Ok(data.to_owned());
    }
    let mut users = Vec::new();
    for (is_wanted, service) in [(wanted.postgres, POSTGRES), (wanted.redis, REDIS), (wanted.rabbitmq, RABBITMQ)] {
        if is_wanted {
            users.push(match owner(&data.join(service.folder)) {
                Some(owner) => owner,
                None => system_user(&service)?,
            });
        }
    }
    make_traversable(data).map_err(EmbeddedError::folder(data, "opened to the users of the services"))?;
    if users.iter().all(|&user| can_reach(user, data)) {
        return Ok(data.to_owned());
    }
    let services = Path::new(FALLBACK_SERVICES_DIR).join(random_text(8).to_lowercase());
    make_traversable(Path::new(FALLBACK_SERVICES_DIR))
        .and_then(|()| make_traversable(&services))
        .map_err(EmbeddedError::folder(&services, "created"))?;
    fs::write(&pointer, format!("{}\n", services.display())).map_err(EmbeddedError::folder(&pointer, "written"))?;
    Ok(services)
}

/// Creates the folder and lets all users traverse it. Each folder inside has its own permissions.
fn make_traversable(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o111 != 0o111 {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o111))?;
    }
    Ok(())
}

/// Returns true if `user` can enter `folder`. A process of that user tries it, because modes, access lists and mounts
/// all matter.
fn can_reach(user: SystemAccount, folder: &Path) -> bool {
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

/// Returns the owner of the folder, unless it is root or the folder does not exist. An earlier start may have run as
/// another user.
fn owner(folder: &Path) -> Option<SystemAccount> {
    let meta = fs::metadata(folder).ok()?;
    (meta.uid() != 0).then(|| SystemAccount { uid: meta.uid(), gid: meta.gid() })
}

fn system_user(service: &DebianService) -> Result<SystemAccount, EmbeddedError> {
    let DebianService { user: name, package, .. } = *service;
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

/// Writes a file that only its owner can read. The text goes to a temporary file that is then renamed, so the file is
/// never incomplete.
fn write_private(path: &Path, text: &str, owner: Option<SystemAccount>) -> Result<(), EmbeddedError> {
    let fresh = path.with_extension("new");
    let write = || {
        // A run that died while writing may have left this file; its mode and owner must not be inherited.
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

/// Calls `remove` and accepts that the path does not exist.
fn delete(path: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), EmbeddedError> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(EmbeddedError::folder(path, "deleted")(error)),
        _ => Ok(()),
    }
}

fn random_text(length: usize) -> String {
    Alphanumeric.sample_string(&mut rand::rng(), length)
}

fn is_password(text: &str) -> bool {
    text.len() == PASSWORD_LENGTH && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the path of a program, or an error that names its package.
pub(super) fn program(name: &str, readable: &str, package: &'static str) -> Result<PathBuf, EmbeddedError> {
    programs::find(name, &programs::search_path())
        .ok_or_else(|| EmbeddedError::Missing { what: format!("{readable} ({name})"), package })
}

#[cfg(test)]
mod tests {
    use super::*;
    use milvaion_telemetry::chain;

    const NOTHING: ServiceSelection = ServiceSelection { postgres: false, redis: false, rabbitmq: false };

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("milvaion-data-dir-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_second_claim_fails_and_names_the_first() {
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
    fn a_password_is_created_once_and_is_private() {
        let data = folder("secret");
        let data_dir = DataDir::claim(&data, NOTHING).unwrap();
        let password = data_dir.secret("redis").unwrap();
        assert!(is_password(&password));
        assert_eq!(data_dir.secret("redis").unwrap(), password);
        assert_ne!(data_dir.secret("postgres").unwrap(), password);
        let mode = fs::metadata(data_dir.secret_file("redis")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn an_invalid_password_file_is_not_overwritten() {
        let data = folder("invalid");
        let data_dir = DataDir::claim(&data, NOTHING).unwrap();
        data_dir.secret("redis").unwrap();
        fs::write(data_dir.secret_file("redis"), "@\n").unwrap();
        let error = data_dir.secret("redis").unwrap_err();
        assert!(chain(&error).contains("it does not hold a generated password"), "{error:?}");
        fs::remove_dir_all(data).unwrap();
    }

    #[test]
    fn erasing_keeps_the_logs() {
        let data = folder("erase");
        let data_dir = DataDir::claim(&data, NOTHING).unwrap();
        data_dir.secret("redis").unwrap();
        fs::create_dir_all(data.join("logs")).unwrap();
        fs::create_dir_all(data.join(REDIS.folder).join("deep")).unwrap();
        data_dir.erase().unwrap();
        let mut left: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lock", "logs"]);
        fs::remove_dir_all(data).unwrap();
    }
}
