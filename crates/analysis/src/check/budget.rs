//! Parses assertions: expressions from the command line or from files with one expression a line and comments after #.
//! It reports all errors at once, with file, line and column, so that the user can fix them in one go.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail};

use crate::Usage;
use crate::measure::{self, Op, Term, Value};
use crate::text::clean;

/// A larger file is no assertion file; the user probably passed a trace.
const LARGEST: u64 = 1 << 20;

/// Number of errors reported.
const MOST: usize = 20;

#[derive(Debug)]
pub struct Budget {
    pub term: Term,
    pub op: Op,
    pub limit: Value,
    /// The source text, without the comment.
    pub text: String,
    pub place: Place,
}

/// The place of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// None: the command line.
    pub file: Option<String>,
    pub line: Option<usize>,
}

impl Place {
    /// `budget.txt:3:14`, the format of compilers.
    pub fn at(&self, column: usize) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}:{column}"),
            _ => format!("column {column}"),
        }
    }
}

pub fn read(given: &[String]) -> Result<Vec<Budget>> {
    let mut budgets = Vec::new();
    let mut errors = Vec::new();
    for one in given {
        match contents(one)? {
            Some(text) => {
                for (at, line) in text.strip_prefix('\u{feff}').unwrap_or(&text).lines().enumerate() {
                    let place = Place { file: Some(clean(one)), line: Some(at + 1) };
                    expression(line, place, &mut budgets, &mut errors);
                }
            }
            None => expression(one, Place { file: None, line: None }, &mut budgets, &mut errors),
        }
    }
    if errors.len() > MOST {
        let more = errors.len() - MOST;
        errors.truncate(MOST);
        errors.push(format!("and {more} more errors"));
    }
    if !errors.is_empty() {
        bail!(Usage(errors.join("\n")));
    }
    if budgets.is_empty() {
        bail!(Usage(
            "there is no assertion to check: give --assert 'launches<=5000', or a file with such lines"
                .into()
        ));
    }
    Ok(budgets)
}

/// The content of a file; `None` if the argument is an expression, not a file.
fn contents(given: &str) -> Result<Option<String>> {
    let compares = given.contains(['<', '>', '=']) || given.trim() == "complete";
    let mut file = match File::open(Path::new(given)) {
        Ok(file) => file,
        Err(_) if compares => return Ok(None),
        Err(error) => bail!(Usage(format!(
            "--assert {}: neither an expression (launches<=5000) nor a file that can be read: {error}",
            clean(given)
        ))),
    };
    let mut bytes = Vec::new();
    if let Err(error) = file.by_ref().take(LARGEST + 1).read_to_end(&mut bytes) {
        bail!(Usage(format!("{}: the file of assertions cannot be read: {error}", clean(given))));
    }
    let is_trace = bytes.starts_with(b"{\"event_id\"") || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    if is_trace || bytes.len() as u64 > LARGEST {
        bail!(Usage(format!(
            "{} looks like a trace, not like assertions: give FILE or EXPR after --assert, and the traces without an option",
            clean(given)
        )));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = good.iter().filter(|b| **b == b'\n').count() + 1;
            bail!(Usage(format!("{}:{line}: this line is not UTF-8: save the file as UTF-8", clean(given))))
        }
    }
}

fn expression(line: &str, place: Place, budgets: &mut Vec<Budget>, errors: &mut Vec<String>) {
    match measure::budget(line) {
        Ok(None) if place.file.is_none() => {
            errors.push("--assert is empty: give an expression, such as launches<=5000".into())
        }
        Ok(None) => {}
        Ok(Some((term, op, limit))) => {
            budgets.push(Budget { term, op, limit, text: without_comment(line), place });
        }
        Err(fault) => errors.push(fault.pointed(&place.at(fault.column), line)),
    }
}

fn without_comment(line: &str) -> String {
    let mut quote = None;
    let comment = line.char_indices().find(|(_, c)| {
        match (quote, *c) {
            (None, '"' | '\'') => quote = Some(*c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        quote.is_none() && *c == '#'
    });
    let end = comment.map_or(line.len(), |(at, _)| at);
    line.get(..end).unwrap_or(line).trim().to_owned()
}
