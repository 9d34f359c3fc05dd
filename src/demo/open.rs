//! `gpurec demo --open`: shows the recording as a page in the caller's browser. In: the trace. Out: the page beside it.
//! It is written and opened as the user who called sudo, with their rights and environment, never as root. Not here:
//! what is on the page.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::SigSet;

use crate::process::environment::user_environment;
use crate::process::folder;
use crate::process::identity::{Identity, invoking_user};
use crate::process::proc::Env;
use crate::process::rights::as_caller;
use crate::ui;
use gpurec_analysis::Only;
use gpurec_analysis::export::{ExportConfig, ExportFormat, export};

/// Opens a file with the program that the user's desktop chose for its type.
const OPENER: &str = "xdg-open";
/// The opener ends at once, or together with the browser. If it fails, it does so within this time.
const FAILS_WITHIN: Duration = Duration::from_secs(3);

/// The user who called sudo, and their environment.
pub struct Caller {
    user: Identity,
    env: Env,
}

impl Caller {
    /// Call this before the recording. The recording gives up root's rights, and after that gpurec takes its own
    /// environment, which is root's, for the user's.
    pub fn find() -> Caller {
        let user = invoking_user();
        let (env, _) = user_environment(&user);
        Caller { user, env }
    }
}

/// The trace that a recording without -o has just written.
pub fn newest() -> PathBuf {
    PathBuf::from("traces/latest")
}

/// Writes the page, and opens it or says why not.
pub fn show(trace: &Path, Caller { user, env }: Caller) -> Result<()> {
    let page =
        as_caller(&user, || write(trace)).context("cannot write the page as the user who called sudo")??;
    let opened = guarded(&user, &page).and_then(|()| open(&user, env, &page));
    match opened {
        Ok(()) => ui::say(&format!("the page is {}, and your browser opens it", ui::name(&page))),
        Err(why) => ui::say(&format!("the page is {}: open it in a browser ({why})", ui::name(&page))),
    }
    Ok(())
}

/// A page that others can exchange is not opened: it may be another page by then.
fn guarded(user: &Identity, page: &Path) -> Result<(), String> {
    let checked = as_caller(user, || folder::guarded(page, user.uid)).and_then(|checked| checked);
    checked.map(drop).map_err(|error| error.to_string())
}

/// Returns where the page is.
fn write(trace: &Path) -> Result<PathBuf> {
    let trace = trace.canonicalize().with_context(|| ui::name(trace))?;
    let page = page_of(&trace);
    export(&ExportConfig {
        files: vec![trace],
        format: ExportFormat::Html,
        output: Some(page.clone()),
        only: Only::default(),
        by: None,
    })?;
    Ok(page)
}

/// `demo.jsonl.zst` has the page `demo.html`.
fn page_of(trace: &Path) -> PathBuf {
    let plain =
        if trace.extension() == Some(OsStr::new("zst")) { trace.with_extension("") } else { trace.into() };
    plain.with_extension("html")
}

/// The error says why no browser opens the page.
fn open(user: &Identity, env: Env, page: &Path) -> Result<(), String> {
    if user.uid == 0 {
        return Err("gpurec starts no browser as root".to_owned());
    }
    let has = |name: &str| env.iter().any(|(key, value)| key == name && !value.is_empty());
    if !["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().any(has) {
        return Err("there is no display here".to_owned());
    }
    // Finds and starts the opener with the user's rights: a child has the rights of the thread that starts it.
    let started = as_caller(user, || {
        // A child also has that thread's blocked signals, and the recording has blocked those that end a program.
        let _ = SigSet::all().thread_unblock();
        let opener = opener(&env).ok_or_else(|| format!("there is no {OPENER} in PATH"))?;
        let mut command = Command::new(opener);
        command.arg(page).env_clear().envs(env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().map_err(|error| format!("{OPENER}: {error}"))
    });
    ends_well(started.map_err(|error| error.to_string())??)
}

fn opener(env: &Env) -> Option<PathBuf> {
    let (_, path) = env.iter().find(|(key, _)| key == "PATH")?;
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|it| it.join(OPENER))
        .find(is_program)
}

/// Waits for the opener to fail. If it still runs after that, it is the browser.
fn ends_well(mut child: Child) -> Result<(), String> {
    let until = Instant::now() + FAILS_WITHIN;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{OPENER} failed: {status}")),
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(format!("{OPENER}: {error}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;
    use crate::demo::tests::SPAWN;

    /// A folder with a stand-in for the opener, which writes who runs it, its environment and its argument.
    struct Desktop(PathBuf);

    impl Desktop {
        fn new(script: &str) -> Desktop {
            // mkdtemp puts random letters in place of each X.
            let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("gpurec-open-XXXXXX")).unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
            let file = folder.join(OPENER);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
            Desktop(folder)
        }

        fn env(&self, display: &str) -> Env {
            let path = format!("relative:{}:/usr/bin:/bin", self.0.display());
            let said = self.0.join("said").into_os_string();
            vec![("PATH".into(), path.into()), ("DISPLAY".into(), display.into()), ("SAID".into(), said)]
        }
    }

    impl Drop for Desktop {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A user without rights if root runs the test, otherwise the user who runs it.
    fn user() -> Identity {
        let mut user = invoking_user();
        if nix::unistd::geteuid().is_root() {
            // User 65534 is `nobody`.
            (user.uid, user.gid, user.groups) = (65534, 65534, vec![65534]);
        }
        user
    }

    #[test]
    fn the_page_stands_beside_its_trace() {
        let page = |trace: &str| page_of(Path::new(trace)).display().to_string();
        assert_eq!(page("/a/demo.jsonl"), "/a/demo.html");
        assert_eq!(page("/a/demo.1.jsonl.zst"), "/a/demo.1.html");
    }

    #[test]
    fn a_page_that_others_can_exchange_is_not_opened() {
        let desktop = Desktop::new("");
        let page = desktop.0.join("demo.html");
        fs::write(&page, "").unwrap();
        fs::set_permissions(&page, Permissions::from_mode(0o644)).unwrap();
        assert!(guarded(&user(), &page).unwrap_err().contains("can be written by other users"));
        fs::set_permissions(&desktop.0, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(guarded(&user(), &page), Ok(()));
    }

    #[test]
    fn the_caller_opens_it_and_not_root() {
        let _guard = SPAWN.lock().unwrap();
        let desktop = Desktop::new(r#"echo "$(id -u) $(id -G) $DISPLAY ${HOME-none} $1" > "$SAID""#);
        let user = user();
        open(&user, desktop.env(":9"), Path::new("/a b/demo.html")).unwrap();
        let said = fs::read_to_string(desktop.0.join("said")).unwrap();
        let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
        assert!(
            said.starts_with(&format!("{} ", user.uid)) && said.ends_with(":9 none /a b/demo.html\n"),
            "{said}"
        );
        assert!(groups.iter().all(|group| said.split(' ').any(|word| word == group)), "{said}");
    }

    #[test]
    fn without_a_browser_it_says_why() {
        let _guard = SPAWN.lock().unwrap();
        let desktop = Desktop::new("exit 4");
        let page = Path::new("/a.html");
        let failed = open(&user(), desktop.env(":9"), page).unwrap_err();
        assert!(failed.contains("xdg-open failed") && failed.contains('4'), "{failed}");
        let hidden = open(&user(), desktop.env(""), page).unwrap_err();
        assert!(hidden.contains("no display"), "{hidden}");
        fs::remove_file(desktop.0.join(OPENER)).unwrap();
        let env = vec![("PATH".into(), desktop.0.clone().into_os_string()), ("DISPLAY".into(), ":9".into())];
        assert!(open(&user(), env, page).unwrap_err().contains("no xdg-open"));
        let root = Identity { uid: 0, ..user() };
        assert!(open(&root, desktop.env(":9"), page).unwrap_err().contains("as root"));
    }
}
