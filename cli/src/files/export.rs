//! `milvaion export`.

use std::collections::HashSet;

use milvaion_api::rest::{ExportQuery, FileDocument, JobDocument, files::MAX_DOCUMENTS};

use super::{ExportOptions, TagSelector};
use crate::{CliError, Console, OutputFormat, exit, output::to_document, session::Session};

/// The number of jobs in one request.
const PAGE_JOBS: u32 = 100;
/// The maximum number of documents of an export.
const MAX_EXPORTED: usize = 10_000;
/// The number of characters of the id that make a key unique.
const ID_SUFFIX_CHARS: usize = 12;

/// Prints jobs and calendars as a file.
pub(crate) async fn export(options: &ExportOptions, console: &mut Console) -> Result<u8, CliError> {
    let mut session = Session::open(&options.globals, console)?;
    let tag = options.selector.as_ref().map(|TagSelector(tag)| tag.clone());
    let mut documents = read(&session, tag).await?;
    make_keys_unique(&mut documents);
    let too_many = documents.len() > MAX_DOCUMENTS;
    match session.format {
        // YAML is the format of files; a definition has too many fields for a table.
        OutputFormat::Table => write_yaml(&mut session, &documents)?,
        OutputFormat::Json | OutputFormat::Yaml => drop(session.print(&documents, |_, _| String::new())?),
    }
    session.console.flush()?;
    if too_many {
        session.console.message(&format!(
            "The export has {} documents, and at most {MAX_DOCUMENTS} are applied at once: export by tag into several files.",
            documents.len()
        ));
    }
    Ok(exit::SUCCESS)
}

/// Reads all documents, each once.
async fn read(session: &Session<'_>, tag: Option<String>) -> Result<Vec<FileDocument>, CliError> {
    let mut documents: Vec<FileDocument> = Vec::new();
    let mut calendars = HashSet::new();
    let mut query = ExportQuery { tag, after: None, limit: Some(PAGE_JOBS) };
    loop {
        let page = session.client.export_files(&query).await?;
        for document in page.items {
            // Each page has the calendars of its jobs.
            if !matches!(document, FileDocument::Calendar(_)) || calendars.insert(document.name().to_owned()) {
                documents.push(document);
            }
        }
        if documents.len() > MAX_EXPORTED {
            let text = format!("There are more than {MAX_EXPORTED} jobs. Export them by tag: --selector tag=TAG.");
            return Err(CliError::Usage(text));
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(documents),
        }
    }
}

/// Makes the suggested keys of jobs on different pages unique. A key that a job has never changes.
fn make_keys_unique(documents: &mut [FileDocument]) {
    let mut taken: HashSet<String> = HashSet::new();
    for document in documents.iter() {
        if let FileDocument::Job(job) = document
            && job.id.is_none()
        {
            taken.insert(job.key.clone());
        }
    }
    for document in documents {
        if let FileDocument::Job(job) = document
            && let JobDocument { key, id: Some(id), .. } = &mut **job
            && !taken.insert(key.clone())
        {
            let id = id.to_string();
            *key = format!("{key}-{}", id.get(id.len() - ID_SUFFIX_CHARS..).unwrap_or(&id));
            taken.insert(key.clone());
        }
    }
}

fn write_yaml(session: &mut Session<'_>, documents: &[FileDocument]) -> Result<(), CliError> {
    let base = session.client.base_url().as_str().trim_end_matches('/');
    let mut text = format!("# yaml-language-server: $schema={base}/api/jobs-file.schema.json\n");
    for document in documents {
        text += "---\n";
        text += &to_document(OutputFormat::Yaml, document)?.unwrap_or_default();
    }
    session.console.write(text.as_bytes())
}
