//! Sentences for a person, broken into lines.

/// Words in lines no wider than `width`, all as far indented as `first` is long.
pub fn wrapped(first: &str, words: &str, width: usize) -> String {
    hanging(first, &" ".repeat(first.chars().count()), words, width)
}

/// The same, with lines after the first that begin with `others`.
pub fn hanging(first: &str, others: &str, words: &str, width: usize) -> String {
    let mut text = String::new();
    let mut line = first.to_owned();
    for (at, word) in words.split(' ').enumerate() {
        if at > 0 && line.chars().count() + 1 + word.chars().count() > width {
            text.push_str(&std::mem::replace(&mut line, others.to_owned()));
            text.push('\n');
        } else if at > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    text + &line + "\n"
}
