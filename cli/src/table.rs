//! Tables for people.
//!
//! Columns are aligned and have no borders, so that a line can be selected, searched and cut. Names, notes and log lines
//! come from users and jobs: a control character in one could move the cursor or change the terminal, so none is printed.

use milvaion_api::styled_text::{shown_text, without_sequences};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The maximum width of a cell, in columns. The complete text is in the JSON.
const MAX_CELL_WIDTH: usize = 60;

/// The colour of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Color {
    /// The terminal's own.
    #[default]
    Plain,
    /// Something works.
    Green,
    /// Something needs attention.
    Yellow,
    /// Something failed.
    Red,
    /// Something is in progress.
    Blue,
    /// Something is of less importance.
    Faint,
}

impl Color {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
            Self::Red => "\x1b[31m",
            Self::Blue => "\x1b[34m",
            Self::Faint => "\x1b[2m",
        }
    }
}

/// A cell. A colour never carries meaning alone: the text has the word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    color: Color,
}

impl Cell {
    /// Builds a cell of a colour.
    pub(super) fn new(text: impl AsRef<str>, color: Color) -> Self {
        Self { text: printable(text.as_ref()), color }
    }

    /// Builds a cell without a colour.
    pub(super) fn plain(text: impl AsRef<str>) -> Self {
        Self::new(text, Color::Plain)
    }

    /// Builds a cell of less importance.
    pub(super) fn faint(text: impl AsRef<str>) -> Self {
        Self::new(text, Color::Faint)
    }

    /// Returns the text in its colour.
    pub(super) fn painted(&self, has_colors: bool) -> String {
        self.paint(&self.text, has_colors)
    }

    fn paint(&self, text: &str, has_colors: bool) -> String {
        if has_colors && self.color != Color::Plain && !text.is_empty() {
            format!("{}{text}\x1b[0m", self.color.code())
        } else {
            text.to_owned()
        }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::plain(text)
    }
}

/// Replaces line breaks by spaces, and removes the escape sequences and the other characters that a terminal would obey.
pub(super) fn printable(text: &str) -> String {
    let is_order = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let text = without_sequences(text);
    let spaced = text.chars().map(|letter| if matches!(letter, '\n' | '\r' | '\t') { ' ' } else { letter });
    spaced.filter(|letter| !letter.is_control() && !is_order(*letter)).collect()
}

/// Returns a text of several lines as it is, but for the characters that a terminal would obey.
pub(super) fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Returns output of a program as a terminal would show it in the end, without colours.
pub(super) fn printable_output(text: &str) -> String {
    printable_lines(&shown_text(text))
}

/// Formats output of several lines under a title; nothing without a text.
pub(super) fn block(title: &str, text: Option<&str>) -> String {
    match text.map(str::trim_end).filter(|text| !text.is_empty()) {
        Some(text) => format!("\n{title}:\n{}\n", printable_output(text)),
        None => String::new(),
    }
}

/// Cuts a text to a width, with a mark.
fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width - 1;
    let fits = |letter: &char| {
        let columns = letter.width().unwrap_or(0);
        let is_ok = columns <= left;
        left = left.saturating_sub(columns);
        is_ok
    };
    text.chars().take_while(fits).collect::<String>() + "…"
}

/// A table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Builds a table of rows with as many cells as the header has names.
    pub(super) fn new<const N: usize>(header: [&'static str; N], rows: impl IntoIterator<Item = [Cell; N]>) -> Self {
        Self { header: header.to_vec(), rows: rows.into_iter().map(Vec::from).collect() }
    }

    /// Formats the table.
    pub(super) fn render(&self, has_colors: bool) -> String {
        let header = self.header.iter().map(|name| Cell::new(name, Color::Faint)).collect();
        let rows: Vec<&Vec<Cell>> = std::iter::once(&header).chain(&self.rows).collect();
        let texts: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| shorten(&cell.text, MAX_CELL_WIDTH)).collect()).collect();
        let width = |column: usize| texts.iter().map(|row| row[column].width()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut text = String::new();
        for (row, texts) in rows.iter().zip(&texts) {
            let mut line = String::new();
            let mut gap = 0;
            for ((cell, cut), width) in row.iter().zip(texts).zip(&widths) {
                // The spaces before a cell are written with it, so that no line ends with spaces.
                if !cut.is_empty() {
                    line.push_str(&" ".repeat(gap));
                    line.push_str(&cell.paint(cut, has_colors));
                    gap = 0;
                }
                gap += width - cut.width() + 2;
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// The fields of one object, one per line.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    fields: Vec<(&'static str, Cell)>,
}

impl Details {
    /// Adds a field.
    #[must_use]
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Cell>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a field unless its value is missing or empty.
    #[must_use]
    pub(super) fn with_some(self, name: &'static str, value: Option<impl Into<Cell>>) -> Self {
        match value.map(Into::into) {
            Some(cell) if !cell.text.is_empty() => self.with(name, cell),
            _ => self,
        }
    }

    /// Formats the fields.
    pub(super) fn render(&self, has_colors: bool) -> String {
        let width = self.fields.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        self.fields.iter().fold(String::new(), |mut text, (name, cell)| {
            let name = Cell::faint(name).paint(&format!("{name:width$}"), has_colors);
            text.push_str(&format!("{name}  {}\n", cell.paint(&cell.text, has_colors)));
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_width() {
        let rows = [["日本".into(), Cell::new("failed", Color::Red), "x".into()], ["a".into(), "ok".into(), "".into()]];
        let table = Table::new(["NAME", "STATUS", "NOTE"], rows);
        assert_eq!(table.render(false), "NAME  STATUS  NOTE\n日本  failed  x\na     ok\n");
        assert!(table.render(true).contains("\x1b[31mfailed\x1b[0m  x"));
    }

    #[test]
    fn a_text_cannot_control_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d\u{7f}"), "ab cd");
        assert_eq!(printable("safe\rname \x1b]8;;https://example.org\x07link\x1b"), "safe name link");
        assert_eq!(printable_output("\x1b[32m10%\r\x1b[1m20%\x1b[0m\r\ndone\r\n"), "20%\ndone");
        let table = Table::new(["A"], [[Cell::from("ä".repeat(100))]]);
        assert_eq!(table.render(false), format!("A\n{}…\n", "ä".repeat(59)));
    }

    #[test]
    fn details_leave_out_missing_fields() {
        let details = Details::default().with("Id", "7").with_some("Reason", Some("")).with_some("Note", None::<&str>);
        assert_eq!(details.with("Long name", "x").render(false), "Id         7\nLong name  x\n");
    }
}
