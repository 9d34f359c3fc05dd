//! Generates completions and the manual from the definition of the command line. Out: text on standard output.

use std::io::{self, Write};

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Command, CommandFactory};
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
    #[arg(value_name = "SHELL", value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    pub shell: Shell,
}

pub enum Page {
    Completions(Shell),
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

pub fn completions(shell: Shell) -> Vec<u8> {
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
    body(&command, &man, ".SH", &mut page)?;
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        section(subcommand, &mut page)?;
    }
    page.write_all(EXIT_STATUS.as_bytes())?;
    Ok(page)
}

const EXIT_STATUS: &str = "\
.SH \"EXIT STATUS\"
The command's own (128+N if signal N ended it); 0 after a recording with \\-\\-pid or \\-\\-all; 1 if an assertion of `check`
or a threshold of `diff` fails, or if a trace has only figures (\\-\\-summary\\-only) and they do not answer a `report` or
`timeline`; 2 if the command line is wrong; 125 if gpurec failed; 126 and 127 if the command cannot be run, or is not
found; 130 if it was interrupted twice.
";

/// What would be a page of its own, one level lower.
fn section(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let mut text = Vec::new();
    body(command, &Man::new(command.clone()), ".SS", &mut text)?;
    writeln!(page, ".SH \"GPUREC {}\"", command.get_name().to_uppercase())?;
    for line in String::from_utf8_lossy(&text).lines() {
        match line.strip_prefix(".SH ") {
            Some(title) => writeln!(page, ".SS {title}")?,
            None => writeln!(page, "{line}")?,
        }
    }
    Ok(())
}

/// The examples stay as they are: roff would fill the lines.
fn body(command: &Command, man: &Man, heading: &str, page: &mut Vec<u8>) -> io::Result<()> {
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    let Some(help) = command.get_after_help() else { return Ok(()) };
    writeln!(page, "{heading} EXAMPLES\n.nf")?;
    for line in help.to_string().lines().skip(1) {
        let line = line.trim_start().replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        writeln!(page, "\\&{line}")?;
    }
    writeln!(page, ".fi")
}
