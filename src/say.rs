//! What gpurec says to a person. In: sentences and names; the names come from the programs recorded, from their
//! files and from traces, which may hold anything. Out: text in which nothing is a command to a terminal, and
//! standard error.
//!
//! Nobody writes to standard error past this (but the thread of `record::screen`, which waits for slow readers):
//! `eprintln!` panics where standard error is full or closed, and a recording is worth more than what is said of it.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

/// A control character; or one that is not seen and changes the order or the look of others.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name in a line: what is unsafe is shown as an escape.
pub fn clean(text: &str) -> String {
    escaped(text, is_unsafe)
}

/// Several lines, which stay lines.
pub fn clean_lines(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_unsafe(c))
}

fn escaped(text: &str, which: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if which(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The name of a file.
pub fn name(file: &Path) -> String {
    clean(&file.display().to_string())
}

/// A document in one line, which may be looked at in a terminal: what is unsafe is an escape of JSON's.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(safe_json(serde_json::to_string(value)?.into()).into_owned())
}

/// The same of a document in one line that is written already.
pub fn safe_json(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        // It can only be inside a string, and none of them is above U+FFFF.
        if is_unsafe(c) {
            safe.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
    }
    safe.into()
}

/// A text as a cell of CSV (RFC 4180). Control characters are escapes, for it may be looked at in a terminal; and what a
/// spreadsheet would take for a formula begins with an apostrophe, but for numbers.
pub fn csv(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number(text);
    if !is_formula && !text.contains(|c| matches!(c, ',' | '"') || is_unsafe(c)) {
        return text.into();
    }
    let apostrophe = if is_formula { "'" } else { "" };
    let shown = format!("{apostrophe}{}", clean(text));
    if shown.contains([',', '"']) { quoted(&shown).into() } else { shown.into() }
}

/// A JSON document in one line as a cell of CSV.
pub fn csv_json(text: &str) -> String {
    quoted(&safe_json(text.into()))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn is_number(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// An error that ends with the kernel's own word, and what to do about it. Of many errors the libraries between keep
/// nothing but the text.
pub fn with_remedy(text: String) -> String {
    let number =
        text.strip_suffix(')').and_then(|text| text.rsplit_once(" (os error ")).map(|(_, number)| number);
    match number.and_then(|number| remedy(number.parse().ok()?, &text)) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

fn remedy(errno: i32, text: &str) -> Option<&'static str> {
    Some(match errno {
        libc::EAGAIN => {
            "no more processes or threads are allowed here: raise ulimit -u, or pids.max of the cgroup"
        }
        libc::EMFILE => "raise the limit on open files: ulimit -n 65536",
        libc::ENFILE => "raise the machine's limit on open files: sysctl fs.file-max",
        libc::ENOMEM => {
            "there is too little memory, or a limit on it (ulimit -v, memory.max of the cgroup): try a smaller --ring"
        }
        // Of a file it is the file's own permissions that say no.
        libc::EPERM | libc::EACCES | libc::ENOSYS if text.contains("the kernel refused") => {
            "in a container, its seccomp filter may forbid it: run gpurec on the host, or the container with --privileged"
        }
        _ => return None,
    })
}

/// A sentence of gpurec's, on standard error.
pub fn say(sentence: &str) {
    text(&format!("gpurec: {sentence}\n"));
}

/// What was odd in a file.
pub fn of_file(file: &Path, sentences: &[String]) {
    for sentence in sentences {
        say(&format!("{}: {}", name(file), clean(sentence)));
    }
}

/// Lines on standard error. Nobody can be told if it is gone.
pub fn text(text: &str) {
    let _ = std::io::stderr().lock().write_all(clean_lines(text).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str =
        "a\u{7}\u{7f}\u{1b}[31m\u{9b}31m\u{61c}\u{200b}\u{200f}\u{2028}\u{202e}\u{2060}\u{2069}\u{feff}\nz";

    #[test]
    fn nothing_unsafe_is_left() {
        let shown = clean(ALL);
        assert!(!shown.contains(is_unsafe) && shown.starts_with("a\\u{7}\\u{7f}\\u{1b}[31m"), "{shown}");
        assert_eq!(clean_lines("a\n\u{202e}b\r\n"), "a\n\\u{202e}b\\r\n");
        let harmless = "void f<é>(int*) … ░▏ 漢字 🙂";
        assert_eq!((clean(harmless).as_str(), clean_lines(harmless).as_str()), (harmless, harmless));
        for c in ['\u{61b}', '\u{200a}', '\u{2010}', '\u{2027}', '\u{202f}', '\u{205f}', '\u{206a}'] {
            assert!(!is_unsafe(c), "{c:?}");
        }
    }

    #[test]
    fn an_error_of_the_kernel_comes_with_a_remedy() {
        let told = |text: &str| with_remedy(text.to_owned());
        assert_eq!(
            told("fork: Resource temporarily unavailable (os error 11)"),
            "fork: Resource temporarily unavailable (os error 11); no more processes or threads are allowed here: \
             raise ulimit -u, or pids.max of the cgroup"
        );
        assert!(
            told("a: Too many open files (os error 24)")
                .ends_with("; raise the limit on open files: ulimit -n 65536")
        );
        assert!(told("the kernel refused a: Permission denied (os error 13)").ends_with(" --privileged"));
        for same in [
            "a: File exists (os error 17)",
            "cannot open a: Permission denied (os error 13)",
            "a (os error 24); do this",
            "a (os error x)",
            "(os error 24)",
            "",
        ] {
            assert_eq!(told(same), same);
        }
    }

    #[test]
    fn no_cell_is_a_formula_or_a_command_to_a_terminal() {
        for (text, cell) in [
            ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"),
            ("=HYPERLINK(\"http://x\",1)", "\"'=HYPERLINK(\"\"http://x\"\",1)\""),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+1+2", "'+1+2"),
            ("-x", "'-x"),
            ("-inf", "'-inf"),
            ("-", "'-"),
            ("\t=1", "'\\t=1"),
            ("\r=1", "'\\r=1"),
            ("\u{1b}]0;x\u{7}\n\u{9b}", "\\u{1b}]0;x\\u{7}\\n\\u{9b}"),
            ("-12.5e-3", "-12.5e-3"),
            ("+7", "+7"),
            ("void f<é>(int*)", "void f<é>(int*)"),
            ("f(a, b)", "\"f(a, b)\""),
            ("", ""),
        ] {
            assert_eq!(csv(text), cell, "{text:?}");
        }
        assert_eq!(csv_json("{\"a\":\"\u{9b}é\"}"), "\"{\"\"a\"\":\"\"\\u009bé\"\"}\"");
    }

    #[test]
    fn json_is_the_same_value_and_safe() {
        let value = serde_json::json!({ ALL: [ALL, 1, "é"] });
        let text = json(&value).unwrap();
        assert!(!text.contains(is_unsafe) && text.contains("\\u202e\\u2060") && text.contains('é'), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
