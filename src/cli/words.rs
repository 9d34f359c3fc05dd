//! Finds the first argument that is not an option: a gpurec command, or the name of a program that lacks `--` before
//! it. In: the arguments, and which options take a value. Out: its position. clap decides what words mean.

use std::ffi::OsString;

use clap::CommandFactory;

use super::Cli;

/// `gpurec -o x demo` is `gpurec demo -o x`: the demo takes the options of a recording, and has them on either side. So
/// has every command the options of all: `gpurec --width 80 summary`.
pub fn command_first(given: &[OsString]) -> Vec<OsString> {
    let mut words = given.to_vec();
    let command = Cli::command();
    let Some((at, of_all)) = walk(&command, given) else { return words };
    let name = given.get(at).map(|word| word.to_string_lossy()).unwrap_or_default();
    let is_known = command.get_subcommands().any(|known| known.get_name() == name);
    if name == "demo" || (is_known && of_all) {
        words.get_mut(1..=at).into_iter().for_each(|words| words.rotate_right(1));
    }
    words
}

/// None: there are options only, or `--` or an option that there is not comes before it.
pub fn first(words: &[OsString]) -> Option<usize> {
    walk(&Cli::command(), words).map(|(at, _)| at)
}

/// Where, and whether all options before it are those of every command.
fn walk(command: &clap::Command, words: &[OsString]) -> Option<(usize, bool)> {
    let (mut at, mut of_all) = (1, true);
    loop {
        let word = words.get(at)?.to_string_lossy();
        match word.strip_prefix('-') {
            None | Some("") => return Some((at, of_all)),
            Some("-") => return None,
            Some(option) => {
                let (takes_the_next, is_of_all) = known(command, option)?;
                of_all &= is_of_all;
                at += 1 + usize::from(takes_the_next);
            }
        }
    }
}

/// Whether the value of an option is the next word, and whether every command has the option; None if there is no such
/// option. `option` is without its first dash.
fn known(command: &clap::Command, option: &str) -> Option<(bool, bool)> {
    let find = |is_it: &dyn Fn(&clap::Arg) -> bool| command.get_arguments().find(|arg| is_it(arg));
    let takes = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    if let Some(long) = option.strip_prefix('-') {
        let (name, has_value) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        return find(&|arg| arg.get_long() == Some(name))
            .map(|arg| (takes(arg) && !has_value, arg.is_global_set()));
    }
    // Several short options in one word: the first that takes a value takes the rest of the word, if there is any.
    let mut letters = option.chars();
    while let Some(letter) = letters.next() {
        if takes(find(&|arg| arg.get_short() == Some(letter))?) {
            return Some((letters.as_str().is_empty(), false));
        }
    }
    Some((false, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn options_may_stand_before_a_command() {
        for (given, taken) in [
            ("gpurec -o x demo", "gpurec demo -o x"),
            ("gpurec -qo x --only demo demo -- demo", "gpurec demo -qo x --only demo -- demo"),
            ("gpurec --output=x -ox -k demo --live", "gpurec demo --output=x -ox -k --live"),
            ("gpurec demo -o x", "gpurec demo -o x"),
            ("gpurec -o demo", "gpurec -o demo"),
            ("gpurec --onyl x demo", "gpurec --onyl x demo"),
            ("gpurec -q -- demo", "gpurec -q -- demo"),
            ("gpurec summary demo", "gpurec summary demo"),
            ("gpurec --width 80 summary t", "gpurec summary --width 80 t"),
            ("gpurec --color=never --width 80 report api t", "gpurec report --color=never --width 80 api t"),
            ("gpurec --width 80 t summary", "gpurec --width 80 t summary"),
            ("gpurec --width 80 -- summary", "gpurec --width 80 -- summary"),
            ("gpurec --width 80 -o x summary", "gpurec --width 80 -o x summary"),
            ("gpurec", "gpurec"),
        ] {
            assert_eq!(command_first(&words(given)), words(taken), "{given}");
        }
    }
}
