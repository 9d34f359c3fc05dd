//! Sentences for a person, broken into lines.

/// Words in lines no wider than `width`, all as far indented as `first` is long.
pub fn wrapped(first: &str, words: &str, width: usize) -> String {
    let indent = " ".repeat(first.chars().count());
    let mut text = first.to_owned();
    let mut column = first.chars().count();
    let mut begun = false;
    for word in words.split(' ') {
        let length = word.chars().count();
        if begun && column + 1 + length > width {
            text.push('\n');
            text.push_str(&indent);
            column = indent.len();
        } else if begun {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        begun = true;
    }
    text.push('\n');
    text
}
