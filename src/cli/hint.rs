//! Guesses the cause of a usage error. In: the arguments, and clap's error. Out: a sentence for the end of its message,
//! if there is a guess. Does not decide the meaning of any word.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clap::error::ErrorKind;

use crate::process::identity::invoking_user;
use crate::process::rights::as_caller;
use gpurec_analysis::nearest;

pub fn hint(words: &[OsString], kind: ErrorKind, commands: &[String]) -> Option<String> {
    let wrong =
        matches!(kind, ErrorKind::InvalidValue | ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
    let first = words.get(1).filter(|_| wrong)?.to_string_lossy();
    if first == "report" {
        let name = words.get(2)?.to_string_lossy();
        return is_trace(&name).then(|| format!("name the report first, as in `gpurec report api {name}`"));
    }
    if first == "diff" && kind == ErrorKind::UnknownArgument {
        return Some("it compares two traces: `gpurec diff BEFORE AFTER`".to_owned());
    }
    let at = super::words::first(words)?;
    let first = words.get(at)?.to_string_lossy();
    if commands.iter().any(|command| *command == first) {
        return None;
    }
    if is_trace(&first) {
        return Some(format!("to read a trace: `gpurec summary {first}`"));
    }
    if let Some(near) = nearest(&first, commands.iter().map(String::as_str)).first() {
        return Some(format!("did you mean `gpurec {near}`?"));
    }
    let mut program: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    program.insert(at - 1, "--".into());
    Some(format!("to record a program, put -- before it: `sudo gpurec {}`", program.join(" ")))
}

/// By its name; of another, a file that is no program.
fn is_trace(name: &str) -> bool {
    let is_data = |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 == 0);
    // A hint must not reveal the contents of folders that the caller cannot read.
    let is_data = || is_data(Path::new(name));
    name.ends_with(".jsonl")
        || name.ends_with(".zst")
        || as_caller(&invoking_user(), is_data).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str, kind: ErrorKind) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        hint(&words, kind, &["summary".to_owned(), "report".to_owned(), "diff".to_owned()])
    }

    #[test]
    fn what_people_forget_is_named() {
        let unknown = ErrorKind::UnknownArgument;
        let says = |line, kind, text: &str| {
            let hint = said(line, kind).unwrap_or_default();
            assert!(hint.contains(text), "{line}: {hint}");
        };
        says("gpurec python3 x.py", unknown, "`sudo gpurec -- python3 x.py`");
        says(
            "gpurec -o x --only cuM* python3 x.py -v",
            unknown,
            "`sudo gpurec -o x --only cuM* -- python3 x.py -v`",
        );
        says("gpurec -q run.jsonl", unknown, "`gpurec summary run.jsonl`");
        says("gpurec /bin/sh run.sh", unknown, "`sudo gpurec -- /bin/sh run.sh`");
        says("gpurec Cargo.toml", unknown, "`gpurec summary Cargo.toml`");
        says("gpurec sumary T", unknown, "`gpurec summary`");
        says("gpurec run.jsonl.zst", unknown, "`gpurec summary run.jsonl.zst`");
        says("gpurec report run.jsonl leaks", ErrorKind::InvalidValue, "`gpurec report api run.jsonl`");
        says("gpurec diff A B C", unknown, "two traces");
        assert_eq!(said("gpurec report leek", ErrorKind::InvalidValue), None);
        assert_eq!(said("gpurec --onyl x", unknown), None);
        assert_eq!(said("gpurec summary --help", ErrorKind::DisplayHelp), None);
    }
}
