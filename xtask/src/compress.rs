//! Compressed copies beside the files.
//!
//! Brotli at its highest level is too slow to do per request and saves a fifth over its fast levels; done once at build
//! time, it costs nothing later. gzip is for clients that support nothing else. A build for the own machine uses a fast
//! level, because its files are rarely sent over a network.

use std::{
    ffi::OsStr,
    fs,
    io::{Cursor, Write as _},
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, anyhow};
use brotli::enc::BrotliEncoderParams;
use flate2::{Compression, write::GzEncoder};

use crate::files;

/// The files that are compressed, by extension. Fonts are compressed already.
const COMPRESSED_EXTENSIONS: [&str; 6] = ["wasm", "js", "css", "svg", "txt", "json"];

/// The effort spent on making the copies small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompressionEffort {
    /// Takes a second for the whole browser side.
    Fast,
    /// Takes about a minute for the whole browser side.
    Best,
}

/// Writes `.br` and `.gz` beside every suitable file below a folder, unless it has them already.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub(crate) fn all_below(folder: &Path, effort: CompressionEffort) -> Result<()> {
    let waiting: Vec<PathBuf> = files::list(folder)?
        .into_iter()
        .filter(|path| is_suitable(path) && !with_suffix(path, "br").exists())
        .collect();
    // The sizes differ by a factor of a hundred. With one thread per file, every core stays busy without a work queue.
    thread::scope(|scope| {
        let running: Vec<_> = waiting.iter().map(|path| scope.spawn(move || compress(path, effort))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a compression thread panicked"))?)
    })
}

fn is_suitable(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|kind| COMPRESSED_EXTENSIONS.contains(&kind))
}

/// Returns the path of a file with another suffix appended.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

fn compress(path: &Path, effort: CompressionEffort) -> Result<()> {
    let (quality, level) = match effort {
        CompressionEffort::Fast => (5, Compression::fast()),
        CompressionEffort::Best => (11, Compression::best()),
    };
    let raw = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    // Every browser accepts this window size. The size hint lets the encoder choose its tables.
    let params = BrotliEncoderParams { quality, lgwin: 22, size_hint: raw.len(), ..Default::default() };
    let mut br = Vec::new();
    brotli::BrotliCompress(&mut Cursor::new(&raw), &mut br, &params)?;
    files::write(&with_suffix(path, "br"), br)?;

    let mut gz = GzEncoder::new(Vec::new(), level);
    gz.write_all(&raw)?;
    files::write(&with_suffix(path, "gz"), gz.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_copies_decompress_to_the_original() {
        let folder = std::env::temp_dir().join(format!("milvaion-compress-{}", std::process::id()));
        let text = "a { color: red }\n".repeat(500);
        files::write(&folder.join("deep/app.css"), &text).unwrap();
        files::write(&folder.join("font.woff2"), "no").unwrap();
        all_below(&folder, CompressionEffort::Best).unwrap();

        let mut plain = Vec::new();
        let br = fs::read(folder.join("deep/app.css.br")).unwrap();
        brotli::BrotliDecompress(&mut Cursor::new(&br), &mut plain).unwrap();
        assert_eq!(plain, text.as_bytes());
        assert!(br.len() < text.len() / 10);

        let mut gz = flate2::read::GzDecoder::new(fs::File::open(folder.join("deep/app.css.gz")).unwrap());
        assert_eq!(std::io::read_to_string(&mut gz).unwrap(), text);
        assert!(!folder.join("font.woff2.br").exists());
        files::remove_dir(&folder).unwrap();
    }
}
