//! Properties of the output: its width, and whether it has colours. In: `--width` and `--color`, once, at the start;
//! the environment; the terminal. Out: a number of columns, and a yes or no.

use std::io::{IsTerminal, stderr, stdout};
use std::sync::OnceLock;

/// Without a terminal (a pipe or a file) nothing is cut and no line is wrapped.
pub const UNBOUNDED: usize = 1 << 30;

/// Width of a picture if nothing specifies one.
const PICTURE: usize = 100;

/// Nothing useful fits into a narrower output.
pub const NARROWEST: usize = 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Colour {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct PaperChoice {
    pub width: Option<usize>,
    pub colour: Colour,
}

static CHOSEN: OnceLock<PaperChoice> = OnceLock::new();

/// Sets the options of the command line; only the first call counts.
pub fn choose(chosen: PaperChoice) {
    let _ = CHOSEN.set(chosen);
}

fn chosen() -> PaperChoice {
    CHOSEN.get().copied().unwrap_or_default()
}

/// Columns of text on standard output: `--width`, else COLUMNS, else those of the terminal.
pub fn width_of_output() -> usize {
    of_stream(terminal_size::terminal_size_of(stdout()), stdout().is_terminal())
}

/// Columns of text on standard error.
pub fn width_of_errors() -> usize {
    of_stream(terminal_size::terminal_size_of(stderr()), stderr().is_terminal())
}

fn of_stream(size: Option<(terminal_size::Width, terminal_size::Height)>, is_terminal: bool) -> usize {
    // A terminal that does not know its size still counts as a terminal.
    let known = size.map(|(width, _)| width.0.into()).or(is_terminal.then_some(PICTURE));
    width(chosen().width, variable("COLUMNS").as_deref(), known)
}

/// Columns of a picture.
pub fn picture_width() -> usize {
    let width = width_of_output();
    if width >= UNBOUNDED { PICTURE } else { width }
}

fn width(chosen: Option<usize>, columns: Option<&str>, terminal: Option<usize>) -> usize {
    let columns = || columns.and_then(|text| text.trim().parse().ok()).filter(|width| *width > 0);
    let width = chosen.or_else(columns).or(terminal).unwrap_or(UNBOUNDED);
    width.clamp(NARROWEST, UNBOUNDED)
}

/// Whether standard output has colours.
pub fn colour() -> bool {
    coloured(chosen().colour, stdout().is_terminal(), variable)
}

/// <https://no-color.org> and <https://bixense.com/clicolors>: the option overrides all variables, and NO_COLOR
/// overrides the others.
fn coloured(chosen: Colour, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, off: bool| variable(name).is_some_and(|value| (value == "0") == off);
    match chosen {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto if variable("NO_COLOR").is_some() => false,
        Colour::Auto if is("CLICOLOR_FORCE", false) => true,
        Colour::Auto => is_terminal && !is("CLICOLOR", true),
    }
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_wins_over_the_variable_and_that_over_the_terminal() {
        assert_eq!(width(Some(120), Some("90"), Some(80)), 120);
        assert_eq!(width(None, Some("90"), Some(80)), 90);
        assert_eq!(width(None, Some("90"), None), 90);
        assert_eq!(width(None, Some("wide"), Some(80)), 80);
        assert_eq!(width(None, Some("0"), None), UNBOUNDED);
        assert_eq!(width(None, None, None), UNBOUNDED);
        assert_eq!(width(Some(1), None, None), NARROWEST);
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let with = |set: &'static [(&str, &str)]| {
            move |name: &str| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            }
        };
        assert!(coloured(Colour::Auto, true, with(&[])) && !coloured(Colour::Auto, false, with(&[])));
        assert!(!coloured(Colour::Auto, true, with(&[("NO_COLOR", "1")])));
        assert!(!coloured(Colour::Auto, true, with(&[("CLICOLOR", "0")])));
        assert!(coloured(Colour::Auto, true, with(&[("CLICOLOR", "1")])));
        assert!(coloured(Colour::Auto, false, with(&[("CLICOLOR_FORCE", "1")])));
        assert!(!coloured(Colour::Auto, true, with(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")])));
        assert!(coloured(Colour::Always, false, with(&[("NO_COLOR", "1")])));
        assert!(!coloured(Colour::Never, true, with(&[("CLICOLOR_FORCE", "1")])));
    }
}
