//! Compressed copies beside the files, and the table of the transfer sizes of a page.
//!
//! Brotli at its highest level is too slow to do per request and saves a fifth over its fast levels; done once at build
//! time, it costs nothing later. gzip is for clients that support nothing else.

use std::{
    ffi::OsStr,
    fs,
    io::{Cursor, Write as _},
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use brotli::enc::BrotliEncoderParams;
use flate2::{Compression, write::GzEncoder};

use crate::files;

/// The files that are compressed, by extension. Fonts are compressed already.
const COMPRESSED_EXTENSIONS: [&str; 5] = ["wasm", "js", "css", "svg", "txt"];

/// Writes `.br` and `.gz` beside every suitable file below a folder, unless it has them already.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub(crate) fn all_below(folder: &Path) -> Result<()> {
    let waiting: Vec<PathBuf> = files::list(folder)?
        .into_iter()
        .filter(|path| is_suitable(path) && !with_suffix(path, "br").exists())
        .collect();
    // The sizes differ by a factor of a hundred. With one thread per file, every core stays busy without a work queue.
    thread::scope(|scope| {
        let running: Vec<_> = waiting.iter().map(|path| scope.spawn(move || compress(path))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a compression thread panicked"))?)
    })
}

fn is_suitable(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|kind| COMPRESSED_EXTENSIONS.contains(&kind))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

fn compress(path: &Path) -> Result<()> {
    let raw = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    // Every browser accepts this window size. The size hint lets the encoder choose its tables.
    let params = BrotliEncoderParams { quality: 11, lgwin: 22, size_hint: raw.len(), ..Default::default() };
    let mut br = Vec::new();
    brotli::BrotliCompress(&mut Cursor::new(&raw), &mut br, &params)?;
    files::write(&with_suffix(path, "br"), br)?;

    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(&raw)?;
    files::write(&with_suffix(path, "gz"), gz.finish()?)
}

/// Prints each file of a finished build with its size in bytes, raw and as Brotli, and the totals that have a budget.
///
/// # Errors
/// Returns an error if there is no finished build.
pub(crate) fn print_sizes(site: &Path) -> Result<()> {
    ensure!(site.is_dir(), "there is no build in {}: run `cargo xtask front --release`", site.display());
    let mut sums = FirstVisitSizes::default();
    println!("{:<44}{:>10}{:>10}", "file", "raw", "br");
    for path in files::list(site)? {
        let kind = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let name = path.strip_prefix(site).unwrap_or(&path).to_string_lossy().into_owned();
        if kind == "br" || kind == "gz" || name.starts_with('.') {
            continue;
        }
        let raw = fs::metadata(&path)?.len();
        let br = fs::metadata(with_suffix(&path, "br")).ok().map(|metadata| metadata.len());
        println!("{name:<44}{raw:>10}{:>10}", br.map_or_else(|| "–".to_owned(), |bytes| bytes.to_string()));
        sums.compressed |= br.is_some();
        sums.add(kind, &name, br.unwrap_or(raw));
    }
    // Without compression the totals are not the transfer sizes.
    if sums.compressed {
        println!("{sums}");
    }
    Ok(())
}

/// The bytes that a first visit transfers, by kind.
#[derive(Default)]
struct FirstVisitSizes {
    compressed: bool,
    code: u64,
    style: u64,
    fonts: u64,
}

impl FirstVisitSizes {
    fn add(&mut self, kind: &str, name: &str, bytes: u64) {
        match kind {
            "wasm" | "js" => self.code += bytes,
            "css" => self.style += bytes,
            // A first visit does not load the extended alphabet.
            "woff2" if !name.contains("latin-ext") => self.fonts += bytes,
            _ => {}
        }
    }
}

impl std::fmt::Display for FirstVisitSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kb = |bytes: u64| bytes.div_ceil(1000);
        write!(
            f,
            "first visit: wasm and script {} kB of 450, style {} kB of 25, fonts {} kB of 90",
            kb(self.code),
            kb(self.style),
            kb(self.fonts)
        )
    }
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
        all_below(&folder).unwrap();

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
