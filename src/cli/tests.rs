//! Compares the command line with its documentation: gpurec accepts every example of --help and every command line of
//! the documents, their links and paths exist, and docs/command-line.md, the manual and the completions are complete.

use std::path::{Path, PathBuf};

use clap::CommandFactory;

use super::pages::{completions, manual};
use super::*;
use clap_complete::Shell;

const README: &str = include_str!("../../README.md");
const COMMAND_LINE: &str = include_str!("../../docs/command-line.md");
const RECORDING: &str = include_str!("../../docs/recording.md");

/// Every document, with its place in the tree.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |folder: &str| std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let pages = of("").chain(of("docs")).chain(of("traces"));
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages.map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

/// As gpurec itself would take it.
fn understood(words: &[String]) -> Result<Task, String> {
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    task(cli).map_err(|error| format!("{error:#}"))
}

fn commands() -> Vec<clap::Command> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut all: Vec<clap::Command> =
        root.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    all.push(root);
    all
}

fn options_of(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional())
}

/// The command lines in a line of shell, each in its words; what is not gpurec's is left out.
fn command_lines(line: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ' | '|' | ';' | '&') => {
                all.last_mut().unwrap().extend(word.take());
                if c != ' ' {
                    all.push(Vec::new());
                }
            }
            (None, '#') if word.is_none() => break,
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    all.into_iter().filter_map(|words| gpurecs(&words)).collect()
}

/// Without sudo and without what the shell takes for itself.
fn gpurecs(words: &[String]) -> Option<Vec<String>> {
    let words = words.strip_prefix(&["sudo".to_owned()][..]).unwrap_or(words);
    let (program, rest) = words.split_first()?;
    if !matches!(program.as_str(), "gpurec" | "./scripts/gpurec") || rest.is_empty() {
        return None;
    }
    let end = rest.iter().position(|word| word.starts_with('>')).unwrap_or(rest.len());
    Some(std::iter::once("gpurec".to_owned()).chain(rest[..end].iter().cloned()).collect())
}

/// An example in --help: two spaces, the command, two or more spaces, what it does.
fn example(line: &str) -> &str {
    let line = line.trim_start();
    line.split_once("  ").map_or(line, |(command, _)| command)
}

#[test]
fn every_example_in_the_help_is_understood() {
    for command in commands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut lines = help.lines();
        assert_eq!(lines.next(), Some("Examples:"), "gpurec {} --help", command.get_name());
        let mut count = 0;
        for line in lines {
            assert!(line.len() <= 90, "wider than the others: {line}");
            let found = command_lines(example(line));
            assert!(!found.is_empty(), "no command: {line}");
            for words in found.iter().filter(|words| words[1] != "help") {
                if let Err(error) = understood(words) {
                    panic!("{line}: {error}");
                }
            }
            let name = command.get_name();
            let about = found.iter().any(|words| name == "gpurec" || words[1] == name);
            assert!(about, "an example of another command than {name}: {line}");
            count += 1;
        }
        assert!(count > 0, "gpurec {} --help has no examples", command.get_name());
    }
}

/// Lines of blocks.
fn blocks(text: &str) -> Vec<&str> {
    let is_code = |(at, _): &(usize, &str)| at % 2 == 1;
    let blocks = text.split("```").enumerate().filter(is_code);
    let lines = blocks.flat_map(|(_, block)| block.lines().skip(1));
    lines.map(|line| line.strip_prefix("$ ").unwrap_or(line)).collect()
}

/// Lines of blocks, and what stands in backticks.
fn code(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut block = false;
    for line in text.lines() {
        if line.starts_with("```") {
            block = !block;
        } else if block {
            all.push(line.strip_prefix("$ ").unwrap_or(line));
        } else {
            all.extend(line.split('`').skip(1).step_by(2));
        }
    }
    all
}

#[test]
fn every_command_line_of_the_documents_is_understood() {
    let mut count = 0;
    for (page, text) in documents() {
        // In other documents, sentences contain single words instead of whole command lines.
        let whole = [README, COMMAND_LINE, RECORDING].contains(&text.as_str());
        let lines = if whole { code(&text) } else { blocks(&text) };
        // Usage lines contain brackets; --static is an option of the script.
        for line in lines.into_iter().filter(|line| !line.contains(['[', '…']) && !line.contains("--static"))
        {
            for words in command_lines(example(line)) {
                match understood(&words) {
                    // gpurec accepted the line, but this machine lacks the library that it names.
                    Err(error) if error.contains("cannot open it") => {}
                    Err(error) => panic!("{}: {line}: {error}", page.display()),
                    Ok(_) => {}
                }
                count += 1;
            }
        }
    }
    assert!(count > 40, "only {count} found");
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect();
    text.replace(' ', "-")
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut count = 0;
    for (page, text) in documents() {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            let is_there =
                |text: &str| text.lines().any(|line| line.starts_with('#') && anchor(line) == part);
            let found = part.is_empty() || is_there(&std::fs::read_to_string(&target).unwrap());
            assert!(found, "{}: {link}", page.display());
            count += 1;
        }
    }
    assert!(count > 20, "only {count} found");
}

/// A reader must not have to scroll: everything else has a document of its own.
#[test]
fn the_readme_is_short() {
    assert!(README.lines().count() <= 200);
}

#[test]
fn every_path_in_the_documents_for_contributors_exists() {
    const ROOMS: [&str; 9] =
        [".github", "bpf", "crates", "docs", "fixtures", "fuzz", "scripts", "src", "tests"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in ["docs/architecture.md", "CONTRIBUTING.md", "KERNEL_HOOKS.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let words = code(&text).into_iter().flat_map(str::split_whitespace);
        let words = words.map(|word| word.trim_start_matches("./").trim_end_matches([',', ';', ':']));
        // Skip patterns and the names of new files, which contain these characters.
        let words = words.filter(|word| !word.contains(['*', '{', '<', 'N']));
        for word in words.filter(|word| ROOMS.iter().any(|room| word.starts_with(&format!("{room}/")))) {
            assert!(root.join(word).exists(), "{page}: {word}");
        }
    }
}

#[test]
fn the_reference_has_every_command_and_every_option() {
    let usage: Vec<&str> =
        code(COMMAND_LINE).into_iter().filter(|line| line.starts_with("gpurec ")).collect();
    let part = COMMAND_LINE.lines().find(|line| line.starts_with("PART: ")).unwrap();
    for command in commands().iter().filter(|command| command.get_name() != "gpurec") {
        let name = command.get_name();
        let begin = format!("gpurec {name}");
        let line =
            usage.iter().filter(|line| line.starts_with(&begin)).copied().collect::<Vec<_>>().join(" ");
        assert!(!line.is_empty(), "the reference's usage has no {begin}");
        if name == "demo" {
            continue;
        }
        for option in options_of(command).filter_map(clap::Arg::get_long) {
            let everywhere = matches!(option, "help" | "version" | "width" | "color");
            let named = |text: &str| text.contains(&format!("--{option}"));
            let known = everywhere || named(&line) || line.contains("[PART]") && named(part);
            assert!(known, "the reference's usage of {name} has no --{option}");
        }
    }
    let rows: Vec<&str> = COMMAND_LINE.lines().filter(|line| line.starts_with("| `-")).collect();
    let root = Cli::command();
    for option in options_of(&root).filter_map(clap::Arg::get_long) {
        let found = rows.iter().any(|row| row.contains(&format!("--{option}")));
        assert!(found, "the reference's table has no --{option}");
    }
    for row in rows {
        let (_, option) = row.split_once("--").unwrap();
        let option = option.split(|c: char| !(c.is_alphanumeric() || c == '-')).next().unwrap();
        let exists = matches!(option, "help" | "version")
            || options_of(&root).any(|arg| arg.get_long() == Some(option));
        assert!(exists, "the reference's table has --{option}, which does not exist");
    }
}

#[test]
fn the_manual_and_the_completions_have_everything() {
    let page = String::from_utf8(manual().unwrap()).unwrap();
    let plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
    let shells = [Shell::Bash, Shell::Zsh, Shell::Fish].map(|shell| {
        let text = String::from_utf8(completions(shell)).unwrap();
        assert!(text.contains("gpurec"));
        text
    });
    for command in commands() {
        let name = command.get_name();
        let heading = if name == "gpurec" { ".TH gpurec".into() } else { name.to_uppercase() };
        assert!(plain.contains(&heading), "the manual has no {heading}");
        assert!(shells.iter().all(|text| text.contains(name)), "{name} is not completed");
        for option in options_of(&command).filter_map(clap::Arg::get_long) {
            assert!(plain.contains(&format!("--{option}")), "the manual has no --{option}");
            let known = shells.iter().all(|text| text.contains(option));
            assert!(known, "--{option} of {name} is not completed");
        }
    }
    for part in ["sudo gpurec -- python inference.py", ".SH EXAMPLES", ".SS EXAMPLES", "EXIT STATUS"] {
        assert!(plain.contains(part), "the manual has no {part}");
    }
    // A line that begins with a dot is a roff request: only these may occur.
    for line in page.lines().filter(|line| line.starts_with('.')) {
        let known =
            [".TH", ".SH", ".SS", ".TP", ".br", ".nf", ".fi", ".RS", ".RE", ".IP", ".ie", ".el", ".PP"];
        assert!(known.iter().any(|request| line.starts_with(request)), "{line}");
    }
}

/// Through sudo these are done with the caller's rights alone (docs/security.md).
#[test]
fn what_reads_needs_no_right_of_roots() {
    let needs_none = |line: &str| understood(&command_lines(line).remove(0)).unwrap().needs_no_rights();
    for line in [
        "gpurec summary t",
        "gpurec timeline t",
        "gpurec report api t",
        "gpurec export --format csv t",
        "gpurec diff a b",
        "gpurec check --assert complete t",
        "gpurec ranks a b",
        "gpurec probes 'cuMem*'",
        "gpurec completions bash",
        "gpurec man",
    ] {
        assert!(needs_none(line), "{line}");
    }
    for line in [
        "gpurec -- true",
        "gpurec --all",
        "gpurec demo",
        "gpurec doctor",
        "gpurec probes --kernel",
        "gpurec probes --pid 1",
    ] {
        assert!(!needs_none(line), "{line}");
    }
}

#[test]
fn spans_of_time() {
    for (text, ns) in
        [("10", 10_000_000_000), ("0.5", 500_000_000), ("500ms", 500_000_000), ("2m", 120_000_000_000)]
    {
        assert_eq!(span(text).unwrap().as_nanos(), ns, "{text}");
    }
    assert_eq!(span("0").unwrap(), Duration::ZERO);
    for text in ["", "x", "-1", "nan", "inf", "1e99", "5 s", "5d", "ms", "1e10"] {
        assert!(span(text).is_err(), "{text}");
    }
    assert!(positive_span("0").is_err());
}

#[test]
fn words_to_configurations() {
    let words = |line: &str| command_lines(line).remove(0);
    let of = |line: &str| understood(&words(line));
    match of("gpurec report leaks --older-than 1.5 --top 3 --csv a b.zst").unwrap() {
        Task::Read(cli::Task::Report(config)) => {
            assert_eq!((config.view.as_deref(), config.top), (Some("leaks"), Some(3)));
            assert_eq!(config.older_than, Some(Duration::from_millis(1500)));
            assert_eq!(config.format, gpurec_analysis::views::Format::Csv);
            assert_eq!(config.files, ["a", "b.zst"].map(std::path::PathBuf::from));
        }
        _ => panic!(),
    }
    match of("gpurec timeline --from 0 --to 20ms --tid 7,8 --tid 9").unwrap() {
        Task::Read(cli::Task::Timeline(config)) => assert_eq!(config.tids, [7, 8, 9]),
        _ => panic!(),
    }
    match of("gpurec check --assert 'errors==0' --budget b.txt --json t").unwrap() {
        Task::Read(cli::Task::Check(config)) => {
            assert!(config.json && config.files.len() == 1);
            assert_eq!(config.budgets, ["errors==0", "b.txt"]);
        }
        _ => panic!(),
    }
    match of("gpurec --interval 0.5 --pid 1,2").unwrap() {
        Task::Record(config) => {
            assert_eq!(config.interval, Some(Duration::from_millis(500)));
            assert_eq!(config.options["interval"], 0.5);
        }
        _ => panic!(),
    }
    for line in [
        "gpurec report nonsense",
        "gpurec report api --json --csv",
        "gpurec timeline --from 2 --to 1",
        "gpurec export t",
        "gpurec export --format pdf t",
        "gpurec diff only-one",
        "gpurec check t",
        "gpurec ranks",
        "gpurec completions tcsh",
        "gpurec --interval 0 -- true",
        "gpurec --interval 0.01 -- true",
    ] {
        assert!(of(line).is_err(), "{line}");
    }
}
