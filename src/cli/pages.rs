//! Generates completions and the manual from the definition of the command line. Out: text on standard output.

use std::io::{self, Write};

use anyhow::Result;
use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::Cli;

pub const COMPLETIONS: &str = "\
Examples:
  gpurec completions bash > ~/.local/share/bash-completion/completions/gpurec
  gpurec completions zsh > ~/.zfunc/_gpurec    with ~/.zfunc in fpath
  gpurec completions fish > ~/.config/fish/completions/gpurec.fish";

pub const MAN: &str = "\
Examples:
  gpurec man | man -l -                        read it
  gpurec man > /usr/local/share/man/man1/gpurec.1";

#[derive(Args)]
pub struct CompletionsArgs {
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: ShellArg,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

pub enum Page {
    Completions(ShellArg),
    Manual,
}

pub fn print(page: &Page) -> Result<u8> {
    let text = match page {
        Page::Completions(shell) => completions(*shell),
        Page::Manual => manual()?,
    };
    io::stdout().lock().write_all(&text)?;
    Ok(0)
}

pub fn completions(shell: ShellArg) -> Vec<u8> {
    let shell = match shell {
        ShellArg::Bash => Shell::Bash,
        ShellArg::Zsh => Shell::Zsh,
        ShellArg::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "gpurec", &mut text);
    text
}

/// One page, with a section for each command.
pub fn manual() -> io::Result<Vec<u8>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    examples(&command, ".SH", &mut page)?;
    for subcommand in command.get_subcommands() {
        section(subcommand, &mut page)?;
    }
    page.write_all(EXIT_STATUS.as_bytes())?;
    Ok(page)
}

const EXIT_STATUS: &str = "\
.SH \"EXIT STATUS\"
The command's own (128+N if signal N ended it); 0 after a recording with \\-\\-pid or \\-\\-all; 1 if an assertion of `check`
or a threshold of `diff` fails, or if `report` or `timeline` could answer nothing; 2 if the command line is wrong; 125 if
gpurec failed; 126 and 127 if the command cannot be run, or is not found; 130 if it was interrupted twice.
";

/// What would be a page of its own, one level lower.
fn section(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    examples(command, ".SS", &mut text)?;
    writeln!(page, ".SH \"GPUREC {}\"", command.get_name().to_uppercase())?;
    for line in String::from_utf8_lossy(&text).lines() {
        match line.strip_prefix(".SH ") {
            Some(title) => writeln!(page, ".SS {title}")?,
            None => writeln!(page, "{line}")?,
        }
    }
    Ok(())
}

/// As they are: roff would fill the lines.
fn examples(command: &Command, heading: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let Some(help) = command.get_after_help() else { return Ok(()) };
    writeln!(page, "{heading} EXAMPLES\n.nf")?;
    for line in help.to_string().lines().skip(1) {
        let line = line.trim_start().replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        writeln!(page, "\\&{line}")?;
    }
    writeln!(page, ".fi")
}
