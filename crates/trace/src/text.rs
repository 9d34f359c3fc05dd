//! Text that cannot act as a command to a terminal or a spreadsheet. In: names from programs, files and traces, which
//! may contain anything. Out: text, CSV cells and JSON. Not here: writing it anywhere.

use std::borrow::Cow;

use serde::Serialize;

/// A control character, or an invisible character that changes the order or the look of others.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A name in a line, with unsafe characters shown as escapes.
pub fn clean(text: &str) -> String {
    escaped(text, is_unsafe, |c, out| out.extend(c.escape_default()))
}

/// The same for a text of several lines; line feeds stay.
pub fn clean_lines(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_unsafe(c), |c, out| out.extend(c.escape_default()))
}

fn escaped(text: &str, which: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> String {
    let mut shown = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if which(c) { escape(c, &mut shown) } else { shown.push(c) }
    }
    shown
}

/// A document on one line, safe to view in a terminal: unsafe characters become JSON escapes.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(safe_json(serde_json::to_string(value)?.into()).into_owned())
}

/// The same for a one-line document that is already written.
pub fn safe_json(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return text;
    }
    escaped(&text, is_unsafe, json_escape).into()
}

/// The same for whole lines of a document, in place; line feeds stay.
pub fn safe_json_lines(text: &mut Vec<u8>) {
    if text.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n')) {
        return;
    }
    let shown = String::from_utf8_lossy(text);
    if shown.contains(|c| c != '\n' && is_unsafe(c)) {
        *text = escaped(&shown, |c| c != '\n' && is_unsafe(c), json_escape).into_bytes();
    }
}

/// No unsafe character is above U+FFFF, and one can only be inside a string, except the white space between values.
fn json_escape(c: char, out: &mut String) {
    match c {
        '\t' | '\r' | '\n' => out.push(' '),
        c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
    }
}

/// A text as a cell of CSV (RFC 4180). Control characters become escapes, because users view it in terminals; a text
/// that a spreadsheet would take for a formula gets an apostrophe in front, unless it is a number.
pub fn csv(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number(text);
    if !is_formula && !text.contains(|c| matches!(c, ',' | '"') || is_unsafe(c)) {
        return text.into();
    }
    let apostrophe = if is_formula { "'" } else { "" };
    let shown = format!("{apostrophe}{}", clean(text));
    if shown.contains([',', '"']) { quoted(&shown).into() } else { shown.into() }
}

/// A one-line JSON document as a cell of CSV.
pub fn csv_json(text: &str) -> String {
    quoted(&safe_json(text.into()))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn is_number(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok_and(f64::is_finite)
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
        let mut lines = b"{\"a\":\t1,\r\n\"\xc2\x9b\xe2\x80\xae\x7f\":2}\n".to_vec();
        safe_json_lines(&mut lines);
        assert_eq!(lines, b"{\"a\": 1, \n\"\\u009b\\u202e\\u007f\":2}\n");
        assert_eq!(safe_json("{\t\"a\":1}".into()), "{ \"a\":1}");
    }
}
